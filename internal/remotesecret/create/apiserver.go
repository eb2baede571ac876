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
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/token"
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

// Right is a kind of request that an API server allows or denies.
type Right struct {
	// Resource may be a subresource, such as serviceaccounts/token.
	Verb, Group, Resource string
	// Namespace is empty for all namespaces and for cluster-scoped resources.
	Namespace, Name string
	// Without describes the effect of a missing right.
	Without string
}

// String returns text such as "create secrets in istio-system".
func (r Right) String() string {
	s := r.Verb + " " + r.Resource
	if r.Group != "" {
		s += "." + r.Group
	}
	if r.Name != "" {
		s += " " + r.Name
	}
	if r.Namespace != "" {
		s += " in " + r.Namespace
	}
	return s
}

// withVerbs returns the right with each of the verbs.
func (r Right) withVerbs(verbs ...string) []Right {
	out := make([]Right, len(verbs))
	for i, verb := range verbs {
		out[i] = r
		out[i].Verb = verb
	}
	return out
}

// reviewsAtOnce bounds the concurrent access reviews at one API server.
const reviewsAtOnce = 8

// Missing returns the rights that the caller lacks.
func (c *APIServer) Missing(ctx context.Context, rights []Right) ([]Right, error) {
	return c.review(ctx, rights, func(ctx context.Context, a *authorizationv1.ResourceAttributes) (bool, error) {
		review, err := c.api.ReviewOwnAccess(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: a},
		})
		return review.Status.Allowed, err
	})
}

func (c *APIServer) missingOf(ctx context.Context, account Account, rights []Right) ([]Right, error) {
	const all = "system:serviceaccounts"
	return c.review(ctx, rights, func(ctx context.Context, a *authorizationv1.ResourceAttributes) (bool, error) {
		review, err := c.api.ReviewAccess(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				ResourceAttributes: a,
				User:               token.Subject(account.Namespace, account.Name),
				Groups:             []string{all, all + ":" + account.Namespace, "system:authenticated"},
			},
		})
		return review.Status.Allowed, err
	})
}

// review calls ask for each right and returns the denied ones.
func (c *APIServer) review(ctx context.Context, rights []Right,
	ask func(context.Context, *authorizationv1.ResourceAttributes) (bool, error),
) ([]Right, error) {
	allowed := make([]bool, len(rights))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(reviewsAtOnce)
	for i, r := range rights {
		group.Go(func() error {
			resource, subresource, _ := strings.Cut(r.Resource, "/")
			ok, err := ask(ctx, &authorizationv1.ResourceAttributes{
				Verb: r.Verb, Group: r.Group, Resource: resource, Subresource: subresource, Namespace: r.Namespace, Name: r.Name,
			})
			if err != nil {
				return c.failed(err, "review the right to %s", r)
			}
			allowed[i] = ok
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var missing []Right
	for i, r := range rights {
		if !allowed[i] {
			missing = append(missing, r)
		}
	}
	return missing, nil
}

// Require fails if the caller lacks any of the rights.
func (c *APIServer) Require(ctx context.Context, rights []Right) error {
	missing, err := c.Missing(ctx, rights)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range missing {
		errs = append(errs, fmt.Errorf("%s: %s may not %s; without it, %s", c.Name, c.caller(), r, r.Without))
	}
	if len(errs) > 0 {
		errs = append(errs, fmt.Errorf("%s: %s", c.Name, c.grant()))
	}
	return errors.Join(errs...)
}
