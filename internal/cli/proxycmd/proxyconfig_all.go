package proxycmd

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

type pcAllOptions struct {
	pcOptions
	filter       proxyconfig.OverviewFilter
	direction    string
	port         uint32
	listenerType string
	verbose      bool
	headers      bool
}

func newPCAllCmd(env *cli.Env) *cobra.Command {
	var o pcAllOptions
	cmd := &cobra.Command{
		Use:     "all [POD]",
		Aliases: []string{"a"},
		Short:   "Show everything: versions, clusters, listeners, routes, secrets, endpoints",
		Long: `Show everything of one moment, a table each: versions, clusters, listeners,
routes, secrets and endpoints. A saved dump is the output of
/config_dump?include_eds; without that parameter it has no endpoints.

Each filter is for some of the tables, and the others stay whole:
  clusters    --fqdn, --direction, --subset, --port (of the service)
  listeners   --address, --port, --type
  routes      --name
  endpoints   those of the clusters that are selected, --address

JSON and YAML are the whole dump, private keys redacted, and take no filters:
meshctl pc clusters -o json and the others do.`,
		Example: `  meshctl pc all web-1.apps --with-headers

  # what has the proxy of this service?
  meshctl pc all --admin 127.0.0.1:15000 --fqdn helloworld.sample --port 5000 --name 5000

  # a dump to keep or to send, without private keys
  meshctl pc all --admin 127.0.0.1:15000 -o json > dump.json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	o.bind(env, cmd)
	fs.StringVar(&o.filter.Clusters.FQDN, "fqdn", "", "Only clusters of this `host`, or of hosts with these labels, and their endpoints")
	fs.StringVar(&o.direction, "direction", "", "Only clusters of this `direction`, inbound or outbound, and their endpoints")
	cli.Suggest(fs, "direction", string(mesh.Inbound), string(mesh.Outbound))
	fs.StringVar(&o.filter.Clusters.Subset, "subset", "", "Only clusters of this `subset` of a DestinationRule, and their endpoints")
	portVar(fs, &o.port, "Only clusters of this service port, their endpoints, and listeners on this port")
	fs.StringVar(&o.filter.Listeners.Address, "address", "", "Only listeners and endpoints on this `address`")
	listenerTypeVar(cmd, &o.listenerType, "Only listeners of this `type`")
	fs.StringVar(&o.filter.Routes.Name, "name", "", "Only the route configuration of this `name`")
	fs.BoolVar(&o.verbose, "verbose", true, "Show filter chains of listeners, and virtual hosts and routes")
	fs.BoolVar(&o.headers, "with-headers", false, "Show a line before each table that says what it is")
	return cmd
}

func (o *pcAllOptions) run(ctx context.Context, env *cli.Env) error {
	f := &o.filter
	f.Clusters.Port, f.Listeners.Port = o.port, o.port
	var err error
	if f.Clusters.Direction, err = parseDirection(o.direction); err != nil {
		return err
	}
	if f.Listeners.Type, err = parseListenerType(o.listenerType); err != nil {
		return err
	}
	if o.output.OfTable() && !o.output.ForPeople() {
		return cli.Usagef("--output %s is for one table, and these are several; pc clusters, listeners, routes, secrets and eds have it", string(o.output))
	}
	if !o.output.OfTable() && *f != (proxyconfig.OverviewFilter{}) {
		return cli.Usagef("filters select rows of tables, and --output %s is the whole dump; meshctl pc clusters, listeners, routes and eds have filters for it", &o.output)
	}
	return o.show(ctx, env, fetch.All, func(r io.Reader, resources bool) (pcResult, error) {
		if resources {
			dump, err := proxyconfig.ReadDump(r)
			return pcResult{json: dump}, err
		}
		overview, err := proxyconfig.ReadOverview(r, o.filter)
		return pcResult{write: func() error { return o.write(env, overview) }}, err
	})
}

// write writes the tables with an empty line between them.
func (o *pcAllOptions) write(env *cli.Env, overview *proxyconfig.Overview) error {
	between := ""
	for _, part := range overview.Parts(o.verbose, env.Now()) {
		heading := between
		if o.headers {
			heading += fmt.Sprintf("------ %s INFO ------\n\n", part.Title)
		}
		if _, err := io.WriteString(env.Stdout, heading); err != nil {
			return err
		}
		if err := part.Table.Write(env.Stdout); err != nil {
			return err
		}
		between = "\n"
	}
	for _, missing := range overview.Missing {
		reason := missing.Reason()
		if missing.Why != "" && o.running() { // all was asked for
			reason = "an Envoy without clusters leaves it out"
		}
		fmt.Fprintf(env.Stderr, "The dump has no section of %s: %s.\n", missing.What, reason)
	}
	return nil
}
