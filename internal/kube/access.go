// Package kube makes the access to API servers: from the kubeconfig of the
// person who runs meshctl, from the pod that it runs in, or from a remote
// secret. Access is a *rest.Config; Client makes requests. A
// person's own kubeconfig may do what kubectl lets it do, plug-ins included; that of a remote secret is the word
// of others and passes remotesecret.Check first.
package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	_ "k8s.io/client-go/plugin/pkg/client/auth/oidc" // kubeconfigs of people may use it, as with kubectl
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"

	"github.com/meshctl/meshctl/internal/files"
)

// How fast one client may ask its API server.
const (
	qps   = 50
	burst = 100
)

// RequestTimeout is what a command waits for one answer of an API server.
const RequestTimeout = 15 * time.Second

// podDir is where the kubelet mounts the credential of a pod's service
// account.
const podDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// maxNamespaceFile bounds the file with the pod's namespace, in bytes.
const maxNamespaceFile = 1 << 10

// Options name the access that Load makes.
type Options struct {
	// Kubeconfig is the path of a file; empty means those of $KUBECONFIG, of which one
	// must exist, else ~/.kube/config, else, if there is none, the pod's own access.
	Kubeconfig string
	// Context is that of the kubeconfig; empty means its current one.
	Context string
	// As and AsGroups are whom to impersonate.
	As       string
	AsGroups []string
	// Timeout bounds a whole request, watches included; zero means none.
	Timeout   time.Duration
	UserAgent string
	LookupEnv func(string) (string, bool)

	// PodDir is where a pod finds its credential; empty is where the kubelet
	// mounts it.
	PodDir string
}

// Access is the way to one API server.
type Access struct {
	Config *rest.Config
	// Context is the kubeconfig's context; empty for a pod's own access.
	Context string
	// Namespace is that of the context or the pod, empty if it sets none.
	Namespace string
	InPod     bool
}

// ErrNoAccess is in the error of Load when there is neither a kubeconfig nor a
// pod's own access.
var ErrNoAccess = errors.New("no kubeconfig")

// Load makes the access that the options name.
func Load(o Options) (*Access, error) {
	access, err := o.load()
	if err != nil {
		return nil, err
	}
	c := access.Config
	c.QPS, c.Burst = qps, burst
	c.Timeout, c.UserAgent = o.Timeout, o.UserAgent
	if o.As != "" || len(o.AsGroups) > 0 {
		c.Impersonate = rest.ImpersonationConfig{UserName: o.As, Groups: o.AsGroups}
	}
	return access, nil
}

func (o Options) load() (*Access, error) {
	rules, named := o.rules()
	config, err := rules.Load()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if clientcmdapi.IsConfigEmpty(config) {
		switch {
		case named == "" && o.Context == "":
			return o.inPod()
		case named != "" && !slices.ContainsFunc(rules.GetLoadingPrecedence(), exists):
			return nil, fmt.Errorf("%s names %s, which does not exist", named, strings.Join(rules.GetLoadingPrecedence(), ", "))
		}
		return nil, fmt.Errorf("%w: %s has no clusters", ErrNoAccess, strings.Join(rules.GetLoadingPrecedence(), ", "))
	}
	name := o.Context
	if name == "" {
		name = config.CurrentContext
	}
	context := config.Contexts[name]
	switch {
	case name == "":
		return nil, fmt.Errorf("the kubeconfig has no current context; name one of %s", contextNames(config))
	case context == nil:
		return nil, fmt.Errorf("the kubeconfig has no context %q; it has %s", name, contextNames(config))
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: name}
	made, err := clientcmd.NewNonInteractiveClientConfig(*config, name, overrides, rules).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("context %s: %w", name, err)
	}
	return &Access{Config: made, Context: name, Namespace: context.Namespace}, nil
}

// rules are the files to read, and how the person named them; empty for the
// default place.
func (o Options) rules() (rules *clientcmd.ClientConfigLoadingRules, named string) {
	rules = &clientcmd.ClientConfigLoadingRules{ExplicitPath: o.Kubeconfig}
	if o.Kubeconfig != "" {
		return rules, "--kubeconfig"
	}
	if list, _ := o.LookupEnv(clientcmd.RecommendedConfigPathEnvVar); list != "" {
		rules.Precedence = filepath.SplitList(list)
		return rules, "$KUBECONFIG"
	}
	if home, _ := o.LookupEnv("HOME"); home != "" {
		rules.Precedence = []string{filepath.Join(home, ".kube", "config")}
	}
	return rules, ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func contextNames(config *clientcmdapi.Config) string {
	names := slices.Sorted(maps.Keys(config.Contexts))
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// Contexts returns the names of the kubeconfig's contexts, sorted.
func Contexts(o Options) ([]string, error) {
	rules, _ := o.rules()
	config, err := rules.Load()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return slices.Sorted(maps.Keys(config.Contexts)), nil
}

// inPod is the access of the service account of the pod that meshctl runs in.
// The token is read again as the kubelet renews it.
func (o Options) inPod() (*Access, error) {
	host, _ := o.LookupEnv("KUBERNETES_SERVICE_HOST")
	port, _ := o.LookupEnv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, fmt.Errorf("%w: name one with --kubeconfig or $KUBECONFIG", ErrNoAccess)
	}
	dir := o.PodDir
	if dir == "" {
		dir = podDir
	}
	config := &rest.Config{
		Host:            "https://" + net.JoinHostPort(host, port),
		BearerTokenFile: filepath.Join(dir, "token"),
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "ca.crt")},
	}
	for _, name := range []string{config.BearerTokenFile, config.CAFile} {
		if _, err := os.Stat(name); err != nil {
			return nil, fmt.Errorf("access of the pod: %w", err)
		}
	}
	namespace, err := files.Read(filepath.Join(dir, "namespace"), maxNamespaceFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("access of the pod: %w", err)
	}
	return &Access{Config: config, Namespace: strings.TrimSpace(string(namespace)), InPod: true}, nil
}

// WithLog makes client-go log to log what it does with the returned context.
func WithLog(ctx context.Context, log *slog.Logger) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(log.Handler()))
}
