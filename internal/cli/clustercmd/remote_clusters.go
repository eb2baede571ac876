package clustercmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/server/clusters"
	"github.com/meshctl/meshctl/internal/server/registry"
)

type remoteClustersOptions struct {
	replicas cli.ReplicaFlags
	wait     bool
	timeout  time.Duration
	output   output.Format
}

func NewRemoteClusters(env *cli.Env) *cobra.Command {
	var o remoteClustersOptions
	cmd := &cobra.Command{
		Use:   "remote-clusters",
		Short: "Show the clusters that control planes read, and what is wrong with them",
		Long: `Show the clusters that each replica of a control plane reads: where each comes
from, how far it was read, since when and why not, what it contributes.

The replicas are those of the kubeconfig's cluster: each keeps a Lease in the
system namespace, and those without one are found as pods of meshctl or istiod.
One on this machine is asked directly, one in a pod by a port-forward of the API
server, for which the right to create pods/portforward is needed. Of one that
cannot be reached, what its Lease tells is shown. --server names replicas by
address instead; they answer the user that runs them on their own machine, and
others with --token-file. For pods without it, a token of the service account
default is made.

The exit code is 3 when a replica does not answer, when a cluster is not read or
not followed, when the credential it is read with has expired or lacks a right, when
a claim of a cluster has no effect, or when a network that others have to reach has
no usable gateway.`,
		Example: `  meshctl remote-clusters --context east
  # until everything is read
  meshctl remote-clusters --context east --wait --timeout 2m -o wide
  # of two replicas on this machine
  meshctl remote-clusters --server 127.0.0.1:8080,127.0.0.1:18080`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	f := cmd.Flags()
	o.replicas.Bind(env, cmd)
	f.BoolVar(&o.wait, "wait", false, "Wait until nothing is wrong, for --timeout at most")
	cli.DurationVar(f, &o.timeout, "timeout", 30*time.Second, "Longest wait for the whole answer, and with --wait until nothing is wrong")
	cli.TableVar(f, &o.output)
	return cmd
}

// replicaView is what one replica says.
type replicaView struct {
	Server string `json:"server"`
	// Via is how it was reached.
	Via string `json:"via,omitzero"`
	// Error is why it says nothing. Clusters are then what its Lease said last.
	Error    string               `json:"error,omitzero"`
	Clusters []server.ClusterPage `json:"clusters"`
	Problems []clusters.Problem   `json:"problems,omitzero"`
	// UnreachableNetworks are those whose endpoints proxies of other networks are
	// not given.
	UnreachableNetworks []registry.UnreachableNetwork `json:"unreachableNetworks,omitzero"`
	// AddressConflicts are the first of the addresses that two Services have,
	// AddressConflictCount is how many there are.
	AddressConflicts     []registry.AddressConflict `json:"addressConflicts,omitzero"`
	AddressConflictCount int                        `json:"addressConflictCount,omitzero"`
}

// wrong are the things that are not as they should be.
func (v *replicaView) wrong() []string {
	var out []string
	if v.Error != "" {
		out = append(out, v.Server+": "+strings.ReplaceAll(v.Error, "\n", "; "))
	}
	for _, c := range v.Clusters {
		switch {
		case c.State != clusters.Synced:
			out = append(out, strings.TrimSuffix(fmt.Sprintf("%s: cluster %s is %s: %s", v.Server, c.Cluster, c.State, c.Reason), ": "))
		case c.Reason != "":
			out = append(out, fmt.Sprintf("%s: cluster %s: %s", v.Server, c.Cluster, c.Reason))
		}
	}
	for _, u := range v.UnreachableNetworks {
		out = append(out, v.Server+": "+u.String())
	}
	for _, p := range v.Problems {
		at := v.Server + ": " + p.Origin
		if p.Cluster != "" {
			at += ", cluster " + string(p.Cluster)
		}
		out = append(out, at+": "+p.Reason)
		for _, f := range p.Refused {
			out = append(out, fmt.Sprintf("%s, field %s: fix: %s, or allow %s=%s", at, f.Field, f.Fix, p.Cluster, f.Code))
		}
	}
	return out
}

// waitPause is how long replicas are left alone between two questions.
const waitPause = 500 * time.Millisecond

func (o *remoteClustersOptions) run(ctx context.Context, env *cli.Env) error {
	deadline := time.NewTimer(o.timeout)
	defer deadline.Stop()
	var found []*replicas.Replica
	defer func() { cli.CloseReplicas(found) }()
	for {
		if found == nil {
			var err error
			if found, err = o.replicas.Find(ctx, env, o.timeout); err != nil {
				return err
			}
		}
		views := askClusters(ctx, found)
		var wrong []string
		again := false
		for i := range views {
			wrong = append(wrong, views[i].wrong()...)
			again = again || views[i].Error != ""
		}
		if len(wrong) > 0 && o.wait {
			if again { // there may be others by now
				cli.CloseReplicas(found)
				found = nil
			}
			pause := time.NewTimer(waitPause)
			select {
			case <-pause.C:
				continue
			case <-ctx.Done():
				pause.Stop()
				return ctx.Err()
			case <-deadline.C:
				pause.Stop()
			}
		}
		return o.show(env, views, wrong)
	}
}

// askClusters asks all replicas at once.
func askClusters(ctx context.Context, list []*replicas.Replica) []replicaView {
	views := make([]replicaView, len(list))
	var wg sync.WaitGroup
	for i, r := range list {
		wg.Go(func() {
			var page server.ClustersPage
			err := r.Get(ctx, "/debug/clusters", nil, &page)
			views[i] = replicaView{
				Server: r.Name, Via: r.Via, Clusters: page.Clusters, Problems: page.Problems, UnreachableNetworks: page.UnreachableNetworks,
				AddressConflicts: page.AddressConflicts, AddressConflictCount: page.AddressConflictCount,
			}
			if err == nil {
				return
			}
			views[i].Error = "ask the control plane: " + err.Error()
			if errors.Is(err, replicas.ErrNotFound) {
				views[i].Error = "it is no control plane of meshctl"
			}
			if r.Announced != nil {
				for _, c := range r.Announced.Clusters {
					views[i].Clusters = append(views[i].Clusters, server.ClusterPage{Status: clusters.Status{
						Cluster: c.ID, State: clusters.State(c.State), Credential: c.Credential,
					}})
				}
			}
		})
	}
	wg.Wait()
	return views
}

func (o *remoteClustersOptions) show(env *cli.Env, views []replicaView, wrong []string) error {
	if !o.output.OfTable() {
		if err := output.Write(env.Stdout, o.output, views); err != nil {
			return err
		}
	} else {
		table := &output.Table{Header: []string{"NAME", "SECRET", "STATUS", "AGE", "SERVICES", "ENDPOINTS", "REPLICA"}, Gap: 5}
		if o.output.Wide() {
			table.Header = append(table.Header, "NETWORK", "GATEWAYS", "HEARD", "CREDENTIAL", "TOKEN LEFT", "BALANCING", "VERSION", "CAUSE", "REFUSED GATEWAYS")
		}
		for i := range views {
			for j := range views[i].Clusters {
				table.Rows = append(table.Rows, o.row(env.Now(), &views[i], &views[i].Clusters[j]))
			}
		}
		if len(table.Rows) > 0 || !o.output.ForPeople() {
			if err := cli.WriteTable(env, o.output, table); err != nil {
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
	cli.PrintHints(env, hints)
	if len(wrong) > 0 {
		var silent []string
		for i := range views {
			if views[i].Error != "" {
				silent = append(silent, views[i].Error)
			}
		}
		return cli.Findingsf("%s%s", output.EscapeLines(wrong), o.replicas.Advice(silent, len(views)))
	}
	return nil
}

func (o *remoteClustersOptions) row(now time.Time, v *replicaView, c *server.ClusterPage) []string {
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
	row := []string{
		string(c.Cluster), secret, state, ageOf(now, c.Since), fmt.Sprint(c.Services), fmt.Sprint(c.Endpoints), v.Server,
	}
	if !o.output.Wide() {
		return row
	}
	left := "-"
	if c.TokenEnds != nil {
		left = cli.FormatDuration(max(c.TokenEnds.Sub(now), 0).Truncate(time.Minute))
	}
	return append(row, cli.OrDash(string(c.Network)), cli.OrDash(strings.Join(c.Gateways, ",")), ageOf(now, c.Heard),
		cli.OrDash(c.Credential), left, balancing(c), cli.OrDash(c.Version), cli.OrDash(c.Cause), cli.OrDash(refusedGateways(c)))
}

// refusedGateways are those of a cluster that are not used, and why not.
func refusedGateways(c *server.ClusterPage) string {
	var parts []string
	for _, g := range c.RefusedGateways {
		parts = append(parts, g.Address+": "+g.Reason)
	}
	if more := c.RefusedGatewayCount - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}

// balancing is the part that a cluster takes in load balancing.
func balancing(c *server.ClusterPage) string {
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
	return cmp.Or(strings.Join(parts, ", "), "-")
}

// ageOf is how long ago a time is.
func ageOf(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return cli.FormatDuration(max(now.Sub(t), 0).Truncate(time.Second))
}
