package proxycmd

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

type pcRoutesOptions struct {
	pcOptions
	filter  proxyconfig.RouteFilter
	verbose bool
}

func newPCRoutesCmd(env *cli.Env) *cobra.Command {
	var o pcRoutesOptions
	cmd := &cobra.Command{
		Use:     "routes [POD]",
		Aliases: []string{"route", "r"},
		Short:   "Show the routes: hosts, paths and the VirtualService behind them",
		Long: `Show the routes: one row for each route of each virtual host, or with
--verbose=false one row for each route configuration. Routes that pass unknown
hosts through unchanged are not shown.`,
		Example: `  meshctl pc routes --admin 127.0.0.1:15000
  meshctl pc routes --admin 127.0.0.1:15000 --name 5000 -o yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	o.bind(env, cmd)
	fs.StringVar(&o.filter.Name, "name", "", "Only the route configuration of this `name`")
	fs.BoolVar(&o.verbose, "verbose", true, "Show virtual hosts and routes")
	return cmd
}

func (o *pcRoutesOptions) run(ctx context.Context, env *cli.Env) error {
	return o.show(ctx, env, fetch.Routes, func(r io.Reader, resources bool) (pcResult, error) {
		routes, err := proxyconfig.ReadRoutes(r, o.filter, resources)
		return pcResult{table: proxyconfig.RouteTable(routes, o.verbose), none: "No routes match.", json: proxyconfig.RouteResources(routes)}, err
	})
}
