// Package render makes what serve would send to proxies, from YAML and without
// connections. The objects pass through the same sources, registry, views and
// rounds as in serve.
package render

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/identity"
	"github.com/meshctl/meshctl/internal/server/load"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
)

// Config describes a mesh.
type Config struct {
	// Clusters holds the sources of each cluster. The first cluster is the own one, whose
	// configuration counts.
	Clusters []load.Cluster
	// Network, TrustDomain, SystemNamespace and SocketDir are settings of the own control plane, as
	// in server.Config. SystemNamespace must not be empty.
	Network         mesh.NetworkID
	TrustDomain     string
	SystemNamespace string
	SocketDir       string
	// Log gets the problems that serve logs.
	Log *slog.Logger
	Now func() time.Time
}

// Mesh is the state of a mesh at one moment. Only one goroutine at a time may use it.
type Mesh struct {
	snapshot *snapshot.Snapshot
	offline  *xds.Offline
	faults   *atomic.Int64 // errors in the log
}

// faultCounter counts the errors of a log. The registry and the generator log a fault and
// go on with the last good version, which does not exist here.
type faultCounter struct {
	slog.Handler
	faults *atomic.Int64
}

func (c faultCounter) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		c.faults.Add(1)
	}
	return c.Handler.Handle(ctx, r)
}

func (c faultCounter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return faultCounter{c.Handler.WithAttrs(attrs), c.faults}
}

func (c faultCounter) WithGroup(name string) slog.Handler {
	return faultCounter{c.Handler.WithGroup(name), c.faults}
}

// Read reads the sources.
func Read(ctx context.Context, cfg Config) (*Mesh, error) {
	m := &Mesh{faults: new(atomic.Int64)}
	cfg.Log = slog.New(faultCounter{cfg.Log.Handler(), m.faults})
	read, err := load.Read(ctx, load.Config{
		Clusters: cfg.Clusters, SystemNamespace: cfg.SystemNamespace, Network: cfg.Network, TrustDomain: cfg.TrustDomain, SocketDir: cfg.SocketDir,
		Resolve: func(hosts []string) map[string][]netip.Addr {
			if len(hosts) > 0 {
				cfg.Log.Warn("host names of gateways are not resolved: networks behind them are unreachable", "hosts", strings.Join(hosts, ", "))
			}
			return map[string][]netip.Addr{}
		},
		Log: cfg.Log, Now: cfg.Now,
	})
	if err != nil {
		return nil, err
	}
	if m.faults.Load() > 0 {
		return nil, errors.New("the configuration cannot be computed: the log has the reason")
	}
	m.snapshot = read.Snapshot
	m.offline = xds.NewOffline(xds.Generator{
		ParseNode: proxy.ParseNode, Assign: xdsgen.Assign, AssignReads: xdsgen.AssignReads, Concerned: xdsgen.Concerned,
		Fallback: xdsgen.Fallback, Secrets: units.AssignSecrets,
	}, m.snapshot, identity.ConfiguredGateway, cfg.Log, cfg.Now)
	return m, nil
}
