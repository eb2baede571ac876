// Package kube gives access to Kubernetes API servers. Load reads it from a kubeconfig or
// from the pod that meshctl runs in, Remote from a remote secret; both return a
// *rest.Config. Client makes typed requests, PodFinder finds the pods of a workload, and
// PodPort connects to a port of a pod.
//
// A user's own kubeconfig may do everything that it may do with kubectl, including
// plug-ins. The kubeconfig of a remote secret is not trusted: it must pass
// remotesecret.Check.
package kube

import (
	"cmp"
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

// The rate limit of one client, in requests per second.
const (
	qps   = 50
	burst = 100
)

// RequestTimeout is the time that a command waits for one response of an API server.
const RequestTimeout = 15 * time.Second

// podDir is the directory where the kubelet mounts the credential of a pod's service
// account.
const podDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// maxNamespaceFile bounds the file with the pod's namespace, in bytes.
const maxNamespaceFile = 1 << 10

// Options selects the access that Load returns.
type Options struct {
	// Kubeconfig is the path of a file. Empty means the files of $KUBECONFIG, of which
	// one must exist, else ~/.kube/config, else the pod's own access.
	Kubeconfig string
	// Context is a context of the kubeconfig; empty means its current context.
	Context string
	// As and AsGroups are the user and the groups to impersonate.
	As       string
	AsGroups []string
	// Timeout bounds a whole request, watches included; zero means none.
	Timeout   time.Duration
	UserAgent string
	LookupEnv func(string) (string, bool)
	// Warn gets each warning of the API server once. Nil logs them.
	Warn func(string)

	// PodDir is the directory with the pod's credential; empty means the kubelet's
	// default.
	PodDir string
}

// Access is the access to one API server.
type Access struct {
	Config *rest.Config
	// Context is the kubeconfig's context; empty for a pod's own access.
	Context string
	// Namespace is the namespace of the context or the pod, empty if there is none.
	Namespace string
	InPod     bool
}

// ErrNoAccess reports that there is neither a kubeconfig nor a pod's own access.
var ErrNoAccess = errors.New("no kubeconfig")

// Load returns the access that the options select.
func Load(o Options) (*Access, error) {
	access, err := o.load()
	if err != nil {
		return nil, err
	}
	c := access.Config
	c.QPS, c.Burst = qps, burst
	c.Timeout, c.UserAgent = o.Timeout, o.UserAgent
	if o.Warn != nil {
		c.WarningHandler = &warnings{warn: o.Warn, known: map[string]bool{}}
	}
	if o.As != "" || len(o.AsGroups) > 0 {
		c.Impersonate = rest.ImpersonationConfig{UserName: o.As, Groups: o.AsGroups}
	}
	return access, nil
}

func (o Options) load() (*Access, error) {
	rules, config, err := o.read()
	if err != nil {
		return nil, err
	}
	if _, named := o.rules(); clientcmdapi.IsConfigEmpty(config) {
		switch {
		case named == "" && o.Context == "":
			return o.inPod()
		case named != "" && !slices.ContainsFunc(rules.GetLoadingPrecedence(), exists):
			return nil, fmt.Errorf("%s names %s, which does not exist", named, strings.Join(rules.GetLoadingPrecedence(), ", "))
		}
		return nil, fmt.Errorf("%w: %s has no clusters", ErrNoAccess, strings.Join(rules.GetLoadingPrecedence(), ", "))
	}
	name := cmp.Or(o.Context, config.CurrentContext)
	context := config.Contexts[name]
	switch {
	case name == "":
		return nil, fmt.Errorf("the kubeconfig has no current context; name one of %s", contextNames(config))
	case context == nil:
		return nil, fmt.Errorf("the kubeconfig has no context %q; it has %s", name, contextNames(config))
	}
	made, err := clientConfig(rules, config, name)
	if err != nil {
		return nil, fmt.Errorf("context %s: %w", name, err)
	}
	return &Access{Config: made, Context: name, Namespace: context.Namespace}, nil
}

// read reads the kubeconfig.
func (o Options) read() (*clientcmd.ClientConfigLoadingRules, *clientcmdapi.Config, error) {
	rules, _ := o.rules()
	config, err := rules.Load()
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return rules, config, nil
}

// rules returns the files to read, and the flag or variable that names them; empty for
// the default file.
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

// inPod returns the access of the service account of the pod that meshctl runs in. The
// client reads the token again when the kubelet renews it.
func (o Options) inPod() (*Access, error) {
	host, _ := o.LookupEnv("KUBERNETES_SERVICE_HOST")
	port, _ := o.LookupEnv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, fmt.Errorf("%w: name one with --kubeconfig or $KUBECONFIG", ErrNoAccess)
	}
	dir := cmp.Or(o.PodDir, podDir)
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

// WithLog returns a context with which client-go logs to log.
func WithLog(ctx context.Context, log *slog.Logger) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(log.Handler()))
}
