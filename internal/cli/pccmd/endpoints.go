package pccmd

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
	Options
	filter proxyconfig.EndpointFilter
}

func newPCEndpointsCmd(env *cli.Env) *cobra.Command {
	var o pcEndpointsOptions
	cmd := o.Command(env, &cobra.Command{
		Use:     "endpoints [WORKLOAD]",
		Aliases: []string{"endpoint", "ep"},
		Short:   "Show the endpoints of a proxy with their health",
		Long: `Show the endpoints of each cluster with their health. An endpoint in another network
is shown as the gateway of that network. -o wide adds network, locality, priority,
weight, and for a gateway its cluster.

A saved dump is the response of /clusters?format=json or of /config_dump?include_eds.
Only the first response has outlier checks. Only the second response has network and
cluster. JSON and YAML show each cluster with a matching endpoint completely: its status
in /clusters, or its ClusterLoadAssignment in /config_dump.`,
		Example: `  meshctl pc endpoints --admin 127.0.0.1:15000
  meshctl pc endpoints --admin 127.0.0.1:15000 --envoy-cluster "outbound|5000||helloworld.sample.svc.cluster.local"
  meshctl pc endpoints web-1.apps -o wide
  meshctl pc endpoints -f clusters.json --status UNHEALTHY -o json`,
	}, Request{Path: fetch.Endpoints, Read: o.read})
	o.bindFilter(cmd.Flags())
	return cmd
}

func newPCAssignmentsCmd(env *cli.Env) *cobra.Command {
	var o pcEndpointsOptions
	cmd := o.Command(env, &cobra.Command{
		Use:   "eds [WORKLOAD]",
		Short: "Show the endpoints of a proxy with their localities",
		Long: `Show the endpoints of each cluster with their localities, from a config dump. -o wide
adds network, priority, weight, and for a gateway its cluster. A saved dump is the
response of /config_dump?include_eds. JSON and YAML show the whole assignment of each
cluster with a matching endpoint. For ejections by outlier detection use meshctl pc
endpoints.`,
		Example: `  meshctl pc eds --admin 127.0.0.1:15000 --envoy-cluster "outbound|5000||helloworld.sample.svc.cluster.local"
  meshctl pc eds -f dump.json --status UNHEALTHY -o json`,
	}, Request{Path: fetch.Assignments, Read: func(_ context.Context, r io.Reader, resources bool) (Result, error) {
		found, err := proxyconfig.ReadAssignments(r, o.filter, resources)
		table := proxyconfig.AssignmentTable(found, o.Output.Wide())
		return Result{Table: table, of: endpointEntry, JSON: proxyconfig.Resources(found)}, err
	}})
	o.bindFilter(cmd.Flags())
	return cmd
}

func (o *pcEndpointsOptions) bindFilter(fs *pflag.FlagSet) {
	f := &o.filter
	f.Seen = &o.seen
	fs.StringVar(&f.Cluster, "envoy-cluster", "", "Only the cluster of Envoy's configuration with this `name`")
	cli.Alias(fs, "envoy-cluster", "cluster")
	fs.StringVar(&f.Address, "address", "", "Only this `address`, with or without its port")
	PortVar(fs, &f.Port, "Only this `port`")
	cli.FilterVar(fs, &f.Status, "status", "Only this health `status`", proxyconfig.HealthStatuses()...)
}

// read reads endpoints from a response of /clusters or from a config dump.
func (o *pcEndpointsOptions) read(ctx context.Context, r io.Reader, resources bool) (result Result, err error) {
	result.of = endpointEntry
	in := bufio.NewReader(r)
	var endpoints []proxyconfig.Endpoint
	switch {
	case !o.Running() && proxyconfig.IsConfigDump(in):
		var assignments []proxyconfig.Assignment
		assignments, err = proxyconfig.ReadAssignments(in, o.filter, resources)
		if missing, ok := errors.AsType[*proxyconfig.MissingError](err); ok {
			missing.Why += ", and so has " + string(fetch.Endpoints)
		}
		result.JSON, endpoints = proxyconfig.Resources(assignments), proxyconfig.EndpointsOf(assignments)
	case resources:
		result.JSON, err = proxyconfig.ReadClusterStatuses(in, o.filter)
	default:
		endpoints, err = proxyconfig.ReadEndpoints(in, o.filter)
	}
	if err == nil && o.Output.Wide() && o.Running() {
		err = o.place(ctx, endpoints)
	}
	result.Table = proxyconfig.EndpointTable(endpoints, o.Output.Wide())
	if errors.Is(err, proxyconfig.ErrNoClusters) {
		result.of, result.None = "", "The Envoy has no clusters"
		err = o.checkEnvoy(ctx)
	}
	return result, err
}

// place adds the data about endpoints in the config dump of a running Envoy.
func (o *pcEndpointsOptions) place(ctx context.Context, endpoints []proxyconfig.Endpoint) error {
	return o.Source.Read(ctx, fetch.All, func(r io.Reader) error {
		assignments, err := proxyconfig.ReadAssignments(r, proxyconfig.EndpointFilter{Cluster: o.filter.Cluster}, false)
		proxyconfig.Place(endpoints, assignments)
		return err
	})
}

// checkEnvoy returns an error if the server of an empty response is not an Envoy.
func (o *pcEndpointsOptions) checkEnvoy(ctx context.Context) error {
	if !o.Running() {
		return nil
	}
	if err := o.Source.Read(ctx, fetch.ServerInfo, proxyconfig.CheckServerInfo); err != nil {
		return fmt.Errorf("%w: %w (%w)", proxyconfig.ErrNoClusters, ErrNotEnvoy, err)
	}
	return nil
}
