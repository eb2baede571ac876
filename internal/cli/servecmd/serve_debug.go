package servecmd

import (
	"cmp"
	"os"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/server"
)

// debugOptions are the flags of serve about status pages.
type debugOptions struct {
	namespaces []string
	network    bool
	profiling  bool
}

func (o *debugOptions) bind(f *pflag.FlagSet) {
	f.StringSliceVar(&o.namespaces, "debug-namespace", nil, "`Namespace` whose identities may read all status pages, besides the system namespace; repeatable")
	f.BoolVar(&o.network, "debug-network", false, "Serve status pages at --http-addr to callers of other machines, too; their tokens cross the network in clear")
	cli.MarkWeakening(f, "debug-network")
	f.BoolVar(&o.profiling, "profiling", false, "Serve runtime profiles at /debug/pprof/ of --http-addr to the user of serve on this machine, as meshctl x internal-debug pprof/heap reads them")
}

func (o *debugOptions) apply(env *cli.Env, cfg *server.Config) {
	cfg.DebugNamespaces, cfg.DebugNetwork, cfg.Profiling = o.namespaces, o.network, o.profiling
	cfg.TokenDirs = localtoken.Directories(env.LookupEnv)
	pod, _ := env.LookupEnv("POD_NAME")
	host, _ := os.Hostname()
	cfg.Name = cmp.Or(pod, host)
}
