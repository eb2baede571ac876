package cli

import (
	"context"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/replicas"
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

// completeProxies returns the names of the proxies that are or were connected.
func (o *xdsOptions) completeProxies(ctx context.Context, env *Env) ([]string, error) {
	found, err := o.replicas.find(ctx, env, completionTimeout)
	if err != nil {
		return nil, err
	}
	defer closeReplicas(found)
	return o.proxyNames(ctx, found)
}

// proxyNames returns the names of the proxies that are or were connected to
// replicas.
func (o *xdsOptions) proxyNames(ctx context.Context, found []*replicas.Replica) ([]string, error) {
	answers, err := askPages[[]flight.Info](ctx, &o.replicas, found, "xds/history", nil, nil)
	var names []string
	for _, s := range each(answers) {
		names = append(names, s.Thing.Proxy)
	}
	slices.Sort(names)
	return slices.Compact(names), err
}
