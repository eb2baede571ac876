package servecmd

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/server"
)

// clusterOptions are the flags of serve about other clusters.
type clusterOptions struct {
	kubeconfigDir string
	insecure      []string
	onLost        string
	grace         time.Duration
	timeout       time.Duration
}

func (o *clusterOptions) bind(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfigDir, "kubeconfig-dir", "", "`Directory` of kubeconfigs, one other cluster in each file, followed")
	f.StringArrayVar(&o.insecure, "insecure-remote", nil, "Let the kubeconfig of a cluster do what is refused otherwise, as `CLUSTER=WHAT` (see docs/serve.md); repeatable")
	cli.MarkWeakening(f, "insecure-remote")
	f.StringVar(&o.onLost, "on-cluster-lost", string(mesh.Keep), "What happens to the endpoints of a cluster that is not followed any more, as a `choice`: keep, demote (those of others come first) or drop (after --grace, where others have the service)")
	cli.DurationVar(f, &o.grace, "grace", 5*time.Minute, "How long after its loss --on-cluster-lost drop drops a cluster")
	cli.DurationVar(f, &o.timeout, "remote-timeout", 30*time.Second, "Longest wait for other clusters to be read before the rest is served")
}

func (o *clusterOptions) apply(cfg *server.Config) error {
	onLost, err := mesh.ParseOnLost(o.onLost)
	if err != nil {
		return cli.Usagef("--on-cluster-lost %w", err)
	}
	allow, err := remotesecret.ParseAllow(o.insecure)
	if err != nil {
		return cli.Usagef("--insecure-remote: %w", err)
	}
	cfg.KubeconfigDir, cfg.Allow, cfg.OnClusterLost, cfg.Grace, cfg.RemoteTimeout = o.kubeconfigDir, allow, onLost, o.grace, o.timeout
	return nil
}
