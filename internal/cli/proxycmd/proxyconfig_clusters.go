package proxycmd

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

func newPCClustersCmd(env *cli.Env) *cobra.Command {
	var o pcOptions
	var filter proxyconfig.ClusterFilter
	var direction string
	cmd := o.command(env, &cobra.Command{
		Use:     "clusters [POD]",
		Aliases: []string{"cluster", "c"},
		Short:   "Show the clusters of a proxy",
		Long: `Show the clusters of a proxy: the services that it knows. Filters match the parts of
the cluster name, <direction>|<port>|<subset>|<fqdn>, also in its SNI form. --fqdn
also takes consecutive labels of the host.`,
		Example: `  meshctl pc clusters --admin 127.0.0.1:15000
  meshctl pc clusters --admin 127.0.0.1:15000 --fqdn helloworld.sample --port 5000
  meshctl pc clusters -f dump.json --direction inbound -o json`,
	}, pcRequest{
		path: fetch.Clusters,
		check: func() (err error) {
			filter.Direction, err = parseDirection(direction)
			return err
		},
		read: func(_ context.Context, r io.Reader, resources bool) (pcResult, error) {
			clusters, err := proxyconfig.ReadClusters(r, filter, resources)
			table := proxyconfig.ClusterTable
			if o.output.Wide() {
				table = proxyconfig.WideClusterTable
			}
			return pcResult{table: table(clusters), none: "No clusters match.", json: proxyconfig.ClusterResources(clusters)}, err
		},
	})
	fs := cmd.Flags()
	fs.StringVar(&filter.FQDN, "fqdn", "", "Only this `host`, or hosts with these labels")
	portVar(fs, &filter.Port, "Only this service port")
	fs.StringVar(&filter.Subset, "subset", "", "Only this `subset` of a DestinationRule")
	directionVar(fs, &direction, "Only this `direction`, inbound or outbound")
	return cmd
}

func directionVar(fs *pflag.FlagSet, p *string, usage string) {
	fs.StringVar(p, "direction", "", usage)
	cli.Suggest(fs, "direction", string(mesh.Inbound), string(mesh.Outbound))
}

func parseDirection(s string) (mesh.Direction, error) {
	switch d := mesh.Direction(strings.ToLower(s)); d {
	case "", mesh.Inbound, mesh.Outbound:
		return d, nil
	}
	return "", cli.Usagef("--direction %q is neither inbound nor outbound", s)
}
