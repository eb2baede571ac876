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
)

// valuesKey is the annotation of a flag with the values that complete it.
const valuesKey = "meshctl_values"

// Suggest sets the values that complete a flag. The flag takes other values, too.
func Suggest(fs *pflag.FlagSet, flag string, values ...string) {
	_ = fs.SetAnnotation(flag, valuesKey, values) // fails for an unknown flag only
}

// DirVar defines a flag that takes a directory.
func DirVar(fs *pflag.FlagSet, p *string, name, usage string) {
	fs.StringVar(p, name, "", usage)
	_ = cobra.MarkFlagDirname(fs, name) // fails for an unknown flag only
}

// SocketDirVar defines the flag for the folder of Unix sockets that objects may name.
func SocketDirVar(fs *pflag.FlagSet, p *string) {
	DirVar(fs, p, "socket-dir", "`Directory` on the machines of proxies below which objects in YAML may name Unix sockets (default none)")
}

// completeFlagValues registers the values that Suggest set.
func completeFlagValues(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) { // without persistent flags before the command is parsed
		if values := f.Annotations[valuesKey]; len(values) > 0 {
			// Fails for a flag that has a completion function already.
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		}
	})
}

// completionTimeout bounds the wait for completions.
const completionTimeout = 2 * time.Second

// plainName matches the names that are offered to a shell. Proxies choose their own
// names, and some shells evaluate a completion.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`)

// Names returns names for completion.
type Names func(context.Context, *Env) ([]string, error)

// CompleteNames completes the only argument of a command with names. Flags have their
// values by then, also from the environment and the configuration file. Errors and
// messages are dropped.
func CompleteNames(env *Env, ask Names) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		quiet := *env
		quiet.Stderr = io.Discard
		if len(args) > 0 || configure(&quiet, cmd) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		names, _ := ask(ctx, &quiet) // some replicas may have answered
		slices.Sort(names)
		names = slices.DeleteFunc(slices.Compact(names), func(n string) bool {
			return !strings.HasPrefix(n, typed) || !plainName.MatchString(n)
		})
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteFlag completes a flag with names.
func CompleteFlag(env *Env, cmd *cobra.Command, flag string, ask Names) {
	// Fails for an unknown flag, or one that has a completion function already.
	_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return CompleteNames(env, ask)(cmd, nil, typed)
	})
}
