package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/server/xds"
	"github.com/meshctl/meshctl/internal/server/xds/history"
)

type xdsViewsOptions struct{ xdsOptions }

func newXDSViewsCmd(env *Env) *cobra.Command {
	var o xdsViewsOptions
	cmd := &cobra.Command{
		Use:   "views",
		Short: "Show what configuration is shared by how many proxies",
		Long: `Show the lists of resources in use and by how many streams each is shared.
Resources and bytes are held once, however many streams there are; resources
that several lists hold are counted for each.`,
		Example: `  meshctl xds views`,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.bind(env, cmd)
	return cmd
}

func (o *xdsViewsOptions) run(ctx context.Context, env *Env) error {
	found, err := o.replicas.find(ctx, env, o.timeout)
	if err != nil {
		return err
	}
	defer closeReplicas(found)
	answers, err := askPages[[]xds.LiveView](ctx, &o.replicas, found, "xds/views", nil, nil)
	if len(answers) == 0 {
		return err
	}
	views := each(answers)
	table := newReplicaTable(len(found) > 1, "TYPE", "SCOPE", "VIEWS", "STREAMS", "RESOURCES", "BYTES", "VERSION", "OF")
	for _, told := range views {
		v := &told.Thing
		table.add(told.Replica,
			v.Type, v.Scope, fmt.Sprint(v.Views), fmt.Sprint(v.Streams), fmt.Sprint(v.Resources), size(int64(v.Bytes)), orDash(v.Version), cmp.Or(v.Of, "everyone"),
		)
	}
	return cmp.Or(o.show(env, views, &table.Table, "No proxy is connected."), err)
}

type xdsNACKsOptions struct {
	xdsOptions
	watch bool
	every time.Duration
}

func newXDSNACKsCmd(env *Env) *cobra.Command {
	o := xdsNACKsOptions{every: time.Second}
	cmd := &cobra.Command{
		Use:   "nacks",
		Short: "Show the responses that proxies refused",
		Long: `Show the responses that proxies refused, oldest first, with the resources to
blame as far as they are known, and the resources that proxies are left without
for it. A proxy keeps what it had and is not sent the refused bytes again.`,
		Example: `  meshctl xds nacks
  meshctl xds nacks -w`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.bind(env, cmd)
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "Go on and show new ones as they come, until interrupted")
	return cmd
}

// refusals is what all replicas tell of refused responses.
type refusals struct {
	NACKs   []told[history.NACK] `json:"nacks"`
	Refused []told[xds.Refused]  `json:"refused"`
}

func (o *xdsNACKsOptions) ask(ctx context.Context, found []*replicas.Replica) (*refusals, error) {
	answers, err := askPages[xds.NACKs](ctx, &o.replicas, found, "xds/nacks", nil, nil)
	if len(answers) == 0 {
		return nil, err
	}
	out := &refusals{NACKs: []told[history.NACK]{}, Refused: []told[xds.Refused]{}}
	for _, a := range answers {
		out.NACKs = append(out.NACKs, each([]told[[]history.NACK]{{a.Replica, a.Thing.NACKs}})...)
		out.Refused = append(out.Refused, each([]told[[]xds.Refused]{{a.Replica, a.Thing.Refused}})...)
	}
	slices.SortStableFunc(out.NACKs, func(a, b told[history.NACK]) int { return a.Thing.At.Compare(b.Thing.At) })
	return out, err
}

func (o *xdsNACKsOptions) run(ctx context.Context, env *Env) error {
	found, err := o.replicas.find(ctx, env, o.timeout)
	if err != nil {
		return err
	}
	defer func() { closeReplicas(found) }()
	several := len(found) > 1
	page, err := o.ask(ctx, found)
	if page == nil {
		return err
	}
	if o.watch {
		if o.output.OfTable() {
			if err := o.show(env, nil, nackTable(several, page.NACKs), ""); err != nil {
				return err
			}
		}
		return o.follow(ctx, env, &found, page)
	}
	if bad := o.show(env, page, nackTable(several, page.NACKs), "No proxy refused anything."); bad != nil || !o.output.ForPeople() {
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

// follow shows what comes after the page, JSON and YAML also what it holds. It finds
// the replicas again when one does not answer, and ends when none does.
func (o *xdsNACKsOptions) follow(ctx context.Context, env *Env, found *[]*replicas.Replica, page *refusals) error {
	several := len(*found) > 1
	var seen map[nackKey]struct{}
	tick := time.NewTicker(o.every)
	defer tick.Stop()
	for first := true; ; first = false {
		now := make(map[nackKey]struct{})
		var fresh []told[history.NACK]
		for _, n := range page.NACKs {
			key := nackKey{n.Replica, n.Thing.Stream, n.Thing.Number}
			now[key] = struct{}{}
			if _, ok := seen[key]; !ok && (!first || !o.output.OfTable()) {
				fresh = append(fresh, n)
			}
		}
		seen = now
		if err := o.append(env, several, fresh); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil // how watching ends
		case <-tick.C:
		}
		var err error
		if page, err = o.ask(ctx, *found); err != nil && ctx.Err() == nil {
			fmt.Fprintln(env.Stderr, err)
			closeReplicas(*found) // there may be others by now
			if *found, err = o.replicas.find(ctx, env, o.timeout); err == nil && page == nil {
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

// append shows further NACKs: rows, or one document each.
func (o *xdsNACKsOptions) append(env *Env, several bool, nacks []told[history.NACK]) error {
	if o.output.OfTable() {
		if len(nacks) == 0 {
			return nil
		}
		table := nackTable(several, nacks)
		table.NoHeader = true
		return writeTable(env, o.output, table)
	}
	for _, n := range nacks {
		if o.output == output.FormatYAML {
			fmt.Fprintln(env.Stdout, "---")
		}
		if err := output.Write(env.Stdout, o.output, n); err != nil {
			return err
		}
	}
	return nil
}

func nackTable(several bool, nacks []told[history.NACK]) *output.Table {
	table := newReplicaTable(several, "AT", "STREAM", "TYPE", "VERSION", "RESOURCES", "ERROR")
	for _, told := range nacks {
		n := &told.Thing
		table.add(told.Replica, clock(n.At), n.Stream, n.Type, n.Version, orDash(strings.Join(n.Resources, ", ")), n.Error)
	}
	return &table.Table
}

func refusedTable(several bool, refused []told[xds.Refused]) *output.Table {
	table := newReplicaTable(several, "SINCE", "TYPE", "RESOURCE", "VERSION", "STREAMS", "FOUND BY", "ERROR")
	for _, told := range refused {
		r := &told.Thing
		streams := strings.Join(r.Streams[:min(len(r.Streams), 3)], ", ")
		if more := len(r.Streams) - 3; more > 0 {
			streams += fmt.Sprintf(" and %d more", more)
		}
		table.add(told.Replica, clock(r.Since), r.Type, r.Resource, r.Version, streams, r.Found, r.Error)
	}
	return &table.Table
}
