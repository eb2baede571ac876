package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/xds"
	"github.com/meshctl/meshctl/internal/server/xds/flight"
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
	o.bind(cmd.Flags())
	return cmd
}

func (o *xdsViewsOptions) run(ctx context.Context, env *Env) error {
	var views []xds.LiveView
	if err := o.get(ctx, env, "views", nil, &views); err != nil {
		return err
	}
	table := &output.Table{Header: []string{"TYPE", "SCOPE", "VIEWS", "STREAMS", "RESOURCES", "BYTES", "VERSION", "OF"}, Gap: 3}
	for _, v := range views {
		table.Rows = append(table.Rows, []string{
			v.Type, v.Scope, fmt.Sprint(v.Views), fmt.Sprint(v.Streams), fmt.Sprint(v.Resources), size(int64(v.Bytes)), orDash(v.Version), cmp.Or(v.Of, "everyone"),
		})
	}
	return o.show(env, views, table, "No proxy is connected.")
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
for it. A proxy keeps what it had and is not sent the refused bytes again.

Last come the resources that other proxies are not given either, because
proxies of two identities with the same version of Envoy refused them.`,
		Example: `  meshctl xds nacks
  meshctl xds nacks -w`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.bind(cmd.Flags())
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "Go on and show new ones as they come, until interrupted")
	return cmd
}

func (o *xdsNACKsOptions) run(ctx context.Context, env *Env) error {
	var page xds.NACKs
	if err := o.get(ctx, env, "nacks", nil, &page); err != nil {
		return err
	}
	none := "No proxy refused anything."
	if o.watch {
		none = ""
	}
	if o.output == output.FormatTable || !o.watch {
		if err := o.show(env, page, nackTable(page.NACKs), none); err != nil {
			return err
		}
	}
	if o.output == output.FormatTable && len(page.Refused) > 0 && !o.watch {
		fmt.Fprintln(env.Stdout, "\nWithheld from the proxies that refused them:")
		if err := refusedTable(page.Refused).Write(env.Stdout); err != nil {
			return err
		}
	}
	if o.output == output.FormatTable && len(page.HeldBack) > 0 && !o.watch {
		fmt.Fprintln(env.Stdout, "\nHeld back from other proxies too:")
		if err := heldBackTable(page.HeldBack).Write(env.Stdout); err != nil {
			return err
		}
	}
	if !o.watch {
		return nil
	}
	return o.follow(ctx, env, page)
}

type nackKey struct {
	stream string
	number uint64
}

// follow shows what comes after the page, JSON and YAML also what it holds.
func (o *xdsNACKsOptions) follow(ctx context.Context, env *Env, page xds.NACKs) error {
	var seen map[nackKey]struct{}
	tick := time.NewTicker(o.every)
	defer tick.Stop()
	for first := true; ; first = false {
		now := make(map[nackKey]struct{})
		var fresh []flight.NACK
		for _, n := range page.NACKs {
			key := nackKey{n.Stream, n.Number}
			now[key] = struct{}{}
			if _, ok := seen[key]; !ok && (!first || o.output != output.FormatTable) {
				fresh = append(fresh, n)
			}
		}
		seen = now
		if err := o.append(env, fresh); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil // how watching ends
		case <-tick.C:
		}
		page = xds.NACKs{}
		if err := o.get(ctx, env, "nacks", nil, &page); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// append shows further NACKs: rows, or one document each.
func (o *xdsNACKsOptions) append(env *Env, nacks []flight.NACK) error {
	if o.output == output.FormatTable {
		if len(nacks) == 0 {
			return nil
		}
		table := nackTable(nacks)
		table.NoHeader = true
		return table.Write(env.Stdout)
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

func nackTable(nacks []flight.NACK) *output.Table {
	table := &output.Table{Header: []string{"AT", "STREAM", "TYPE", "VERSION", "RESOURCES", "ERROR"}, Gap: 3}
	for _, n := range nacks {
		table.Rows = append(table.Rows, []string{
			clock(n.At), n.Stream, n.Type, n.Version, orDash(strings.Join(n.Resources, ", ")), n.Error,
		})
	}
	return table
}

func refusedTable(refused []xds.Refused) *output.Table {
	table := &output.Table{Header: []string{"SINCE", "TYPE", "RESOURCE", "VERSION", "STREAMS", "FOUND BY", "ERROR"}, Gap: 3}
	for _, r := range refused {
		streams := strings.Join(r.Streams[:min(len(r.Streams), 3)], ", ")
		if more := len(r.Streams) - 3; more > 0 {
			streams += fmt.Sprintf(" and %d more", more)
		}
		table.Rows = append(table.Rows, []string{clock(r.Since), r.Type, r.Resource, r.Version, streams, r.Found, r.Error})
	}
	return table
}

func heldBackTable(held []xds.HeldBack) *output.Table {
	table := &output.Table{
		Header: []string{"SINCE", "TYPE", "RESOURCE", "VERSION", "SERVED", "STREAMS", "ENVOY", "REFUSED BY", "VIEW", "ERROR"},
		Gap:    3,
	}
	for _, h := range held {
		table.Rows = append(table.Rows, []string{
			clock(h.Since), h.Type, h.Resource, h.Version, cmp.Or(h.Served, "nothing"), fmt.Sprint(h.Streams), h.Envoy,
			strings.Join(h.RefusedBy, ", "), orDash(h.View), h.Error,
		})
	}
	return table
}
