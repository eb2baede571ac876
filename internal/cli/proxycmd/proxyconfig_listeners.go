package proxycmd

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

func newPCListenersCmd(env *cli.Env) *cobra.Command {
	var o pcOptions
	var filter proxyconfig.ListenerFilter
	var listenerType string
	var verbose bool
	cmd := o.command(env, &cobra.Command{
		Use:     "listeners [POD]",
		Aliases: []string{"listener", "l"},
		Short:   "Show the listeners of a proxy",
		Long: `Show one row for each filter chain of each listener: the connections that it matches
and their destination, or with --verbose=false one row for each listener.`,
		Example: `  meshctl pc listeners --admin 127.0.0.1:15000
  meshctl pc listeners --admin 127.0.0.1:15000 --port 15006
  meshctl pc listeners -f dump.json --type HTTP --verbose=false`,
	}, pcRequest{
		path: fetch.Listeners,
		check: func() (err error) {
			filter.Type, err = parseListenerType(listenerType)
			return err
		},
		read: func(_ context.Context, r io.Reader, resources bool) (pcResult, error) {
			listeners, err := proxyconfig.ReadListeners(r, filter, resources)
			table := proxyconfig.ListenerTable
			if o.output.Wide() {
				table = proxyconfig.WideListenerTable
			}
			return pcResult{table: table(listeners, verbose), none: "No listeners match.", json: proxyconfig.ListenerResources(listeners)}, err
		},
	})
	fs := cmd.Flags()
	fs.StringVar(&filter.Address, "address", "", "Only listeners on this `address`")
	portVar(fs, &filter.Port, "Only this port")
	listenerTypeVar(fs, &listenerType, "Only this `type`")
	fs.BoolVar(&verbose, "verbose", true, "Show filter chains")
	return cmd
}

// listenerTypes lists the types that a filter can name.
var listenerTypes = []string{string(proxyconfig.ListenerHTTP), string(proxyconfig.ListenerTCP), string(proxyconfig.ListenerHTTPTCP), string(proxyconfig.ListenerUnknown)}

func listenerTypeVar(fs *pflag.FlagSet, p *string, usage string) {
	fs.StringVar(p, "type", "", usage+": "+cli.OrList(listenerTypes))
	cli.Suggest(fs, "type", listenerTypes...)
}

func parseListenerType(s string) (proxyconfig.ListenerType, error) {
	t := strings.ToUpper(s)
	if t != "" && !slices.Contains(listenerTypes, t) {
		return "", cli.Usagef("--type %q is none of %s", s, strings.Join(listenerTypes, ", "))
	}
	return proxyconfig.ListenerType(t), nil
}
