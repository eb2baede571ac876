package explaincmd

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/debug"
)

func newExplainPoliciesCmd(env *cli.Env) *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:     "policies WORKLOAD",
		Aliases: []string{"policy"},
		Short:   "Explain which security policies apply to a workload",
		Long: `List the PeerAuthentications, RequestAuthentications and AuthorizationPolicies that select
the workload of a proxy, in the order in which the proxy applies them, and why each one
applies or has no effect.

` + cli.WorkloadHelp + `
Its proxy must be connected to one of the control planes.

The explanation uses the newest state of the control plane. meshctl authz list shows the
policies that the proxy's Envoy enforces. meshctl authz check shows the rule that
decides about a request.`,
		Example: `  # Show which policies protect web
  meshctl explain policies web-1.apps
  meshctl explain policies deploy/web -n apps -o json`,
		Args: func(_ *cobra.Command, args []string) (err error) {
			o.proxy, err = cli.OneWorkload(args)
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return o.runPolicies(cmd.Context(), env) },
	}
	o.bind(env, cmd)
	cmd.ValidArgsFunction = cli.CompleteNames(env, cli.NamesFrom(o.Find, connected))
	return cmd
}

func (o *explainOptions) runPolicies(ctx context.Context, env *cli.Env) error {
	found, err := o.Find(ctx, env)
	if err != nil {
		return err
	}
	defer cli.CloseReplicas(found)
	if err := o.findProxy(ctx, env, found); err != nil {
		return err
	}
	e, err := askExplanation[*debug.PolicyExplanation](ctx, o, found, "/debug/policiesz", url.Values{})
	if err != nil {
		return err
	}
	if !o.Output.OfTable() {
		return output.Write(env.Stdout, o.Output, e)
	}
	table := &output.Table{Header: []string{"KIND", "NAMESPACE", "NAME", "APPLIES TO", "EFFECT"}, Name: "NAME"}
	for _, p := range e.Policies {
		effect := p.Effect
		if p.Unused != "" {
			effect = "none: " + p.Unused
		}
		table.Rows = append(table.Rows, []string{string(p.Kind), p.Namespace, p.Name, p.Reason, effect})
	}
	if len(table.Rows) > 0 || !o.Output.ForPeople() {
		if err := cli.WriteTable(env, o.Output, table); err != nil {
			return err
		}
	} else {
		var looked []string
		for _, name := range slices.Sorted(maps.Keys(e.Considered)) {
			looked = append(looked, fmt.Sprintf("%d in namespace %s", e.Considered[name], name))
		}
		env.Notef("No security policy selects %s: looked at %s", e.Proxy, cmp.Or(strings.Join(looked, ", "), "those of its namespace and the root namespace"))
	}
	env.Notef("%s is in %s", e.Proxy, whereabouts(&e.ExplainedProxy))
	modes := []string{e.MTLS}
	for _, port := range slices.Sorted(maps.Keys(e.PortMTLS)) {
		modes = append(modes, fmt.Sprintf("%s on port %d", e.PortMTLS[port], port))
	}
	env.Notef("Its mode of mTLS is %s", strings.Join(modes, ", "))
	return nil
}
