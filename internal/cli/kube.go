package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
)

// KubeFlags say how a command gets at API servers.
type KubeFlags struct {
	kubeconfig string
	as         string
	asGroups   []string
}

func (k *KubeFlags) Bind(fs *pflag.FlagSet) {
	fs.StringVarP(&k.kubeconfig, "kubeconfig", "c", "",
		"Kubeconfig `file` (default $KUBECONFIG, else ~/.kube/config, else the pod's own access)")
	fs.StringVar(&k.as, "as", "", "Act as this `user` of the API server")
	fs.StringArrayVar(&k.asGroups, "as-group", nil, "Act as a member of this `group`; may be repeated")
}

func (k *KubeFlags) Options(env *Env, context string) kube.Options {
	return kube.Options{
		Kubeconfig: k.kubeconfig, Context: context, As: k.as, AsGroups: k.asGroups,
		Timeout: kube.RequestTimeout, UserAgent: "meshctl/" + CurrentBuild().Version, LookupEnv: env.LookupEnv,
	}
}

// Connect makes the clients of a context, empty for the current one.
func (k *KubeFlags) Connect(env *Env, context string) (*multicluster.Cluster, error) {
	access, err := kube.Load(k.Options(env, context))
	if err != nil {
		return nil, err
	}
	return multicluster.Connect(access)
}

// CompleteContexts offers the contexts of the kubeconfig, also behind a comma.
func (k *KubeFlags) CompleteContexts(env *Env) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		names, err := kube.Contexts(k.Options(env, ""))
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return afterComma(names, typed), cobra.ShellCompDirectiveNoFileComp
	}
}

// ContextFlags bind the flags that name contexts, and complete them.
func (k *KubeFlags) ContextFlags(env *Env, cmd *cobra.Command, names ...string) {
	for _, name := range names {
		// The error is that the flag does not exist or has a function.
		_ = cmd.RegisterFlagCompletionFunc(name, k.CompleteContexts(env))
	}
}

// ContextsVar binds --context of a command that works on the clusters that it names,
// and --contexts, another name of it. In the environment and the configuration file
// only the latter counts: a context there is where other commands ask.
func ContextsVar(fs *pflag.FlagSet, p *[]string, usage string) {
	fs.StringSliceVar(p, "context", nil, usage)
	f := fs.Lookup("context")
	f.Annotations = map[string][]string{typedOnlyKey: nil}
	fs.Var(f.Value, "contexts", "Another name of --context")
	_ = fs.MarkHidden("contexts") // the error is that the flag does not exist
	Rivals(fs, "context", "contexts")
}

// NamespaceFlags bind the namespace of the control plane, in both of Istio's
// spellings.
type NamespaceFlags struct{ namespace, system string }

func (n *NamespaceFlags) Bind(fs *pflag.FlagSet, what string) {
	fs.StringVarP(&n.namespace, "namespace", "n", "", what+" (default that of --istioNamespace; a namespace of the context does not count)")
	fs.StringVarP(&n.system, "istioNamespace", "i", mesh.DefaultSystemNamespace, "Namespace of the control plane")
}

func (n *NamespaceFlags) Value() (string, error) {
	namespace := n.system
	if n.namespace != "" {
		namespace = n.namespace
	}
	if !mesh.IsDNSLabel(namespace) {
		return "", Usagef("namespace %q is not a DNS label", namespace)
	}
	return namespace, nil
}

// afterComma completes the last item of a list with names that it does not
// have yet.
func afterComma(names []string, typed string) []cobra.Completion {
	before := typed[:strings.LastIndex(typed, ",")+1]
	var out []cobra.Completion
	for _, name := range names {
		if !slices.Contains(strings.Split(before, ","), name) {
			out = append(out, before+name)
		}
	}
	return out
}
