package debugcmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/server/xds"
	"github.com/meshctl/meshctl/internal/server/xds/history"
)

func newXDSViewsCmd(env *cli.Env) *cobra.Command {
	var o cli.PageFlags
	cmd := &cobra.Command{
		Use:   "views",
		Short: "Show the resource lists that proxies share",
		Long: `Show the lists of resources in use, and the number of streams that share each list. The
control plane holds the bytes of a list once for all streams. A resource in several
lists is counted in each.`,
		Example: `  meshctl xds views`,
		RunE:    func(cmd *cobra.Command, _ []string) error { return showViews(cmd.Context(), env, &o) },
	}
	o.Bind(env, cmd)
	return cmd
}

func showViews(ctx context.Context, env *cli.Env, o *cli.PageFlags) error {
	answers, several, err := cli.Ask[[]xds.LiveView](ctx, env, o, "xds/views")
	if len(answers) == 0 {
		return err
	}
	views := cli.EachItem(answers)
	table := cli.NewReplicaTable(several, "TYPE", "SCOPE", "VIEWS", "STREAMS", "RESOURCES", "BYTES", "VERSION", "OF")
	for _, a := range views {
		v := &a.Value
		table.Add(a.Replica,
			v.Type, v.Scope, fmt.Sprint(v.Views), fmt.Sprint(v.Streams), fmt.Sprint(v.Resources), size(int64(v.Bytes)), cli.OrDash(v.Version), cmp.Or(v.Of, "everyone"),
		)
	}
	return cmp.Or(o.Show(env, views, &table.Table, "No proxy is connected to "+cli.AnsweredBy(answers)), err)
}

type xdsNACKsOptions struct {
	cli.PageFlags
	watch bool
	every time.Duration
}

func newXDSNACKsCmd(env *cli.Env) *cobra.Command {
	o := xdsNACKsOptions{every: time.Second}
	cmd := &cobra.Command{
		Use:   "nacks",
		Short: "Show the responses that proxies refused",
		Long: `Show the responses that proxies refused, oldest first, with the invalid resources if
they are known, and the resources that are withheld from the proxies. A proxy keeps its
previous configuration and is not sent the refused version again.`,
		Example: `  meshctl xds nacks
  meshctl xds nacks -w`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.Bind(env, cmd)
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "Show new responses until interrupted")
	return cmd
}

// refusals holds the refused responses of all replicas.
type refusals struct {
	NACKs   []cli.Answer[history.NACK]                `json:"nacks"`
	Refused []cli.Answer[history.QuarantinedResource] `json:"refused"`
}

func (o *xdsNACKsOptions) ask(ctx context.Context, found []*replicas.Replica) (*refusals, error) {
	answers, err := cli.AskPages[xds.NACKs](ctx, &o.ReplicaFlags, found, "xds/nacks", nil, nil)
	if len(answers) == 0 {
		return nil, err
	}
	out := &refusals{NACKs: []cli.Answer[history.NACK]{}, Refused: []cli.Answer[history.QuarantinedResource]{}}
	for _, a := range answers {
		for _, n := range a.Value.NACKs {
			out.NACKs = append(out.NACKs, cli.Answer[history.NACK]{Replica: a.Replica, Value: n})
		}
		for _, r := range a.Value.Refused {
			out.Refused = append(out.Refused, cli.Answer[history.QuarantinedResource]{Replica: a.Replica, Value: r})
		}
	}
	slices.SortStableFunc(out.NACKs, func(a, b cli.Answer[history.NACK]) int { return a.Value.At.Compare(b.Value.At) })
	return out, err
}

func (o *xdsNACKsOptions) run(ctx context.Context, env *cli.Env) error {
	if o.watch {
		return o.follow(ctx, env)
	}
	found, err := o.Find(ctx, env)
	if err != nil {
		return err
	}
	defer cli.CloseReplicas(found)
	several := len(found) > 1
	page, err := o.ask(ctx, found)
	if page == nil {
		return err
	}
	none := ""
	if len(page.NACKs) == 0 {
		none = "No response was refused by " + cli.LookedAt(cli.AskProxies(ctx, found))
	}
	if bad := o.Show(env, page, nackTable(several, page.NACKs), none); bad != nil || !o.Output.ForPeople() {
		return cmp.Or(bad, err)
	}
	if len(page.Refused) > 0 {
		fmt.Fprintln(env.Stdout, "\nWithheld from the proxies that refused them:")
		if err := refusedTable(several, page.Refused).Write(env.Stdout); err != nil {
			return err
		}
	}
	return err
}

type nackKey struct {
	replica, stream string
	number          uint64
}

// follow prints all NACKs and then new ones. It ends when no replica answers twice in a
// row.
func (o *xdsNACKsOptions) follow(ctx context.Context, env *cli.Env) error {
	var seen map[nackKey]bool // nil before the first page
	several, answered := false, false
	find := func() ([]*replicas.Replica, error) { return o.Find(ctx, env) }
	err := cli.Poll(ctx, o.every, find, func(found []*replicas.Replica) (lost bool, err error) {
		page, err := o.ask(ctx, found)
		switch {
		case ctx.Err() != nil:
			return false, nil
		case page == nil && !answered:
			return false, err
		case err != nil && seen != nil:
			env.Notef("%v", err)
		}
		if answered = page != nil; !answered {
			return true, nil
		}
		now := make(map[nackKey]bool)
		var fresh []cli.Answer[history.NACK]
		for _, n := range page.NACKs {
			key := nackKey{n.Replica, n.Value.Stream, n.Value.Number}
			now[key] = true
			if !seen[key] {
				fresh = append(fresh, n)
			}
		}
		first := seen == nil
		if first {
			several = len(found) > 1
		}
		seen = now
		return err != nil && !first, o.append(env, several, first, fresh)
	})
	if ctx.Err() != nil {
		return nil // the normal end of --watch
	}
	return err
}

// append prints NACKs as rows, the first ones with a header, or as one document each.
func (o *xdsNACKsOptions) append(env *cli.Env, several, first bool, nacks []cli.Answer[history.NACK]) error {
	if o.Output.OfTable() {
		if len(nacks) == 0 && !first {
			return nil
		}
		table := nackTable(several, nacks)
		table.NoHeader = !first
		return cli.WriteTable(env, o.Output, table)
	}
	for _, n := range nacks {
		if o.Output == output.FormatYAML {
			fmt.Fprintln(env.Stdout, "---")
		}
		if err := output.Write(env.Stdout, o.Output, n); err != nil {
			return err
		}
	}
	return nil
}

func nackTable(several bool, nacks []cli.Answer[history.NACK]) *output.Table {
	table := cli.NewReplicaTable(several, "AT", "STREAM", "TYPE", "VERSION", "RESOURCES", "ERROR")
	for _, a := range nacks {
		n := &a.Value
		table.Add(a.Replica, clock(n.At), n.Stream, n.Type, n.Version, cli.OrDash(strings.Join(n.Resources, ", ")), n.Error)
	}
	return &table.Table
}

func refusedTable(several bool, refused []cli.Answer[history.QuarantinedResource]) *output.Table {
	table := cli.NewReplicaTable(several, "SINCE", "TYPE", "RESOURCE", "VERSION", "STREAMS", "FOUND BY", "ERROR")
	for _, a := range refused {
		r := &a.Value
		streams := strings.Join(r.Streams[:min(len(r.Streams), 3)], ", ")
		if more := len(r.Streams) - 3; more > 0 {
			streams += fmt.Sprintf(" and %d more", more)
		}
		table.Add(a.Replica, clock(r.Since), r.Type, r.Resource, r.Version, streams, r.Found, r.Error)
	}
	return &table.Table
}
