package proxycmd

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

type pcListenersOptions struct {
	pcOptions
	filter       proxyconfig.ListenerFilter
	listenerType string
	verbose      bool
}

func newPCListenersCmd(env *cli.Env) *cobra.Command {
	var o pcListenersOptions
	cmd := &cobra.Command{
		Use:     "listeners [POD]",
		Aliases: []string{"listener", "l"},
		Short:   "Show the listeners: what connections are taken and where they lead",
		Long: `Show the listeners: one row for each filter chain with the connections that it
takes and where it leads, or with --verbose=false one row for each listener.`,
		Example: `  meshctl pc listeners --admin 127.0.0.1:15000
  meshctl pc listeners --admin 127.0.0.1:15000 --port 15006
  meshctl pc listeners -f dump.json --type HTTP --verbose=false`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	o.bind(env, cmd)
	fs.StringVar(&o.filter.Address, "address", "", "Only listeners on this `address`")
	portVar(fs, &o.filter.Port, "Only this port")
	listenerTypeVar(cmd, &o.listenerType, "Only this `type`")
	fs.BoolVar(&o.verbose, "verbose", true, "Show filter chains")
	return cmd
}

func (o *pcListenersOptions) run(ctx context.Context, env *cli.Env) error {
	var err error
	if o.filter.Type, err = parseListenerType(o.listenerType); err != nil {
		return err
	}
	return o.show(ctx, env, fetch.Listeners, func(r io.Reader, resources bool) (pcResult, error) {
		listeners, err := proxyconfig.ReadListeners(r, o.filter, resources)
		table := proxyconfig.ListenerTable
		if o.output.Wide() {
			table = proxyconfig.WideListenerTable
		}
		return pcResult{table: table(listeners, o.verbose), none: "No listeners match.", json: proxyconfig.ListenerResources(listeners)}, err
	})
}

// listenerTypes are those that a filter can name.
var listenerTypes = []string{string(proxyconfig.ListenerHTTP), string(proxyconfig.ListenerTCP), string(proxyconfig.ListenerHTTPTCP), string(proxyconfig.ListenerUnknown)}

func listenerTypeVar(cmd *cobra.Command, p *string, usage string) {
	cmd.Flags().StringVar(p, "type", "", usage+": "+cli.OrList(listenerTypes))
	cli.Suggest(cmd.Flags(), "type", listenerTypes...)
}

// parseListenerType reads the flag --type.
func parseListenerType(s string) (proxyconfig.ListenerType, error) {
	t := strings.ToUpper(s)
	if t != "" && !slices.Contains(listenerTypes, t) {
		return "", cli.Usagef("--type %q is none of %s", s, strings.Join(listenerTypes, ", "))
	}
	return proxyconfig.ListenerType(t), nil
}
