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

type xdsViewsOptions struct{ cli.PageFlags }

func newXDSViewsCmd(env *cli.Env) *cobra.Command {
	var o xdsViewsOptions
	cmd := &cobra.Command{
		Use:   "views",
		Short: "Show the resource lists that proxies share",
		Long: `Show the lists of resources in use, and the number of streams that share each. The
control plane holds the bytes of a list once for all streams. A resource in several
lists is counted in each.`,
		Example: `  meshctl xds views`,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.Bind(env, cmd)
	return cmd
}

func (o *xdsViewsOptions) run(ctx context.Context, env *cli.Env) error {
	answers, several, err := cli.Ask[[]xds.LiveView](ctx, env, &o.PageFlags, "xds/views")
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
	return cmp.Or(o.Show(env, views, &table.Table, "No proxy is connected."), err)
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
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "Show new ones until interrupted")
	return cmd
}

// refusals holds the refused responses of all replicas.
type refusals struct {
	NACKs   []cli.Answer[history.NACK]                `json:"nacks"`
	Refused []cli.Answer[history.QuarantinedResource] `json:"refused"`
}

func (o *xdsNACKsOptions) ask(ctx context.Context, found []*replicas.Replica) (*refusals, error) {
	answers, err := cli.AskPages[xds.NACKs](ctx, &o.Replicas, found, "xds/nacks", nil, nil)
	if len(answers) == 0 {
		return nil, err
	}
	out := &refusals{NACKs: []cli.Answer[history.NACK]{}, Refused: []cli.Answer[history.QuarantinedResource]{}}
	for _, a := range answers {
		out.NACKs = append(out.NACKs, cli.EachItem([]cli.Answer[[]history.NACK]{{Replica: a.Replica, Value: a.Value.NACKs}})...)
		out.Refused = append(out.Refused, cli.EachItem([]cli.Answer[[]history.QuarantinedResource]{{Replica: a.Replica, Value: a.Value.Refused}})...)
	}
	slices.SortStableFunc(out.NACKs, func(a, b cli.Answer[history.NACK]) int { return a.Value.At.Compare(b.Value.At) })
	return out, err
}

func (o *xdsNACKsOptions) run(ctx context.Context, env *cli.Env) error {
	found, err := o.Replicas.Find(ctx, env, o.Timeout)
	if err != nil {
		return err
	}
	defer func() { cli.CloseReplicas(found) }()
	several := len(found) > 1
	page, err := o.ask(ctx, found)
	if page == nil {
		return err
	}
	if o.watch {
		if o.Output.OfTable() {
			if err := o.Show(env, nil, nackTable(several, page.NACKs), ""); err != nil {
				return err
			}
		}
		return o.follow(ctx, env, &found, page)
	}
	if bad := o.Show(env, page, nackTable(several, page.NACKs), "No proxy refused anything."); bad != nil || !o.Output.ForPeople() {
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

// follow prints new NACKs, in JSON and YAML also the NACKs of the page. It finds the
// replicas again when one does not answer, and ends when none answers.
func (o *xdsNACKsOptions) follow(ctx context.Context, env *cli.Env, found *[]*replicas.Replica, page *refusals) error {
	several := len(*found) > 1
	var seen map[nackKey]struct{}
	tick := time.NewTicker(o.every)
	defer tick.Stop()
	for first := true; ; first = false {
		now := make(map[nackKey]struct{})
		var fresh []cli.Answer[history.NACK]
		for _, n := range page.NACKs {
			key := nackKey{n.Replica, n.Value.Stream, n.Value.Number}
			now[key] = struct{}{}
			if _, ok := seen[key]; !ok && (!first || !o.Output.OfTable()) {
				fresh = append(fresh, n)
			}
		}
		seen = now
		if err := o.append(env, several, fresh); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil // the normal end of --watch
		case <-tick.C:
		}
		var err error
		if page, err = o.ask(ctx, *found); err != nil && ctx.Err() == nil {
			env.Notef("%v", err)
			cli.CloseReplicas(*found) // there may be new replicas
			if *found, err = o.Replicas.Find(ctx, env, o.Timeout); err == nil && page == nil {
				page, err = o.ask(ctx, *found)
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case page == nil:
			return err
		}
	}
}

// append prints NACKs as rows, or as one document each.
func (o *xdsNACKsOptions) append(env *cli.Env, several bool, nacks []cli.Answer[history.NACK]) error {
	if o.Output.OfTable() {
		if len(nacks) == 0 {
			return nil
		}
		table := nackTable(several, nacks)
		table.NoHeader = true
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
