package proxycmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

type pcEndpointsOptions struct {
	pcOptions
	filter proxyconfig.EndpointFilter
}

func newPCEndpointsCmd(env *cli.Env) *cobra.Command {
	var o pcEndpointsOptions
	cmd := &cobra.Command{
		Use:     "endpoints [POD]",
		Aliases: []string{"endpoint", "ep"},
		Short:   "Show the hosts of each cluster and their health",
		Long: `Show the hosts of each cluster and their health. An endpoint in another network
is shown as the gateway of that network. -o wide adds network, locality, priority
and weight, and the cluster whose gateway an endpoint is.

A saved dump is the output of /clusters?format=json, or of /config_dump?include_eds,
which has no outlier checks; network and gateway are in the latter alone. JSON and YAML
hold the whole status, or assignment, of each cluster that has an endpoint which the
filters select.`,
		Example: `  meshctl pc endpoints --admin 127.0.0.1:15000
  meshctl pc endpoints --admin 127.0.0.1:15000 --cluster "outbound|5000||helloworld.sample.svc.cluster.local"
  meshctl pc endpoints web-1.apps -o wide
  meshctl pc endpoints -f clusters.json --status UNHEALTHY -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	o.bind(env, cmd)
	bindEndpointFilter(fs, &o.filter)
	return cmd
}

func bindEndpointFilter(fs *pflag.FlagSet, f *proxyconfig.EndpointFilter) {
	fs.StringVar(&f.Cluster, "cluster", "", "Only this cluster, by its whole `name`")
	fs.StringVar(&f.Address, "address", "", "Only this `address`, with or without its port")
	portVar(fs, &f.Port, "Only this port")
	fs.StringVar(&f.Status, "status", "", "Only this health `status`, such as HEALTHY or UNHEALTHY")
	cli.Suggest(fs, "status", proxyconfig.HealthStatuses()...)
}

func (o *pcEndpointsOptions) run(ctx context.Context, env *cli.Env) error {
	if err := o.filter.CheckStatus(); err != nil {
		return cli.Usagef("--status: %w", err)
	}
	return o.show(ctx, env, fetch.Endpoints, func(r io.Reader, resources bool) (result pcResult, err error) {
		result.none = "No endpoints match."
		in := bufio.NewReader(r)
		var endpoints []proxyconfig.Endpoint
		switch {
		case !o.running() && proxyconfig.IsConfigDump(in):
			var assignments []proxyconfig.Assignment
			assignments, err = proxyconfig.ReadAssignments(in, o.filter, resources)
			if missing, ok := errors.AsType[*proxyconfig.MissingError](err); ok {
				missing.Why += ", and so has " + string(fetch.Endpoints)
			}
			result.json, endpoints = proxyconfig.AssignmentResources(assignments), proxyconfig.EndpointsOf(assignments)
		case resources:
			result.json, err = proxyconfig.ReadClusterStatuses(in, o.filter)
		default:
			endpoints, err = proxyconfig.ReadEndpoints(in, o.filter)
		}
		if err == nil && o.output.Wide() && o.running() {
			err = o.place(ctx, endpoints)
		}
		result.table = proxyconfig.EndpointTable(endpoints)
		if o.output.Wide() {
			result.table = proxyconfig.WideEndpointTable(endpoints)
		}
		if errors.Is(err, proxyconfig.ErrNoClusters) {
			result.none = "The Envoy has no clusters."
			err = o.checkEnvoy(ctx)
		}
		return result, err
	})
}

// place adds what a running Envoy's configuration has of the endpoints.
func (o *pcEndpointsOptions) place(ctx context.Context, endpoints []proxyconfig.Endpoint) error {
	return o.source.Read(ctx, fetch.All, func(r io.Reader) error {
		assignments, err := proxyconfig.ReadAssignments(r, proxyconfig.EndpointFilter{Cluster: o.filter.Cluster}, false)
		proxyconfig.Place(endpoints, assignments)
		return err
	})
}

// checkEnvoy reports that what answers does not say that it is an Envoy.
func (o *pcEndpointsOptions) checkEnvoy(ctx context.Context) error {
	if !o.running() {
		return nil
	}
	if err := o.source.Read(ctx, fetch.ServerInfo, proxyconfig.CheckServerInfo); err != nil {
		return fmt.Errorf("%w: %w (%w)", proxyconfig.ErrNoClusters, errNotEnvoy, err)
	}
	return nil
}
