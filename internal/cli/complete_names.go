package cli

import (
	"context"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/server/xds/flight"
)

// completionTimeout is how long a person who pressed Tab waits at most.
const completionTimeout = 2 * time.Second

// plainName is what is offered to a shell: proxies name themselves, and some
// shells take what completes a word as it is.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`)

// completeNames offers as the only argument the names that ask returns. The
// command's flags have their values by then, also those of the environment and
// the configuration file. Without an answer there is nothing to offer and nothing
// is said.
func completeNames(env *Env, ask func(context.Context, *Env) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		quiet := *env
		quiet.Stderr = io.Discard
		if len(args) > 0 || configure(&quiet, cmd) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		names, _ := ask(ctx, &quiet) // what of them there is
		slices.Sort(names)
		names = slices.DeleteFunc(slices.Compact(names), func(n string) bool {
			return !strings.HasPrefix(n, typed) || !plainName.MatchString(n)
		})
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// proxies are the names of those that are or were connected.
func (o *xdsOptions) proxies(ctx context.Context, env *Env) ([]string, error) {
	var streams []flight.Info
	if err := o.get(ctx, env, "history", nil, &streams); err != nil {
		return nil, err
	}
	var names []string
	for _, s := range streams {
		names = append(names, s.Proxy)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// pages are the names of the status pages.
func (o *xdsOptions) pages(ctx context.Context, env *Env) (names []string, err error) {
	err = o.debug(ctx, env, "list", nil, &names)
	return names, err
}
