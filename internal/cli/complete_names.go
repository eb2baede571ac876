package cli

import (
	"context"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/kube"
)

// CompletionTimeout is how long a person who pressed Tab waits at most.
const CompletionTimeout = 2 * time.Second

// plainName is what is offered to a shell: proxies name themselves, and some
// shells take what completes a word as it is.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`)

// CompleteNames offers as the only argument the names that ask returns. The
// command's flags have their values by then, also those of the environment and
// the configuration file. Without an answer there is nothing to offer and nothing
// is said.
func CompleteNames(env *Env, ask func(context.Context, *Env) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		quiet := *env
		quiet.Stderr = io.Discard
		if len(args) > 0 || configure(&quiet, cmd) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), CompletionTimeout)
		defer cancel()
		names, _ := ask(ctx, &quiet) // what of them there is
		slices.Sort(names)
		names = slices.DeleteFunc(slices.Compact(names), func(n string) bool {
			return !strings.HasPrefix(n, typed) || !plainName.MatchString(n)
		})
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNamespaces offers the namespaces of the kubeconfig's cluster for the flags
// of cmd that name one, unless the command knows better.
func completeNamespaces(env *Env, cmd *cobra.Command) {
	if cmd.Flags().Lookup("kubeconfig") == nil {
		return
	}
	for _, name := range []string{"namespace", "istioNamespace"} {
		if cmd.Flags().Lookup(name) != nil {
			CompleteFlag(env, cmd, name, func(ctx context.Context, env *Env) ([]string, error) {
				return namespacesOf(ctx, env, cmd.Flags())
			})
		}
	}
}

// CompleteFlag offers as the value of a flag the names that ask returns. The first
// call for a flag counts.
func CompleteFlag(env *Env, cmd *cobra.Command, flag string, ask func(context.Context, *Env) ([]string, error)) {
	// The error is that the flag does not exist or has a function.
	_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return CompleteNames(env, ask)(cmd, nil, typed)
	})
}

// namespacesOf returns the namespaces of the cluster that the flags name, of the first
// of several.
func namespacesOf(ctx context.Context, env *Env, flags *pflag.FlagSet) ([]string, error) {
	value := func(name string) string {
		f := flags.Lookup(name)
		if f == nil {
			return ""
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			first := append(list.GetSlice(), "")[0]
			return first[strings.Index(first, "=")+1:]
		}
		return f.Value.String()
	}
	k := KubeFlags{kubeconfig: value("kubeconfig"), as: value("as")}
	if groups, ok := flags.Lookup("as-group").Value.(pflag.SliceValue); ok {
		k.asGroups = groups.GetSlice()
	}
	access, err := kube.Load(k.Options(env, value("context")))
	if err != nil {
		return nil, err
	}
	finder, err := kube.NewPodFinder(access.Config)
	if err != nil {
		return nil, err
	}
	defer finder.Close()
	return finder.Namespaces(ctx)
}
