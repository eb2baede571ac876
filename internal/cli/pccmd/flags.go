package pccmd

import (
	"context"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

func newPCClustersCmd(env *cli.Env) *cobra.Command {
	var o Options
	var filter proxyconfig.ClusterFilter
	cmd := o.Command(env, &cobra.Command{
		Use:     "clusters [WORKLOAD]",
		Aliases: []string{"cluster", "c"},
		Short:   "Show the clusters of a proxy",
		Long: `Show the clusters of a proxy: the services that it knows. Filters match the parts of
the cluster name, <direction>|<port>|<subset>|<fqdn>, also in its SNI form. --fqdn
also takes consecutive labels of the host.`,
		Example: `  meshctl pc clusters --admin 127.0.0.1:15000
  meshctl pc clusters --admin 127.0.0.1:15000 --fqdn helloworld.sample --port 5000
  meshctl pc clusters -f dump.json --direction inbound -o json`,
	}, Request{
		Path: fetch.Clusters,
		Read: func(_ context.Context, r io.Reader, resources bool) (Result, error) {
			clusters, err := proxyconfig.ReadClusters(r, filter, resources)
			table := proxyconfig.ClusterTable(clusters, o.Output.Wide())
			return Result{Table: table, of: "cluster", JSON: proxyconfig.Resources(clusters)}, err
		},
	})
	fs := cmd.Flags()
	filter.Seen = &o.seen
	fs.StringVar(&filter.FQDN, "fqdn", "", "Only this `host`, or hosts with these labels")
	PortVar(fs, &filter.Port, "Only this service `port`")
	fs.StringVar(&filter.Subset, "subset", "", "Only this `subset` of a DestinationRule")
	directionVar(fs, &filter.Direction, "Only this `direction`")
	return cmd
}

func directionVar(fs *pflag.FlagSet, p *mesh.Direction, usage string) {
	cli.FilterVar(fs, p, "direction", usage, mesh.Inbound, mesh.Outbound)
}

func newPCListenersCmd(env *cli.Env) *cobra.Command {
	var o Options
	var filter proxyconfig.ListenerFilter
	var verbose bool
	cmd := o.Command(env, &cobra.Command{
		Use:     "listeners [WORKLOAD]",
		Aliases: []string{"listener", "l"},
		Short:   "Show the listeners of a proxy",
		Long: `Show one row for each filter chain of each listener: the connections that it matches
and their destination, or with --verbose=false one row for each listener.`,
		Example: `  meshctl pc listeners --admin 127.0.0.1:15000
  meshctl pc listeners --admin 127.0.0.1:15000 --port 15006
  meshctl pc listeners -f dump.json --type HTTP --verbose=false`,
	}, Request{
		Path: fetch.Listeners,
		Read: func(_ context.Context, r io.Reader, resources bool) (Result, error) {
			listeners, err := proxyconfig.ReadListeners(r, filter, resources)
			table := proxyconfig.ListenerTable(listeners, verbose, o.Output.Wide())
			return Result{Table: table, of: "listener", JSON: proxyconfig.Resources(listeners)}, err
		},
	})
	fs := cmd.Flags()
	filter.Seen = &o.seen
	fs.StringVar(&filter.Address, "address", "", "Only listeners on this `address`")
	PortVar(fs, &filter.Port, "Only this `port`")
	listenerTypeVar(fs, &filter.Type, "Only this `type`")
	fs.BoolVar(&verbose, "verbose", true, "Show filter chains")
	return cmd
}

func listenerTypeVar(fs *pflag.FlagSet, p *proxyconfig.ListenerType, usage string) {
	cli.FilterVar(fs, p, "type", usage, proxyconfig.ListenerHTTP, proxyconfig.ListenerTCP, proxyconfig.ListenerHTTPTCP, proxyconfig.ListenerUDP, proxyconfig.ListenerUnknown)
}

func newPCRoutesCmd(env *cli.Env) *cobra.Command {
	var o Options
	var filter proxyconfig.RouteFilter
	var verbose bool
	cmd := o.Command(env, &cobra.Command{
		Use:     "routes [WORKLOAD]",
		Aliases: []string{"route", "r"},
		Short:   "Show the routes of a proxy",
		Long: `Show one row for each route of each virtual host, or with --verbose=false one row for
each route configuration. The routes for unknown hosts are not shown.`,
		Example: `  meshctl pc routes --admin 127.0.0.1:15000
  meshctl pc routes --admin 127.0.0.1:15000 --name 5000 -o yaml`,
	}, Request{Path: fetch.Routes, Read: func(_ context.Context, r io.Reader, resources bool) (Result, error) {
		routes, err := proxyconfig.ReadRoutes(r, filter, resources)
		return Result{Table: proxyconfig.RouteTable(routes, verbose), of: "route configuration", JSON: proxyconfig.Resources(routes)}, err
	}})
	fs := cmd.Flags()
	filter.Seen = &o.seen
	fs.StringVar(&filter.Name, "name", "", "Only the route configuration of this `name`")
	fs.BoolVar(&verbose, "verbose", true, "Show virtual hosts and routes")
	return cmd
}

func newPCSecretsCmd(env *cli.Env) *cobra.Command {
	var o Options
	return o.Command(env, &cobra.Command{
		Use:     "secrets [WORKLOAD]",
		Aliases: []string{"secret", "s"},
		Short:   "Show the certificates and trust bundles of a proxy",
		Long: `Show the first certificate of each certificate chain and trust bundle of the proxy.
JSON and YAML show all of them. Private keys are never shown.`,
		Example: `  meshctl pc secrets --admin 127.0.0.1:15000

  # Show the certificate of the workload
  meshctl pc secrets --admin 127.0.0.1:15000 -o json |
    jq -r '.dynamicActiveSecrets[0].secret.tlsCertificate.certificateChain.inlineBytes' |
    base64 -d | openssl x509 -noout -text`,
	}, Request{Path: fetch.Secrets, Read: func(_ context.Context, r io.Reader, _ bool) (Result, error) {
		secrets, err := proxyconfig.ReadSecrets(r)
		return Result{Table: proxyconfig.SecretTable(secrets.Items, env.Now()), None: "No active or warming secrets", JSON: secrets.Resource}, err
	}})
}

func newPCExtensionsCmd(env *cli.Env) *cobra.Command {
	var o Options
	return o.Command(env, &cobra.Command{
		Use:     "ecds [WORKLOAD]",
		Aliases: []string{"ec"},
		Short:   "Show the extension configurations of a proxy",
		Long: `Show type and name of the extension configurations (ECDS) of a proxy, such as HTTP
filters. JSON and YAML show the complete configurations.`,
		Example: `  meshctl pc ecds --admin 127.0.0.1:15000

  # Show when Envoy took each of them
  meshctl pc ecds --admin 127.0.0.1:15000 -o json | jq '.ecdsFilters[] | .ecdsFilter.name, .lastUpdated'`,
	}, Request{Path: fetch.Extensions, Read: func(_ context.Context, r io.Reader, _ bool) (Result, error) {
		extensions, err := proxyconfig.ReadExtensions(r)
		return Result{Table: proxyconfig.ExtensionTable(extensions.Items), None: "No extension configurations", JSON: extensions.Resource}, err
	}})
}

func newPCBootstrapCmd(env *cli.Env) *cobra.Command {
	var o Options
	cmd := o.Command(env, &cobra.Command{
		Use:     "bootstrap [WORKLOAD]",
		Aliases: []string{"b"},
		Short:   "Show the bootstrap configuration of a proxy",
		Long: `Show the bootstrap configuration of a proxy: its node with the metadata, and the
clusters, listeners and secrets that do not come from a control plane. JSON and YAML
show all of it without private keys; the table shows only versions.`,
		Example: `  meshctl pc bootstrap --admin 127.0.0.1:15000 -o table

  # Show the metadata that the proxy sends to its control plane
  meshctl pc bootstrap --admin 127.0.0.1:15000 | jq .bootstrap.node.metadata`,
	}, Request{Path: fetch.Bootstrap, Read: func(_ context.Context, r io.Reader, _ bool) (Result, error) {
		b, err := proxyconfig.ReadBootstrap(r)
		if err != nil {
			return Result{}, err
		}
		return Result{Table: proxyconfig.BootstrapTable(b), None: "The bootstrap has no versions", JSON: b.Resource}, nil
	}})
	o.Output = output.FormatJSON
	cmd.Flags().Lookup("output").DefValue = string(o.Output)
	return cmd
}
