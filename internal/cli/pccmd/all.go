package pccmd

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/access"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

type pcAllOptions struct {
	Options
	filter  proxyconfig.OverviewFilter
	verbose bool
	headers bool
}

func newPCAllCmd(env *cli.Env) *cobra.Command {
	var o pcAllOptions
	cmd := o.Command(env, &cobra.Command{
		Use:     "all [WORKLOAD]",
		Aliases: []string{"a"},
		Short:   "Show all tables of a proxy",
		Long: `Show one table each for versions, clusters, listeners, routes, secrets and endpoints,
all from the same moment. If no filter is set and security policies are in force at the
ports of the workload, a table shows them, too. A saved dump is the response of
/config_dump?include_eds; without that parameter it has no endpoints.

Each filter applies to some tables:
  clusters    --fqdn, --direction, --subset, --port (of the service)
  listeners   --address, --port, --type
  routes      --name
  endpoints   the filters for clusters, --address

JSON and YAML show the whole dump without private keys. Filters do not apply to them;
meshctl pc clusters -o json and the other commands have filters.`,
		Example: `  meshctl pc all web-1.apps --with-headers

  # Show the configuration of one service
  meshctl pc all --admin 127.0.0.1:15000 --fqdn helloworld.sample --port 5000 --name 5000

  # Save a dump without private keys
  meshctl pc all --admin 127.0.0.1:15000 -o json > dump.json`,
	}, Request{Path: fetch.All, Read: func(_ context.Context, r io.Reader, resources bool) (Result, error) {
		if resources {
			dump, err := proxyconfig.ReadDump(r)
			return Result{JSON: dump}, err
		}
		o.filter.Listeners.Port = o.filter.Clusters.Port
		overview, err := proxyconfig.ReadOverview(r, o.filter)
		return Result{write: func() error { return o.write(env, overview) }}, err
	}})
	cmd.PreRunE = o.checkOutput
	fs := cmd.Flags()
	fs.StringVar(&o.filter.Clusters.FQDN, "fqdn", "", "Only clusters of this `host`, or of hosts with these labels, and their endpoints")
	directionVar(fs, &o.filter.Clusters.Direction, "Only clusters, and their endpoints, of this `direction`")
	fs.StringVar(&o.filter.Clusters.Subset, "subset", "", "Only clusters of this `subset` of a DestinationRule, and their endpoints")
	PortVar(fs, &o.filter.Clusters.Port, "Only clusters of this service `port`, their endpoints, and listeners on this port")
	fs.StringVar(&o.filter.Listeners.Address, "address", "", "Only listeners and endpoints on this `address`")
	listenerTypeVar(fs, &o.filter.Listeners.Type, "Only listeners of this `type`")
	fs.StringVar(&o.filter.Routes.Name, "name", "", "Only the route configuration of this `name`")
	fs.BoolVar(&o.verbose, "verbose", true, "Show filter chains of listeners, and virtual hosts and routes")
	fs.BoolVar(&o.headers, "with-headers", false, "Show a heading before each table")
	return cmd
}

// checkOutput checks that the filters apply to the format.
func (o *pcAllOptions) checkOutput(*cobra.Command, []string) error {
	if o.Output.OfTable() && !o.Output.ForPeople() {
		return cli.Usagef("--output %s is for a single table: use pc clusters, listeners, routes, secrets or eds", string(o.Output))
	}
	if !o.Output.OfTable() && o.filter != (proxyconfig.OverviewFilter{}) {
		return cli.Usagef("filters apply to tables, and --output %s shows the whole dump: use pc clusters, listeners, routes or eds", string(o.Output))
	}
	return nil
}

// write prints the tables with an empty line between them.
func (o *pcAllOptions) write(env *cli.Env, overview *proxyconfig.Overview) error {
	between, rows := "", 0
	parts := overview.Parts(o.verbose, env.Now())
	if policies := access.InForce((*access.Config)(overview.Filters)); len(policies) > 0 && o.filter == (proxyconfig.OverviewFilter{}) {
		parts = append(parts, proxyconfig.Part{Title: "POLICIES", Table: PolicyTable(policies)})
	}
	for _, part := range parts {
		rows += len(part.Table.Rows)
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
	if filters := o.filters(); rows == 0 && filters != "" {
		env.Notef("No entry of any table matches %s (%s)", filters, &o.Source)
	}
	for _, missing := range overview.Missing {
		reason := missing.Reason()
		if missing.Why != "" && o.Running() { // the request was for all sections
			reason = "an Envoy without clusters leaves it out"
		}
		env.Notef("The dump has no section of %s: %s.", missing.What, reason)
	}
	return nil
}

// PolicyTable lists the policies of ports.
func PolicyTable(ports []access.PortPolicies) *output.Table {
	t := &output.Table{Header: []string{"PORT", "MTLS", "POLICIES", "ISSUERS", "AUTHORIZERS"}, Name: "PORT"}
	for _, p := range ports {
		var policies []string
		for _, action := range slices.Sorted(maps.Keys(p.Policies)) {
			policies = append(policies, action+": "+strings.Join(p.Policies[action], ", "))
		}
		t.Rows = append(t.Rows, []string{
			strconv.FormatUint(uint64(p.Port), 10), p.MTLS, cli.OrDash(strings.Join(policies, "; ")),
			cli.OrDash(strings.Join(p.Issuers, ", ")), cli.OrDash(strings.Join(p.Providers, ", ")),
		})
	}
	return t
}
