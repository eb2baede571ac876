package clustercmd

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

// kubeFlags hold the flags for access to API servers and for a namespace there, which
// has both of Istio's spellings.
type kubeFlags struct {
	cli.KubeFlags
	namespace, system string
}

// bind defines the flags. what names the objects in the namespace.
func (f *kubeFlags) bind(env *cli.Env, cmd *cobra.Command, what string) {
	f.Bind(cmd.Flags())
	f.NamespaceVar(env, cmd, &f.namespace, "namespace", "n", "", "`Namespace` of "+what+" (default the value of --istioNamespace; the namespace of the context is not used)")
	f.NamespaceVar(env, cmd, &f.system, "istioNamespace", "i", mesh.DefaultSystemNamespace, "`Namespace` of the control plane")
}

func (f *kubeFlags) theNamespace() (string, error) {
	namespace := f.system
	if f.namespace != "" {
		namespace = f.namespace
	}
	if !mesh.IsDNSLabel(namespace) {
		return "", cli.Usagef("namespace %q is not a DNS label", namespace)
	}
	return namespace, nil
}

// connectAll returns the clients of the contexts that a flag names.
func (f *kubeFlags) connectAll(env *cli.Env, flag string, contexts []string) ([]*multicluster.Cluster, error) {
	var out []*multicluster.Cluster
	for _, name := range f.Contexts(env, contexts) {
		if name == "" {
			return nil, cli.Usagef("--%s has an empty context", flag)
		}
		c, err := f.Connect(env, name)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// bindForce defines --force of a command that chooses an address of an API server.
func bindForce(fs *pflag.FlagSet, force *bool) {
	cli.ForceVar(fs, force, "With --api-server auto, take an address of this machine if no other one works")
}

// rbacFlags hold the flags for the role of a reader.
type rbacFlags struct {
	style       string
	namespaces  []string
	credentials []string
	noCallers   bool
}

func (f *rbacFlags) bind(fs *pflag.FlagSet) {
	cli.ChoiceVar(fs, &f.style, "rbac", "Role of the service account", string(create.Minimal), string(create.Istio))
	cli.MarkWeakening(fs, "rbac", string(create.Istio))
	fs.StringSliceVar(&f.namespaces, "namespaces", nil, "With --rbac minimal, grant read access to services in these `namespaces` only")
	fs.StringSliceVar(&f.credentials, "credential-namespaces", nil,
		"With --rbac minimal, grant read access to Secrets in these `namespaces`, for the certificates of gateways")
	fs.BoolVar(&f.noCallers, "no-callers", false,
		"With --rbac minimal, do not grant token reviews; for a cluster whose workloads do not connect to this control plane")
}

func (f *rbacFlags) scope() (create.Scope, error) {
	for _, namespace := range slices.Concat(f.namespaces, f.credentials) {
		if !mesh.IsDNSLabel(namespace) {
			return create.Scope{}, cli.Usagef("namespace %q is not a DNS label", namespace)
		}
	}
	if f.style == string(create.Istio) && (f.namespaces != nil || f.credentials != nil || f.noCallers) {
		return create.Scope{}, cli.Usagef("--namespaces, --credential-namespaces and --no-callers are for --rbac minimal")
	}
	return create.Scope{
		Style: create.Style(f.style), Namespaces: f.namespaces, CredentialNamespaces: f.credentials, Authenticate: !f.noCallers,
	}, nil
}
