package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/output"
)

// KubeFlags hold the flags for access to API servers.
type KubeFlags struct {
	kubeconfig string
	as         string
	asGroups   []string
}

// Bind defines the flags.
func (k *KubeFlags) Bind(fs *pflag.FlagSet) {
	fs.StringVarP(&k.kubeconfig, "kubeconfig", "c", "",
		"Kubeconfig `file` (default $KUBECONFIG, else ~/.kube/config, else the credential of the pod)")
	fs.StringVar(&k.as, "as", "", "`User` to impersonate at the API server")
	fs.StringArrayVar(&k.asGroups, "as-group", nil, "`Group` to impersonate; may be repeated")
}

// CommandFlags returns the flags by which commands of kubectl and meshctl use a context, "" for
// the current one, as these flags do.
func (k *KubeFlags) CommandFlags(context string) string {
	var out []string
	for _, f := range []struct{ name, value string }{{"kubeconfig", k.kubeconfig}, {"context", context}} {
		if f.value != "" {
			out = append(out, "--"+f.name, output.ShellWord(f.value))
		}
	}
	return strings.Join(out, " ")
}

// ContextVar defines a flag that takes a context of the kubeconfig.
func (k *KubeFlags) ContextVar(env *Env, cmd *cobra.Command, p *string, name, usage string) {
	cmd.Flags().StringVar(p, name, "", usage)
	k.completeContext(env, cmd, name)
}

// ContextListVar defines a flag that takes contexts of the kubeconfig.
func (k *KubeFlags) ContextListVar(env *Env, cmd *cobra.Command, p *[]string, name, usage string) {
	cmd.Flags().StringSliceVar(p, name, nil, usage)
	k.completeContext(env, cmd, name)
}

// MeshContextsVar defines --context of a command that works on all clusters that it
// names, and the alias --contexts. The environment and the configuration file set only
// the alias: their "context" is the one cluster that other commands ask.
func (k *KubeFlags) MeshContextsVar(env *Env, cmd *cobra.Command, p *[]string, usage string) {
	k.ContextListVar(env, cmd, p, "context", usage)
	Rename(cmd.Flags(), "context", "contexts")
	k.completeContext(env, cmd, "contexts")
}

// ClusterContext is a context of the kubeconfig, and the name of its cluster in the mesh.
type ClusterContext struct{ Cluster, Context string }

// ClusterContexts reads the values of MeshContextsVar, CONTEXT or CLUSTER=CONTEXT. The name of a
// context may have commas, at which the flag was split, and equal signs.
func (k *KubeFlags) ClusterContexts(env *Env, values []string) []ClusterContext {
	known := k.knownContexts(env)
	var out []ClusterContext
	for _, text := range joinContexts(values, func(text string) bool {
		return slices.Contains(known, text) || slices.Contains(known, afterCluster(text))
	}) {
		c := ClusterContext{text, text}
		if context := afterCluster(text); context != text && (slices.Contains(known, context) || !slices.Contains(known, text)) {
			c = ClusterContext{strings.TrimSuffix(text, "="+context), context}
		}
		out = append(out, c)
	}
	return out
}

// Contexts reads the values of ContextListVar. The name of a context may have commas, at which the
// flag was split.
func (k *KubeFlags) Contexts(env *Env, values []string) []string {
	known := k.knownContexts(env)
	return joinContexts(values, func(text string) bool { return slices.Contains(known, text) })
}

// knownContexts returns the contexts of the kubeconfig, none if it cannot be read: connecting reports
// the error.
func (k *KubeFlags) knownContexts(env *Env) []string {
	known, err := kube.Contexts(k.Options(env, ""))
	if err != nil {
		return nil
	}
	return known
}

// afterCluster returns the context of CLUSTER=CONTEXT.
func afterCluster(text string) string { return text[strings.Index(text, "=")+1:] }

// joinContexts joins consecutive values that only together name a context.
func joinContexts(values []string, isContext func(string) bool) []string {
	var out []string
	for len(values) > 0 {
		n := 1
		for n <= len(values) && !isContext(strings.Join(values[:n], ",")) {
			n++
		}
		if n > len(values) {
			n = 1 // no context
		}
		out, values = append(out, strings.Join(values[:n], ",")), values[n:]
	}
	return out
}

// NamespaceVar defines a flag that takes a namespace of the cluster that --context
// names, or of the first one of several.
func (k *KubeFlags) NamespaceVar(env *Env, cmd *cobra.Command, p *string, name, short, value, usage string) {
	cmd.Flags().StringVarP(p, name, short, value, usage)
	CompleteFlag(env, cmd, name, func(ctx context.Context, env *Env) ([]string, error) {
		access, err := kube.Load(k.Options(env, firstContext(cmd.Flags())))
		if err != nil {
			return nil, err
		}
		finder, err := kube.NewPodFinder(access.Config)
		if err != nil {
			return nil, err
		}
		defer finder.Close()
		return finder.Namespaces(ctx)
	})
}

// firstContext returns the value of --context, the first of several, without the
// cluster's name in CLUSTER=CONTEXT.
func firstContext(fs *pflag.FlagSet) string {
	f := fs.Lookup("context")
	if f == nil {
		return ""
	}
	list, ok := f.Value.(pflag.SliceValue)
	if !ok {
		return f.Value.String()
	}
	first := append(list.GetSlice(), "")[0]
	return afterCluster(first)
}

// Options returns the access to a context, empty for the current one.
func (k *KubeFlags) Options(env *Env, context string) kube.Options {
	return kube.Options{
		Kubeconfig: k.kubeconfig, Context: context, As: k.as, AsGroups: k.asGroups,
		Timeout: kube.RequestTimeout, UserAgent: "meshctl/" + CurrentBuild().Version, LookupEnv: env.LookupEnv,
		Warn: func(text string) { env.Warnf("the API server says: %s", text) },
	}
}

// Connect returns the clients of a context, empty for the current one.
func (k *KubeFlags) Connect(env *Env, context string) (*multicluster.Cluster, error) {
	access, err := kube.Load(k.Options(env, context))
	if err != nil {
		return nil, err
	}
	return multicluster.Connect(access)
}

func (k *KubeFlags) completeContext(env *Env, cmd *cobra.Command, flag string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, k.CompleteContexts(env)) // fails for an unknown flag only
}

// CompleteContexts completes a context of the kubeconfig, or the last one of a list.
func (k *KubeFlags) CompleteContexts(env *Env) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		names, err := kube.Contexts(k.Options(env, ""))
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		list := typed[:strings.LastIndex(typed, ",")+1]
		var out []cobra.Completion
		for _, name := range names {
			if !slices.Contains(strings.Split(list, ","), name) {
				out = append(out, list+name)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
