package servecmd

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/server"
)

// clusterOptions hold the flags of serve for other clusters.
type clusterOptions struct {
	kubeconfigDir string
	insecure      []string
	onLost        string
	grace         time.Duration
	timeout       time.Duration
}

func (o *clusterOptions) bind(f *pflag.FlagSet) {
	cli.DirVar(f, &o.kubeconfigDir, "kubeconfig-dir", "`Directory` with a kubeconfig for each other cluster, watched")
	f.StringArrayVar(&o.insecure, "insecure-remote", nil, "Accept an insecure setting in the kubeconfig of a cluster, as `CLUSTER=SETTING` (see docs/serve.md); may be repeated")
	cli.MarkWeakening(f, "insecure-remote")
	cli.ChoiceVar(f, &o.onLost, "on-cluster-lost", "Treatment of the endpoints of a cluster that does not answer, drop applies after --grace and to services of several clusters", string(mesh.Keep), string(mesh.Demote), string(mesh.Drop))
	cli.DurationVar(f, &o.grace, "grace", 5*time.Minute, "Time until --on-cluster-lost drop removes a cluster")
	cli.DurationVar(f, &o.timeout, "remote-timeout", 30*time.Second, "Longest wait for other clusters before the server is ready")
}

func (o *clusterOptions) apply(cfg *server.Config) error {
	allow, err := remotesecret.ParseAllow(o.insecure)
	if err != nil {
		return cli.Usagef("--insecure-remote: %w", err)
	}
	cfg.KubeconfigDir, cfg.Allow, cfg.OnClusterLost, cfg.Grace, cfg.RemoteTimeout = o.kubeconfigDir, allow, mesh.OnLost(o.onLost), o.grace, o.timeout
	return nil
}
