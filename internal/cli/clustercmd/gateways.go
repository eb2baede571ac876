package clustercmd

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
)

// NewGateways returns the command gateways.
func NewGateways(env *cli.Env) *cobra.Command {
	var o cli.PageFlags
	cmd := &cobra.Command{
		Use:   "gateways",
		Short: "Show the gateways of networks, and why some are not used",
		Long: `Show every gateway through which other networks reach a network: the object that
describes it, its address in this object, the addresses and ports that proxies get, and
the reason if proxies do not get the gateway. TTL is the time until the control plane
resolves a host name again. CHANGED is the time since proxies got other addresses of the
gateway, or since the control plane found it. Replicas with the same answer share a row.

The command finds and asks replicas as remote-clusters does. The exit code is 3 when a
gateway, or an address of a gateway, is not used.`,
		Example: `  meshctl gateways --context east
  meshctl gateways -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return showGateways(cmd.Context(), env, &o) },
	}
	o.Bind(env, cmd)
	return cmd
}

func showGateways(ctx context.Context, env *cli.Env, o *cli.PageFlags) error {
	answers, several, err := cli.Ask[[]facts.Gateway](ctx, env, o, "gateways")
	if len(answers) == 0 {
		return err
	}
	gateways := cli.EachItem(answers)
	var wrong []string
	table := cli.NewReplicaTable(several, "NETWORK", "CLUSTER", "SOURCE", "ADDRESS", "USED AS", "TTL", "CHANGED", "PROBLEM")
	for _, a := range gateways {
		g := &a.Value
		if g.Problem != "" {
			wrong = append(wrong, fmt.Sprintf("network %s: %s of cluster %s: %s", g.Network, strings.TrimSpace(g.Source+" "+g.Address), g.Cluster, g.Problem))
		}
		ttl := "-"
		if !g.NextLookup.IsZero() {
			ttl = ageOf(g.NextLookup, env.Now())
		}
		table.Add(a.Replica,
			string(g.Network), string(g.Cluster), g.Source, cli.OrDash(g.Address), cli.OrDash(joined(g.Used)),
			ttl, ageOf(env.Now(), g.Changed), cli.OrDash(g.Problem),
		)
	}
	if o.Output.ForPeople() {
		mergeRows(&table.Table, "REPLICA", "TTL", "CHANGED")
	}
	if err := o.Show(env, gateways, &table.Table, "No gateway of a network is known to "+cli.AnsweredBy(answers)); err != nil {
		return err
	}
	return env.Conclude(distinct(wrong), err)
}

func joined(list []netip.AddrPort) string {
	texts := make([]string, len(list))
	for i, a := range list {
		texts[i] = a.String()
	}
	return strings.Join(texts, ",")
}
