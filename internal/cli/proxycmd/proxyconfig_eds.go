package proxycmd

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

type pcAssignmentsOptions struct {
	pcOptions
	filter proxyconfig.EndpointFilter
}

func newPCAssignmentsCmd(env *cli.Env) *cobra.Command {
	var o pcAssignmentsOptions
	cmd := &cobra.Command{
		Use:   "eds [POD]",
		Short: "Show the endpoints of each cluster with their localities",
		Long: `Show the endpoints of each cluster with their localities, from a config dump; -o wide
adds network, priority and weight, and the cluster whose gateway an endpoint is. A
saved one is the output of /config_dump?include_eds. JSON and YAML hold the
whole assignment of each cluster that has an endpoint which the filters select.
Whether outlier detection ejected an endpoint is in meshctl pc endpoints.`,
		Example: `  meshctl pc eds --admin 127.0.0.1:15000 --cluster "outbound|5000||helloworld.sample.svc.cluster.local"
  meshctl pc eds -f dump.json --status UNHEALTHY -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	o.bind(env, cmd)
	bindEndpointFilter(fs, &o.filter)
	return cmd
}

func (o *pcAssignmentsOptions) run(ctx context.Context, env *cli.Env) error {
	if err := o.filter.CheckStatus(); err != nil {
		return cli.Usagef("--status: %w", err)
	}
	return o.show(ctx, env, fetch.Assignments, func(r io.Reader, resources bool) (pcResult, error) {
		found, err := proxyconfig.ReadAssignments(r, o.filter, resources)
		table := proxyconfig.AssignmentTable
		if o.output.Wide() {
			table = proxyconfig.WideAssignmentTable
		}
		return pcResult{table: table(found), none: "No endpoints match.", json: proxyconfig.AssignmentResources(found)}, err
	})
}
