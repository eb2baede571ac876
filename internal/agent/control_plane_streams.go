package agent

import (
	"cmp"
	"context"
	"crypto/x509"
	"log/slog"
	"math/rand/v2"

	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/agent/bootstrap"
	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/dns"
	"github.com/meshctl/meshctl/internal/agent/metrics"
	"github.com/meshctl/meshctl/internal/agent/relay"
	"github.com/meshctl/meshctl/internal/agent/wasm"
	"github.com/meshctl/meshctl/internal/agent/workloadcert"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// handlers returns the handlers for types of resources that the agent itself needs, by URL.
func handlers(c *config.Config, log *slog.Logger, p *publisher, names *dns.Server, patches *bootstrapPatches) map[string]relay.Handler {
	out := map[string]relay.Handler{}
	if c.FollowRoots {
		out[xdswire.ProxyConfigType] = relay.Roots(func(roots []*x509.Certificate) error {
			log.Info("received roots from the control plane", "roots", len(roots))
			return p.useBundle(roots)
		})
	}
	if names != nil {
		out[xdswire.NameTableType] = names
	}
	if patches != nil {
		out[xdswire.BootstrapType] = patches.handler()
	}
	return out
}

// relaysEnvoy reports whether the stream of an Envoy passes through the relay.
func relaysEnvoy(c *config.Config) bool { return !c.NoEnvoy && !c.Direct }

// newModules returns the store of the modules of plugins, nil if the agent fetches none.
func newModules(ctx context.Context, c *config.Config, opts Options) (*wasm.Store, error) {
	if c.Modules == nil {
		return nil, nil //nolint:nilnil // none is no error
	}
	settings := *c.Modules
	settings.Now = opts.Now
	return wasm.New(ctx, settings)
}

// newStreams returns the relay for Envoy and applications, and the agent's own stream, nil if
// none is needed. The resources of handlers come on the stream of Envoy where it passes
// through the relay, health reports always on the agent's own.
func newStreams(c *config.Config, opts Options, status *statusServer, manager *workloadcert.Manager, handlers map[string]relay.Handler, health <-chan string) (*relay.Relay, *relay.Stream) {
	call := controlPlane(c, manager)
	r := &relay.Relay{
		Call: func(ctx context.Context, do func(context.Context, grpc.ClientConnInterface) error) error {
			select { // Envoy starts before there is a certificate
			case <-manager.Obtained():
				return call(ctx, do)
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		Log: opts.Log, Jitter: rand.Float64,
	}
	status.count(r)
	if relaysEnvoy(c) {
		r.Handlers, handlers = handlers, nil
	}
	if len(handlers) == 0 && health == nil {
		return r, nil
	}
	return r, &relay.Stream{
		Call: call, Node: c.Node, Metadata: c.Metadata, Health: health, Handlers: handlers,
		Log: opts.Log, Now: opts.Now, Rand: opts.newRand(),
	}
}

// controlPlane returns a function that calls the control plane with the workload's newest
// certificate and its token.
func controlPlane(c *config.Config, manager *workloadcert.Manager) relay.Call {
	client := newClient(c, "control plane", c.Discovery, c.MoreDiscovery)
	client.RootFile = cmp.Or(c.XDSRootFile, c.CARootFile)
	return func(ctx context.Context, do func(context.Context, grpc.ClientConnInterface) error) error {
		current := manager.Current()
		if c.XDSRootFile != "" {
			current.Roots = nil // only the roots in the file sign the control plane
		}
		return client.Call(ctx, current, do)
	}
}

// newPeers returns the workloads of callers, which the control plane knows.
func newPeers(c *config.Config, manager *workloadcert.Manager, opts Options) *metrics.Peers {
	call := controlPlane(c, manager)
	return metrics.NewPeers(func(ctx context.Context, identities []string) (map[string]mesh.WorkloadLabels, error) {
		return relay.Workloads(ctx, call, identities)
	}, opts.Log)
}

// authority returns a client of the certificate authority.
func authority(c *config.Config) *workloadcert.Client {
	return newClient(c, "certificate authority", c.CA, c.MoreCA)
}

// newClient returns a client of one of the servers that proves the workload's identity.
func newClient(c *config.Config, kind string, first bootstrap.Server, more []bootstrap.Server) *workloadcert.Client {
	servers := []workloadcert.Server{{Addr: first.Addr(), Name: first.Name}}
	for _, s := range more {
		servers = append(servers, workloadcert.Server{Addr: s.Addr(), Name: s.Name})
	}
	return &workloadcert.Client{
		Servers:      servers,
		Kind:         kind,
		RootFile:     c.CARootFile,
		TokenFile:    c.TokenFile,
		Cluster:      c.Cluster,
		KeyExchanges: c.KeyExchanges,
	}
}
