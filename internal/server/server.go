package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/internal/server/clusters"
	"github.com/meshctl/meshctl/internal/server/credentials"
	"github.com/meshctl/meshctl/internal/server/debug"
	"github.com/meshctl/meshctl/internal/server/identity"
	"github.com/meshctl/meshctl/internal/server/issuer"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/resolve"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/trust"
	"github.com/meshctl/meshctl/internal/server/xds"
	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/serving"
	"github.com/meshctl/meshctl/internal/token"
)

// Server is a control plane. New prepares it and takes its ports, Run serves
// until the context ends.
type Server struct {
	cfg      Config
	ca       *ca.CA
	issuer   *issuer.Issuer
	serving  func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	own      *issuer.FileCertificate // nil without files
	oidc     *identity.OIDC          // nil without rules
	tokens   map[mesh.ClusterID][]identity.TokenVerifier
	callers  atomic.Pointer[callers]
	trust    *peerTrust
	bundles  *trust.Federation
	registry *registry.Registry
	hosts    *resolve.Resolver
	hub      *xds.Hub
	sources  *clusters.Manager
	// kubernetes makes the access to clusters of remote secrets.
	kubernetes *clusters.Kubernetes
	// keyReviews are the rights to keys in the clusters that have an API.
	keyReviews *credentials.Reviews
	apis       atAPIs
	metrics    *prometheus.Registry
	debug      *debug.Pages
	// operator is the token for commands of this machine, until forgetToken.
	operator    localtoken.Token
	forgetToken func()
	ready       atomic.Bool
	draining    atomic.Bool

	http, monitoring, plain, secure, bundle net.Listener

	fit fitness
}

// callers authenticates by the trust domains of one version of MeshConfig.
type callers struct {
	trustDomain string
	aliases     []string
	*identity.Authenticator
}

// New checks the configuration, loads the CA and listens on all addresses, so
// that a port in use or a broken CA is an error before anything is served.
func New(cfg Config) (_ *Server, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := checkConfigDir(&cfg); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, metrics: prometheus.NewRegistry(), fit: fitness{changed: make(chan struct{}, 1)}}
	s.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.newAtAPIs()
	if err := s.newTrust(); err != nil {
		return nil, err
	}
	if err := s.loadOwn(); err != nil {
		return nil, err
	}
	if err := s.loadCA(); err != nil {
		return nil, err
	}
	if err := s.loadTokenIssuers(); err != nil {
		return nil, err
	}
	s.hub = xds.NewHub(xds.Config{
		Generation: xds.Generation{
			ParseNode: xdsgen.ParseNode, Assign: xdsgen.Assign,
			AssignReads: xdsgen.AssignReads, AssignAll: xdsgen.AssignAll, Fallback: xdsgen.Fallback, Secrets: xdsgen.AssignSecrets,
		},
		MayReadKeys: s.mayReadKeys,
		Metrics:     xds.NewMetrics(s.metrics), Log: cfg.log(logXDS), Now: cfg.Now,
		Limits: cfg.Limits, Memory: memoryUse,
	})
	s.keyReviews = credentials.New(credentials.Config{Changed: s.hub.Reconsider, Log: cfg.log(logCredentials), Now: cfg.Now})
	s.registry = registry.New(registry.Config{
		Local: cfg.ClusterID, Clusters: []mesh.ClusterID{cfg.ClusterID},
		Network:     map[mesh.ClusterID]mesh.NetworkID{cfg.ClusterID: cfg.Network},
		TrustDomain: cfg.TrustDomain, SystemNamespace: cfg.systemNamespace(),
		Publish: s.publish, Resolve: func(hosts []string) { s.hosts.Want(hosts) }, Log: cfg.log(logRegistry), Now: cfg.Now,
	})
	s.hosts = resolve.New(resolve.Config{
		Lookup: cfg.lookupHost(), Publish: s.registry.SetAddresses, Log: cfg.log(logRegistry),
		Jitter: func(d time.Duration) time.Duration { return rand.N(d + 1) }, //nolint:gosec // spreads waits, guards nothing
		Now:    cfg.Now,
	})
	s.trust.publishTo(s.registry.SetTrustBundle)
	s.sources = s.newClusters()
	s.debug = s.newDebug()
	s.metrics.MustRegister(newPilotStats(s), gatewayMetrics{s})
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

// checkConfigDir is asked before a CA is made for a mesh that is not there.
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

func (s *Server) loadTokenIssuers() error {
	s.tokens = make(map[mesh.ClusterID][]identity.TokenVerifier)
	if len(s.cfg.TokenIssuers) == 0 && len(s.cfg.OIDC) == 0 && s.cfg.KubeAccess == nil && s.cfg.SecureGRPCAddr != "" {
		s.cfg.Log.Warn("no --token-issuer: workloads without a certificate cannot prove who they are, so none gets its first one")
	}
	for _, t := range s.cfg.TokenIssuers {
		v, err := token.LoadVerifier(t.Dir, s.cfg.TokenAudiences)
		if err != nil {
			return fmt.Errorf("token issuer of cluster %s: %w", t.Cluster, err)
		}
		s.tokens[t.Cluster] = append(s.tokens[t.Cluster], v)
		s.cfg.Log.Info("trusting token issuer", "cluster", t.Cluster, "issuer", v.Issuer(), "dir", t.Dir)
	}
	return nil
}

// publish passes a snapshot on; it runs on the registry's goroutine.
func (s *Server) publish(snap *snapshot.Snapshot, changes *snapshot.Changes) {
	if err := s.trustMesh(snap.Mesh); err != nil {
		s.cfg.Log.Error("keeping the previous trust domains", "error", err)
	}
	s.hub.Update(snap, changes)
}

// trustMesh makes callers be authenticated by the trust domains of the mesh.
func (s *Server) trustMesh(m *snapshot.Mesh) error {
	s.trust.setMesh(m)
	if c := s.callers.Load(); c != nil && c.trustDomain == m.TrustDomain && slices.Equal(c.aliases, m.Aliases) {
		return nil
	}
	a, err := identity.New(identity.Config{
		TrustDomain: m.TrustDomain, TrustDomainAliases: m.Aliases,
		Roots:         s.trust.roots,
		Foreign:       s.trust.foreign,
		Revoked:       s.revoked,
		IssuerCluster: s.issuerCluster,
		Tokens:        s.tokens, Reviewers: s.apis.reviewers, OIDC: s.oidc, XFCCSources: s.cfg.XFCCSources, Now: s.cfg.Now, Log: s.cfg.log(logAuthn),
	})
	if err != nil {
		return err
	}
	s.callers.Store(&callers{m.TrustDomain, m.Aliases, a})
	s.judgeFit()
	return nil
}

// authenticate says who calls; their connection counts for them from then on.
func (s *Server) authenticate(ctx context.Context) (mesh.Caller, error) {
	c := s.callers.Load()
	if c == nil {
		return mesh.Caller{}, status.Error(codes.Unavailable, "the mesh configuration was not read yet")
	}
	caller, err := c.Authenticate(ctx)
	if err != nil {
		return mesh.Caller{}, err
	}
	return caller, admission.Authenticated(ctx, caller.Identity)
}

// checkMesh refuses proxies of another mesh.
func (s *Server) checkMesh(n xdsgen.Node) error {
	if s.cfg.MeshID != "" && n.MeshID != "" && n.MeshID != s.cfg.MeshID {
		return fmt.Errorf("the proxy says that it belongs to mesh %q, this control plane serves %q", n.MeshID, s.cfg.MeshID)
	}
	return nil
}

// checkNode compares what a proxy claims with who it was proved to be.
func (s *Server) checkNode(caller mesh.Caller, n xdsgen.Node) error {
	if err := s.checkMesh(n); err != nil {
		return err
	}
	err := identity.CheckNode(caller, identity.NodeClaims{
		Namespace: n.Namespace, ServiceAccount: n.ServiceAccount, Cluster: n.Cluster, TrustDomain: n.TrustDomain,
	})
	if err != nil {
		s.cfg.log(logAuthn).Warn("proxy refused: it says that it is another than it was proved to be", "identity", caller.Identity.String(),
			"cluster", caller.Cluster, "node", n.ID.String(), "error", err)
	}
	return err
}

// listen takes all ports, or none.
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
	if s.bundle != nil {
		s.bundle = tls.NewListener(s.bundle, s.bundleTLS())
	}
	return nil
}

// Run serves until the context ends. gRPC is served once the whole mesh was
// read, so that no proxy is given less than there is.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(kube.WithLog(ctx, s.cfg.log(logKube)))
	s.runAtAPIs(ctx, g)
	g.Go(func() error { return s.sources.Run(ctx) })
	g.Go(func() error { return s.registry.Run(ctx) })
	g.Go(func() error { return s.hosts.Run(ctx) })
	g.Go(func() error { return s.keyReviews.Run(ctx) })
	g.Go(func() error { return s.ca.Run(ctx) })
	g.Go(func() error { return s.bundles.Run(ctx) })
	if s.oidc != nil {
		g.Go(func() error { return s.oidc.Run(ctx) })
	}
	g.Go(func() error { return s.recheckCallers(ctx) })
	// The hub outlives the context so that streams can say goodbye.
	hubCtx, stopHub := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error { return s.hub.Run(hubCtx) })
	// HTTP outlives gRPC: /ready says that the server is stopping.
	httpCtx, stopHTTP := context.WithCancel(context.WithoutCancel(ctx))
	defer s.forgetToken()
	s.serveHTTP(httpCtx, g, s.http, debug.StatusHandler(debug.StatusConfig{
		Ready: s.notReady, Version: s.cfg.Version, Debug: s.debugHandler(), Notes: s.notes, Log: s.cfg.log(logHTTP),
	}))
	s.serveHTTP(httpCtx, g, s.monitoring, debug.MonitoringHandler(debug.MonitoringConfig{
		Metrics: s.metrics, Version: s.cfg.VersionText, Clusters: func() any { return s.clusterz() }, Log: s.cfg.log(logHTTP),
	}))
	s.serveHTTP(httpCtx, g, s.bundle, http.HandlerFunc(s.serveBundle))
	g.Go(func() error {
		defer stopHTTP()
		defer stopHub()
		return s.serveGRPC(ctx, stopHub)
	})
	return g.Wait()
}

func (s *Server) notReady() []string {
	if s.draining.Load() {
		return []string{"the server is stopping"}
	}
	if s.ca.Current() == nil {
		return s.ca.Problems()
	}
	if err := s.fit.get(); err != nil && !s.ready.Load() {
		return []string{fmt.Sprintf("signing CA: it does not fit the mesh: %v", err)}
	}
	if !s.ready.Load() {
		return append([]string{"the configuration was not read completely yet"}, s.ownFaults()...)
	}
	return nil
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
