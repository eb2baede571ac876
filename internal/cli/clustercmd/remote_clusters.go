package clustercmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/server/clusters"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
)

type remoteClustersOptions struct {
	cli.PageFlags
	wait bool
}

// NewRemoteClusters returns the command remote-clusters.
func NewRemoteClusters(env *cli.Env) *cobra.Command {
	var o remoteClustersOptions
	cmd := &cobra.Command{
		Use:   "remote-clusters",
		Short: "Show the clusters that control planes read, and their problems",
		Long: `Show the clusters that each replica of a control plane reads: the source of each
cluster, its state, since when, and how much it contributes. Replicas with the same
answer share a row. All reasons why a cluster is not fully read follow, the worst first,
with the commands that mend them.

The command finds replicas in the cluster of the kubeconfig: by their Leases in the
system namespace or, without Leases, as pods of meshctl or istiod. It asks a replica on
this machine directly. It asks a pod by port-forward through the API server, which needs
permission to create pods/portforward. For a replica that it cannot reach, it shows the
Lease. --server sets addresses instead. The user that runs a replica needs no token on
the same machine; all other callers need --token-file. For a pod the command creates a
token of the service account default if --token-file is not given.

The exit code is 3 when a cluster is not synced, when its credential has expired or lacks
a permission, when a source of a cluster has no effect, or when a network that other
networks must reach has no usable gateway. It is 4 when none of this is found but a
replica does not answer, and 1 when no replica answers.`,
		Example: `  meshctl remote-clusters --context east
  # Wait until all clusters are synced
  meshctl remote-clusters --context east --wait --timeout 2m -o wide
  # Show two replicas on this machine
  meshctl remote-clusters --server 127.0.0.1:8080,127.0.0.1:18080`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.Bind(env, cmd)
	f := cmd.Flags()
	f.Lookup("timeout").Usage += ", and with --wait in total"
	f.BoolVar(&o.wait, "wait", false, "Wait until there are no problems, at most for --timeout")
	return cmd
}

// replicaView is the answer of one replica.
type replicaView struct {
	Server string `json:"server"`
	// Via is the connection to the replica.
	Via string `json:"via,omitzero"`
	// Error is set when the replica did not answer. Clusters are then from its Lease.
	Error    string                 `json:"error,omitzero"`
	Clusters []clusters.PageCluster `json:"clusters"`
	Problems []clusters.Problem     `json:"problems,omitzero"`
	// UnreachableNetworks lists the networks whose endpoints are hidden from proxies
	// of other networks.
	UnreachableNetworks []facts.UnreachableNetwork `json:"unreachableNetworks,omitzero"`
	// AddressConflicts lists the first of AddressConflictCount addresses that two
	// Services share.
	AddressConflicts     []facts.AddressConflict `json:"addressConflicts,omitzero"`
	AddressConflictCount int                     `json:"addressConflictCount,omitzero"`
	// HostConflicts lists the first of HostConflictCount hosts that several objects
	// define. The first object has the host.
	HostConflicts     []facts.HostConflict `json:"hostConflicts,omitzero"`
	HostConflictCount int                  `json:"hostConflictCount,omitzero"`

	err error // behind Error
}

// wrong returns the problems.
func (v *replicaView) wrong() []replicaLine {
	var out []replicaLine
	add := func(lines ...string) {
		for _, l := range lines {
			out = append(out, replicaLine{v.Server, l})
		}
	}
	for _, c := range v.Clusters {
		add(wrongWith(&c.Status)...)
	}
	for _, u := range v.UnreachableNetworks {
		add(u.String())
	}
	for _, p := range v.Problems {
		at := p.Origin
		if p.Cluster != "" {
			at += ", cluster " + string(p.Cluster)
		}
		add(at + ": " + p.Reason)
		for _, f := range p.Refused {
			add(fmt.Sprintf("%s, field %s: fix: %s, or allow %s=%s", at, f.Field, f.Fix, p.Cluster, f.Code))
		}
	}
	return out
}

// wrongWith returns the faults of a cluster, the worst first, with the commands that mend
// them.
func wrongWith(c *clusters.Status) []string {
	at := fmt.Sprintf("cluster %s", c.Cluster)
	faults := c.Faults
	if len(faults) == 0 && c.Reason != "" { // of a control plane that does not list them
		faults = []clusters.Fault{{Reason: c.Reason}}
	}
	first := at
	if c.State != clusters.Synced {
		first = fmt.Sprintf("%s is %s", at, c.State)
		if len(faults) == 0 {
			return []string{first}
		}
	}
	var out []string
	for i, f := range faults {
		line := at + ": " + f.Reason
		if i == 0 {
			line = first + ": " + f.Reason
		}
		if f.Fix != "" {
			line += "; fix: " + f.Fix
		}
		out = append(out, line)
	}
	return out
}

// waitPause is the interval between requests of --wait.
const waitPause = 500 * time.Millisecond

func (o *remoteClustersOptions) run(ctx context.Context, env *cli.Env) error {
	waiting, stop := context.WithTimeout(ctx, o.Timeout)
	defer stop()
	var views []replicaView
	var wrong []replicaLine
	find := func() ([]*replicas.Replica, error) { return o.Find(ctx, env) }
	err := cli.Poll(waiting, waitPause, find, func(found []*replicas.Replica) (lost bool, err error) {
		views, wrong = cli.ForEach(found, func(r *replicas.Replica) replicaView { return askClusters(ctx, r) }), nil
		for i := range views {
			wrong = append(wrong, views[i].wrong()...)
			lost = lost || views[i].Error != ""
		}
		if !o.wait || len(wrong) == 0 && !lost {
			stop()
		}
		return lost, nil
	})
	if err := cmp.Or(err, ctx.Err()); err != nil {
		return err
	}
	return o.show(env, views, mergeLines(wrong))
}

// askClusters asks a replica for its clusters.
func askClusters(ctx context.Context, r *replicas.Replica) replicaView {
	var page clusters.Page
	err := r.Get(ctx, "/debug/clusters", nil, &page)
	view := replicaView{
		Server: r.Name, Via: r.Via, Clusters: page.Clusters, Problems: page.Problems, UnreachableNetworks: page.UnreachableNetworks,
		AddressConflicts: page.AddressConflicts, AddressConflictCount: page.AddressConflictCount,
		HostConflicts: page.HostConflicts, HostConflictCount: page.HostConflictCount,
	}
	if err == nil {
		return view
	}
	view.Error, view.err = "ask the control plane: "+err.Error(), err
	if errors.Is(err, replicas.ErrNotFound) {
		view.Error = "this is no control plane of meshctl"
	}
	if r.Announced != nil {
		for _, c := range r.Announced.Clusters {
			view.Clusters = append(view.Clusters, clusters.PageCluster{Status: clusters.Status{
				Cluster: c.ID, State: clusters.State(c.State), Credential: c.Credential,
			}})
		}
	}
	return view
}

func (o *remoteClustersOptions) show(env *cli.Env, views []replicaView, wrong []string) error {
	if !o.Output.OfTable() {
		if err := output.Write(env.Stdout, o.Output, views); err != nil {
			return err
		}
	} else {
		table := &output.Table{Header: []string{"NAME", "SECRET", "STATUS", "AGE", "SERVICES", "ENDPOINTS", "REPLICA"}, Gap: 5}
		if o.Output.Wide() {
			table.Header = append(table.Header, "NETWORK", "GATEWAYS", "HEARD", "CREDENTIAL", "TOKEN LEFT", "BALANCING", "VERSION", "CAUSE", "REFUSED GATEWAYS")
		}
		for i := range views {
			for j := range views[i].Clusters {
				table.Rows = append(table.Rows, o.row(env.Now(), &views[i], &views[i].Clusters[j]))
			}
		}
		if o.Output.ForPeople() {
			mergeRows(table, "REPLICA", "AGE", "HEARD")
		}
		if len(table.Rows) == 0 {
			env.Notef("No cluster is known to %s", cli.Named("control plane", serversOf(views)))
		}
		if len(table.Rows) > 0 || !o.Output.ForPeople() {
			if err := cli.WriteTable(env, o.Output, table); err != nil {
				return err
			}
		}
	}
	var hints []string
	for i := range views {
		for j := range views[i].Clusters {
			hints = append(hints, views[i].Clusters[j].Hints()...)
		}
	}
	env.Hints(o.Runnable(distinct(hints)))
	var lines []string
	var silent []error
	for i := range views {
		if v := &views[i]; v.err != nil {
			lines, silent = append(lines, v.Server+": "+strings.ReplaceAll(v.Error, "\n", "; ")), append(silent, v.err)
		}
	}
	return env.Conclude(wrong, o.Unread(lines, silent, len(views)))
}

func serversOf(views []replicaView) []string {
	var out []string
	for i := range views {
		out = append(out, views[i].Server)
	}
	return out
}

func (o *remoteClustersOptions) row(now time.Time, v *replicaView, c *clusters.PageCluster) []string {
	secret := c.Origin
	if c.Own {
		secret = ""
	}
	state := string(c.State)
	if v.Error != "" {
		state += ", by its Lease"
	}
	switch what, _, _ := strings.Cut(c.CredentialProblem, ", at "); {
	case c.CredentialExpired:
		state += ", credential expired"
	case what != "":
		state += ", " + what
	}
	if c.Drained {
		state += ", drained"
	}
	row := []string{
		string(c.Cluster), secret, state, ageOf(now, c.Since), fmt.Sprint(c.Services), fmt.Sprint(c.Endpoints), v.Server,
	}
	if !o.Output.Wide() {
		return row
	}
	left := "-"
	if c.TokenEnds != nil {
		left = cli.FormatDuration(max(c.TokenEnds.Sub(now), 0).Truncate(time.Minute))
	}
	return append(row, cli.OrDash(string(c.Network)), cli.OrDash(strings.Join(c.Gateways, ",")), ageOf(now, c.Heard),
		cli.OrDash(c.Credential), left, balancing(c), cli.OrDash(c.Version), cli.OrDash(c.Cause), cli.OrDash(refusedGateways(c)))
}

// refusedGateways lists the gateways of a cluster that are not used, with reasons.
func refusedGateways(c *clusters.PageCluster) string {
	var parts []string
	for _, g := range c.RefusedGateways {
		parts = append(parts, g.Address+": "+g.Reason)
	}
	if more := c.RefusedGatewayCount - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}

// balancing returns the settings of a cluster for load balancing.
func balancing(c *clusters.PageCluster) string {
	var parts []string
	if c.Drained {
		parts = append(parts, "drained")
	}
	if c.Demoted {
		parts = append(parts, "demoted")
	}
	if w := cmp.Or(c.Setting.Weight, 100); w != 100 {
		parts = append(parts, fmt.Sprintf("weight %d%%", w))
	}
	return cli.OrDash(strings.Join(parts, ", "))
}

// ageOf returns the time since t.
func ageOf(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return cli.FormatDuration(max(now.Sub(t), 0).Truncate(time.Second))
}
