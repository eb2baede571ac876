package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/server/clusters"
)

type remoteClustersOptions struct {
	servers []string
	wait    bool
	timeout time.Duration
	format  string
}

func newRemoteClustersCmd(env *Env) *cobra.Command {
	var o remoteClustersOptions
	cmd := &cobra.Command{
		Use:   "remote-clusters",
		Short: "Show the clusters that control planes read, and what is wrong with them",
		Long: `Show the clusters that each replica of a control plane reads: where each comes
from, how far it was read, since when and why not, what it contributes. The
sources are the replicas' debug addresses (--server), which answer callers on
their own machine only: a port-forward is one.

The exit code is 3 when a replica does not answer, when a cluster is not read or
not followed, or when a claim of a cluster has no effect.`,
		Example: `  meshctl remote-clusters
  # of two replicas, and until everything is read
  meshctl remote-clusters --server 127.0.0.1:8080,127.0.0.1:18080 --wait --timeout 2m -o wide`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.servers, "server", []string{"http://127.0.0.1:8080"}, "Debug addresses of the replicas: `host:port` or http://host:port, repeatable")
	f.BoolVar(&o.wait, "wait", false, "Wait until nothing is wrong, for --timeout at most")
	durationVar(f, &o.timeout, "timeout", 30*time.Second, "Longest wait for the whole answer, and with --wait until nothing is wrong")
	choiceVar(f, &o.format, "output", "o", "How to show it", string(output.FormatTable), formatWide, string(output.FormatJSON), string(output.FormatYAML))
	return cmd
}

// replicaView is what one replica says.
type replicaView struct {
	Server string `json:"server"`
	// Error is why it says nothing.
	Error    string               `json:"error,omitzero"`
	Clusters []server.ClusterPage `json:"clusters"`
	Problems []clusters.Problem   `json:"problems,omitzero"`
}

// wrong are the things that are not as they should be.
func (v *replicaView) wrong() []string {
	if v.Error != "" {
		return []string{v.Server + ": " + v.Error}
	}
	var out []string
	for _, c := range v.Clusters {
		if c.State != clusters.Synced {
			out = append(out, strings.TrimSuffix(fmt.Sprintf("%s: cluster %s is %s: %s", v.Server, c.Cluster, c.State, c.Reason), ": "))
		}
	}
	for _, p := range v.Problems {
		out = append(out, strings.Replace(fmt.Sprintf("%s: %s, cluster %s: %s", v.Server, p.Origin, p.Cluster, p.Reason), ", cluster :", ":", 1))
	}
	return out
}

// waitPause is how long replicas are left alone between two questions.
const waitPause = 500 * time.Millisecond

func (o *remoteClustersOptions) run(ctx context.Context, env *Env) error {
	if len(o.servers) == 0 {
		return usagef("--server: name at least one replica")
	}
	for _, s := range o.servers {
		if _, err := (&xdsOptions{server: s}).base(); err != nil {
			return err
		}
	}
	deadline := time.NewTimer(o.timeout)
	defer deadline.Stop()
	for {
		views := o.ask(ctx)
		var wrong []string
		for i := range views {
			wrong = append(wrong, views[i].wrong()...)
		}
		if len(wrong) > 0 && o.wait {
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

// ask asks all replicas at once.
func (o *remoteClustersOptions) ask(ctx context.Context) []replicaView {
	views := make([]replicaView, len(o.servers))
	var wg sync.WaitGroup
	for i, s := range o.servers {
		wg.Go(func() {
			var page server.ClustersPage
			one := xdsOptions{server: s, timeout: o.timeout}
			err := one.debug(ctx, "clusters", nil, &page)
			views[i] = replicaView{Server: strings.TrimPrefix(s, "http://"), Clusters: page.Clusters, Problems: page.Problems}
			if errors.Is(err, errNoSuch) {
				views[i].Error = "it is no control plane of meshctl"
			} else if err != nil {
				views[i].Error = err.Error()
			}
		})
	}
	wg.Wait()
	return views
}

func (o *remoteClustersOptions) show(env *Env, views []replicaView, wrong []string) error {
	if f := output.Format(o.format); o.format != formatWide && f != output.FormatTable {
		if err := output.Write(env.Stdout, f, views); err != nil {
			return err
		}
	} else {
		table := &output.Table{Header: []string{"NAME", "SECRET", "STATUS", "AGE", "SERVICES", "ENDPOINTS", "REPLICA"}, Gap: 5}
		if o.format == formatWide {
			table.Header = append(table.Header, "NETWORK", "GATEWAYS", "HEARD", "CREDENTIAL", "TOKEN LEFT", "BALANCING", "CAUSE")
		}
		for i := range views {
			for j := range views[i].Clusters {
				table.Rows = append(table.Rows, o.row(env.Now(), &views[i], &views[i].Clusters[j]))
			}
		}
		if err := table.Write(env.Stdout); err != nil {
			return err
		}
	}
	if len(wrong) > 0 {
		return findingsf("%s", output.Escape(strings.Join(wrong, "\n")))
	}
	return nil
}

func (o *remoteClustersOptions) row(now time.Time, v *replicaView, c *server.ClusterPage) []string {
	secret := c.Origin
	if c.Own {
		secret = ""
	}
	row := []string{
		string(c.Cluster), secret, string(c.State), ageOf(now, c.Since), fmt.Sprint(c.Services), fmt.Sprint(c.Endpoints), v.Server,
	}
	if o.format != formatWide {
		return row
	}
	left := "-"
	if c.TokenEnds != nil {
		left = formatDuration(max(c.TokenEnds.Sub(now), 0).Truncate(time.Minute))
	}
	return append(row, orDash(string(c.Network)), orDash(strings.Join(c.Gateways, ",")), ageOf(now, c.Heard),
		orDash(c.Credential), left, balancing(c), orDash(c.Cause))
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
	return formatDuration(max(now.Sub(t), 0).Truncate(time.Second))
}
