// Package create makes the parts of a remote secret at an API server: the
// service account, its role and its token. It also finds the address at which
// other clusters reach the API server, and the CA that signs its certificate
// there.
//
// Before it writes, it reports missing rights of the caller; afterwards it
// reports what the account may not read.
package create

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
)

const fieldManager = "meshctl"

// APIServer is the API server of one cluster.
type APIServer struct {
	// Name is the name in messages, such as the context.
	Name   string
	config *rest.Config
	api    *kube.Client
}

// Connect makes the client of an API server. It sends no request yet.
func Connect(name string, config *rest.Config) (*APIServer, error) {
	api, err := kube.NewClient(config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &APIServer{Name: name, config: config, api: api}, nil
}

// as returns the API server for requests with the token.
func (c *APIServer) as(token string) (*APIServer, error) {
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken = token
	return Connect(c.Name, config)
}

// UID returns the identity of the cluster: the UID of its namespace kube-system.
func (c *APIServer) UID(ctx context.Context) (string, error) {
	ns, err := c.api.Namespaces().Get(ctx, metav1.NamespaceSystem)
	if err != nil {
		return "", c.failed(err, "read the UID of namespace %s", metav1.NamespaceSystem)
	}
	return string(ns.UID), nil
}

// failed adds the attempted action and the cluster to an error.
func (c *APIServer) failed(err error, format string, args ...any) error {
	return c.Explain(fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err))
}

// Explain adds the name of the cluster to an error, and advice if a right is missing.
// The text of the API server has the user, verb and resource.
func (c *APIServer) Explain(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%s: %w; %s", c.Name, err, c.grant())
	}
	return fmt.Errorf("%s: %w", c.Name, err)
}

func (c *APIServer) grant() string {
	return "have " + c.caller() + " granted the right, or use a context or --as USER that has it"
}

// caller returns the user of requests, if known.
func (c *APIServer) caller() string {
	if user := c.config.Impersonate.UserName; user != "" {
		return fmt.Sprintf("user %q", user)
	}
	return "your user"
}

// exists interprets the error of a Get.
func exists(err error) (bool, error) {
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
