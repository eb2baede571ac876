package proxycmd

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

type pcClustersOptions struct {
	pcOptions
	filter    proxyconfig.ClusterFilter
	direction string
}

func newPCClustersCmd(env *cli.Env) *cobra.Command {
	var o pcClustersOptions
	cmd := &cobra.Command{
		Use:     "clusters [POD]",
		Aliases: []string{"cluster", "c"},
		Short:   "Show the clusters: the services that the proxy knows",
		Long: `Show the clusters: the services that the proxy knows. The filters compare the
parts of a cluster's name, <direction>|<port>|<subset>|<fqdn>, or of its SNI
form. --fqdn also takes some labels of the host that follow each other.`,
		Example: `  meshctl pc clusters --admin 127.0.0.1:15000
  meshctl pc clusters --admin 127.0.0.1:15000 --fqdn helloworld.sample --port 5000
  meshctl pc clusters -f dump.json --direction inbound -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	o.bind(env, cmd)
	fs.StringVar(&o.filter.FQDN, "fqdn", "", "Only this `host`, or hosts with these labels")
	portVar(fs, &o.filter.Port, "Only this service port")
	fs.StringVar(&o.filter.Subset, "subset", "", "Only this `subset` of a DestinationRule")
	fs.StringVar(&o.direction, "direction", "", "Only this `direction`, inbound or outbound")
	cli.Suggest(fs, "direction", string(mesh.Inbound), string(mesh.Outbound))
	return cmd
}

func (o *pcClustersOptions) run(ctx context.Context, env *cli.Env) error {
	var err error
	if o.filter.Direction, err = parseDirection(o.direction); err != nil {
		return err
	}
	return o.show(ctx, env, fetch.Clusters, func(r io.Reader, resources bool) (pcResult, error) {
		clusters, err := proxyconfig.ReadClusters(r, o.filter, resources)
		table := proxyconfig.ClusterTable
		if o.output.Wide() {
			table = proxyconfig.WideClusterTable
		}
		return pcResult{table: table(clusters), none: "No clusters match.", json: proxyconfig.ClusterResources(clusters)}, err
	})
}

// parseDirection reads the flag --direction.
func parseDirection(s string) (mesh.Direction, error) {
	switch d := mesh.Direction(strings.ToLower(s)); d {
	case "", mesh.Inbound, mesh.Outbound:
		return d, nil
	}
	return "", cli.Usagef("--direction %q is neither inbound nor outbound", s)
}
