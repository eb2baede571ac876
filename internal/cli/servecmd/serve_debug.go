package servecmd

import (
	"cmp"
	"os"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/server"
)

// debugOptions hold the flags of serve for status pages.
type debugOptions struct {
	namespaces []string
	network    bool
	profiling  bool
}

func (o *debugOptions) bind(f *pflag.FlagSet) {
	f.StringSliceVar(&o.namespaces, "debug-namespace", nil, "`Namespace` whose identities may read all status pages, in addition to the system namespace; may be repeated")
	f.BoolVar(&o.network, "debug-network", false, "Serve status pages at --http-addr also to other machines; their tokens cross the network in clear text")
	cli.MarkWeakening(f, "debug-network")
	f.BoolVar(&o.profiling, "profiling", false, "Serve runtime profiles at /debug/pprof/ of --http-addr to the user of serve on this machine, for meshctl x internal-debug pprof/heap")
}

func (o *debugOptions) apply(env *cli.Env, cfg *server.Config) {
	cfg.DebugNamespaces, cfg.DebugNetwork, cfg.Profiling = o.namespaces, o.network, o.profiling
	cfg.TokenDirs = localtoken.Directories(env.LookupEnv)
	pod, _ := env.LookupEnv("POD_NAME")
	host, _ := os.Hostname()
	cfg.Name = cmp.Or(pod, host)
}
