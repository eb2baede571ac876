package servecmd

import (
	"errors"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/server"
)

// boundMemory sets the garbage collector, unless GOGC and GOMEMLIMIT do. Most allocations are
// short-lived requests: collecting garbage twice as often as by default costs little CPU
// and halves their memory. Before it is ready, the server allocates mostly long-lived
// objects and must start fast.
func boundMemory(env *cli.Env, cfg *server.Config) {
	if _, set := env.LookupEnv("GOGC"); !set {
		cfg.OnReady = func() { debug.SetGCPercent(50) }
	}
	if _, set := env.LookupEnv("GOMEMLIMIT"); !set {
		limitMemory(cfg.Log)
	}
}

// limitMemory sets the limit of the garbage collector to nine tenths of the memory limit
// of the cgroup, if any. Beyond the latter the kernel kills the process, although most
// of its memory may be garbage.
func limitMemory(log *slog.Logger) {
	if limit := memoryLimit(log); limit > 0 {
		limit = limit / 10 * 9
		debug.SetMemoryLimit(int64(limit))
		log.Info("memory limited by the cgroup", "GOMEMLIMIT", limit)
	}
}

// memoryLimit returns the memory limit of the cgroup in bytes, 0 without one.
func memoryLimit(log *slog.Logger) uint64 {
	limit, err := memlimit.FromCgroup()
	switch {
	case errors.Is(err, memlimit.ErrNoLimit), errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
		log.Debug("no memory limit", "error", err)
	case err != nil:
		log.Warn("the memory limit of the cgroup cannot be read: set GOMEMLIMIT", "error", err)
	case limit < math.MaxInt64:
		return limit
	}
	return 0
}

// cpuLimit returns the number of processors that the cgroup allows, rounded up and at least 2,
// and 0 if it allows all. GOMAXPROCS of the environment concerns this process alone.
func cpuLimit(env *cli.Env) int {
	_, set := env.LookupEnv("GOMAXPROCS")
	if n := runtime.GOMAXPROCS(0); !set && n < runtime.NumCPU() {
		return n
	}
	return 0
}
