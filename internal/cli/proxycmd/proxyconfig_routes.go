package proxycmd

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

func newPCRoutesCmd(env *cli.Env) *cobra.Command {
	var o pcOptions
	var filter proxyconfig.RouteFilter
	var verbose bool
	cmd := o.command(env, &cobra.Command{
		Use:     "routes [POD]",
		Aliases: []string{"route", "r"},
		Short:   "Show the routes of a proxy",
		Long: `Show one row for each route of each virtual host, or with --verbose=false one row
for each route configuration. Routes that pass unknown hosts through are not shown.`,
		Example: `  meshctl pc routes --admin 127.0.0.1:15000
  meshctl pc routes --admin 127.0.0.1:15000 --name 5000 -o yaml`,
	}, pcRequest{path: fetch.Routes, read: func(_ context.Context, r io.Reader, resources bool) (pcResult, error) {
		routes, err := proxyconfig.ReadRoutes(r, filter, resources)
		return pcResult{table: proxyconfig.RouteTable(routes, verbose), none: "No routes match.", json: proxyconfig.RouteResources(routes)}, err
	}})
	fs := cmd.Flags()
	fs.StringVar(&filter.Name, "name", "", "Only the route configuration of this `name`")
	fs.BoolVar(&verbose, "verbose", true, "Show virtual hosts and routes")
	return cmd
}
