package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/internal/server/clusters"
	"github.com/meshctl/meshctl/internal/server/debug"
	"github.com/meshctl/meshctl/internal/server/identity"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/dns"
	"github.com/meshctl/meshctl/internal/server/source/jwks"
	"github.com/meshctl/meshctl/internal/server/trust"
	"github.com/meshctl/meshctl/internal/server/xds"
	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/serving"
)

// Server is a control plane. New prepares it and listens, Run serves.
type Server struct {
	cfg     Config
	ca      *ca.CA
	issuer  *ca.Issuer
	serving func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	own     *ca.FileCertificate // nil without files
	oidc    *identity.OIDC      // nil without rules
	tokens  map[mesh.ClusterID][]identity.TokenVerifier
	callers atomic.Pointer[callers]
	// agentTrust is what agents give to their Envoys, nil while they cannot use it.
	agentTrust atomic.Pointer[xds.Trust]
	trust      *trust.Peers
	registry   *registry.Registry
	hosts      *dns.Resolver
	keySets    *jwks.Fetcher
	keyClient  *http.Client
	hub        *xds.Hub
	sources    *clusters.Manager
	// kubernetes makes the access to clusters of remote secrets.
	kubernetes *clusters.Kubernetes
	apis       apiParts
	metrics    *prometheus.Registry
	debug      *debug.Pages
	// operator is the token for commands of this machine and user. forgetToken deletes
	// it.
	operator    localtoken.Token
	forgetToken func()
	// changed gets a value when the mesh has changed since the last checks. findings are the
	// faults that they found.
	changed  chan struct{}
	findings atomic.Pointer[knownFaults]
	ready    atomic.Bool
	draining atomic.Bool

	http, monitoring, plain, secure, bundle, webhooks net.Listener

	injection injection
	reviews   *reviews
	workloads workloadIndex
	checking  chan struct{} // capacity 1: findingsOfChange runs

	bundleEndpoint *ca.BundleEndpoint

	fit fitness
}

// New checks the configuration, loads the CA and listens on all addresses, so that a
// port in use or a broken CA is an error before anything is served.
func New(cfg Config) (_ *Server, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := checkConfigDir(&cfg); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, metrics: prometheus.NewRegistry(), fit: fitness{changed: make(chan struct{}, 1)}, changed: make(chan struct{}, 1), checking: make(chan struct{}, 1)}
	s.findings.Store(&knownFaults{})
	s.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.reviews = newReviews(s.metrics)
	s.newAPIParts()
	if err := s.newTrust(); err != nil {
		return nil, err
	}
	if err := s.loadCA(); err != nil {
		return nil, err
	}
	if err := s.loadTokenIssuers(); err != nil {
		return nil, err
	}
	s.hub = xds.NewHub(xds.Config{
		Generator: xds.Generator{
			ParseNode: proxy.ParseNode, Assign: xdsgen.Assign,
			AssignReads: xdsgen.AssignReads, Concerned: xdsgen.Concerned, Fallback: xdsgen.Fallback, Secrets: units.AssignSecrets,
		},
		MayReadKeys: s.mayReadKeys,
		Metrics:     xds.NewMetrics(s.metrics), Log: cfg.log(logXDS), Now: cfg.Now,
		Limits: cfg.Limits, Memory: admission.MemoryUse, VirtualHostDiscovery: cfg.VirtualHostDiscovery, HostsOnDemand: cfg.HostsOnDemand,
	})
	s.bundleEndpoint = &ca.BundleEndpoint{
		CA: s.ca, Identity: s.ownIdentity, Refresh: cfg.BundleRefresh, Now: cfg.Now, Rand: cfg.Rand, Log: cfg.Log,
	}
	s.registry = registry.New(registry.Config{
		Local: cfg.ClusterID, Clusters: []mesh.ClusterID{cfg.ClusterID},
		Network:     map[mesh.ClusterID]mesh.NetworkID{cfg.ClusterID: cfg.Network},
		TrustDomain: cfg.TrustDomain, SystemNamespace: cfg.systemNamespace(),
		Publish: s.publish, Resolve: func(hosts []string) { s.hosts.Want(hosts) },
		FetchKeys: func(want []snapshot.WantedKeys) { s.keySets.Want(want) }, Log: cfg.log(logRegistry), Now: cfg.Now,
	})
	s.hosts = dns.New(dns.Config{
		Lookup: cfg.lookupHost(), Publish: s.registry.SetAddresses, Log: cfg.log(logRegistry),
		Jitter: func(d time.Duration) time.Duration { return rand.N(d + 1) }, //nolint:gosec // spreads waits, guards nothing
		Now:    cfg.Now,
	})
	if err := s.newKeySets(); err != nil {
		return nil, err
	}
	s.trust.PublishTo(s.registry.SetTrustBundle)
	s.sources = s.newClusters()
	s.debug = s.newDebug()
	s.metrics.MustRegister(s.debug.Metrics(), s.registry.Metrics())
	if err := s.listen(); err != nil {
		return nil, err
	}
	s.keepToken()
	if a, ok := addrOrNil(s.plain).(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		cfg.Log.Warn("plaintext xDS is open to the network: whoever reaches it reads the whole configuration",
			"addr", a.String(), "fix", "--grpc-addr 127.0.0.1:15010, or empty")
	}
	return s, nil
}

// checkConfigDir fails before a CA is made for a mesh that does not exist.
func checkConfigDir(cfg *Config) error {
	if cfg.ConfigDir == "" {
		return nil
	}
	info, err := os.Stat(cfg.ConfigDir)
	switch {
	case err != nil:
		return fmt.Errorf("configuration directory of cluster %s: %w", cfg.ClusterID, err)
	case !info.IsDir():
		return fmt.Errorf("configuration directory of cluster %s: %s is not a directory", cfg.ClusterID, cfg.ConfigDir)
	}
	return nil
}

// publish passes a snapshot to the hub, on the registry's goroutine.
func (s *Server) publish(snap *snapshot.Snapshot, changes *snapshot.Changes) {
	if err := s.trustMesh(snap.Mesh); err != nil {
		s.cfg.Log.Error("keeping the previous trust domains", "error", err)
	}
	s.hub.Update(snap, changes)
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// listen listens on all addresses, or on none.
func (s *Server) listen() error {
	var open []net.Listener
	for _, l := range []struct {
		flag, addr string
		to         *net.Listener
	}{
		{"--http-addr", s.cfg.HTTPAddr, &s.http},
		{"--monitoring-addr", s.cfg.MonitoringAddr, &s.monitoring},
		{"--grpc-addr", s.cfg.GRPCAddr, &s.plain},
		{"--secure-grpc-addr", s.cfg.SecureGRPCAddr, &s.secure},
		{"--bundle-addr", s.cfg.BundleAddr, &s.bundle},
		{"--https-addr", s.cfg.HTTPSAddr, &s.webhooks},
	} {
		if l.addr == "" {
			continue
		}
		listener, err := net.Listen("tcp", l.addr)
		if err != nil {
			for _, o := range open {
				_ = o.Close()
			}
			return fmt.Errorf("%s: %w", l.flag, err)
		}
		open = append(open, listener)
		*l.to = listener
	}
	// A server negotiates HTTP/2 only on connections of TLS itself, so the bound is below TLS.
	for _, l := range []*net.Listener{&s.http, &s.monitoring, &s.bundle, &s.webhooks} {
		if *l != nil {
			*l = serving.Bound(*l, serving.MaxConnections, serving.MaxConnectionsOfSource)
		}
	}
	if s.bundle != nil {
		s.bundle = tls.NewListener(s.bundle, s.bundleEndpoint.TLSConfig())
	}
	return nil
}

// Run serves until the context ends. It serves gRPC after it has read the whole mesh,
// so that no proxy gets less than there is.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(kube.WithLog(ctx, s.cfg.log(logKube)))
	s.runAPIParts(ctx, g)
	g.Go(func() error { return s.sources.Run(ctx) })
	g.Go(func() error { return s.registry.Run(ctx) })
	g.Go(func() error { return s.hosts.Run(ctx) })
	g.Go(func() error {
		defer s.keyClient.CloseIdleConnections()
		return s.keySets.Run(ctx)
	})
	g.Go(func() error { return s.apis.keyReviews.Run(ctx) })
	g.Go(func() error { return s.ca.Run(ctx) })
	g.Go(func() error { return s.trust.Bundles.Run(ctx) })
	if s.oidc != nil {
		g.Go(func() error { return s.oidc.Run(ctx) })
	}
	g.Go(func() error { return s.recheckCallers(ctx) })
	g.Go(func() error { return s.runAnalysis(ctx) })
	// The hub outlives the context, to ask its streams to reconnect elsewhere.
	hubCtx, stopHub := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error { return s.hub.Run(hubCtx) })
	// HTTP outlives gRPC: /ready reports that the server is stopping.
	httpCtx, stopHTTP := context.WithCancel(context.WithoutCancel(ctx))
	defer s.forgetToken()
	s.serveHTTP(httpCtx, g, s.http, debug.StatusHandler(debug.StatusConfig{
		Ready: s.notReady, Version: s.cfg.Version, Debug: s.debugHandler(), Notes: s.notes, Log: s.cfg.log(logHTTP),
	}))
	monitoring := debug.MonitoringConfig{
		Metrics: s.metrics, Version: s.cfg.VersionText, Clusters: func() any { return s.sources.SyncInfos() }, Log: s.cfg.log(logHTTP),
	}
	if s.cfg.InPod { // elsewhere, other users of the machine are also local
		monitoring.Proxies = s.debug.ProxySyncz
	}
	s.serveHTTP(httpCtx, g, s.monitoring, debug.MonitoringHandler(monitoring))
	s.serveHTTP(httpCtx, g, s.bundle, s.bundleEndpoint)
	g.Go(func() error {
		defer stopHTTP()
		defer stopHub()
		return s.serveGRPC(ctx, stopHub)
	})
	return g.Wait()
}

func (s *Server) serveHTTP(ctx context.Context, g *errgroup.Group, l net.Listener, h http.Handler) {
	if l == nil {
		return
	}
	srv := debug.NewServer(h, s.cfg.log(logHTTP))
	g.Go(func() error {
		if err := serving.HTTP(ctx, srv, l); err != nil {
			return fmt.Errorf("serve %s: %w", l.Addr(), err)
		}
		return nil
	})
}

func addrOrNil(l net.Listener) net.Addr {
	if l == nil {
		return nil
	}
	return l.Addr()
}

func addrOf(l net.Listener) string {
	if l == nil {
		return "off"
	}
	return l.Addr().String()
}
