package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xds"
	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// serveGRPC serves gRPC from when the registry is ready until ctx ends.
func (s *Server) serveGRPC(ctx context.Context, stopHub func()) error {
	for _, ready := range []<-chan struct{}{s.ca.Ready(), s.registry.Ready()} {
		select {
		case <-ctx.Done():
			closeAll(s.plain, s.secure, s.webhooks)
			return nil
		case <-ready:
		}
	}
	if !s.awaitFit(ctx) {
		closeAll(s.plain, s.secure, s.webhooks)
		return nil
	}
	if err := s.makeServing(); err != nil {
		closeAll(s.plain, s.secure, s.webhooks)
		return err
	}
	g, ctx := errgroup.WithContext(ctx) // a port that fails ends the others
	var servers []grpcServer
	serve := func(l net.Listener, srv *grpc.Server, access xds.Access) {
		xds.Register(srv, s.hub, access)
		conns := s.hub.NewConns(access.Authenticate != nil)
		servers = append(servers, grpcServer{srv, conns})
		l = conns.Listen(l)
		g.Go(func() error {
			if err := srv.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				return fmt.Errorf("serve %s: %w", l.Addr(), err)
			}
			return nil
		})
	}
	if s.plain != nil {
		serve(s.plain, grpc.NewServer(s.hub.ServerOptions(nil)...), xds.Access{
			CheckNode: func(_ mesh.Caller, n proxy.Node) error { return s.checkMesh(n) },
		})
	}
	if s.secure != nil {
		creds := admission.Credentials(credentials.NewTLS(s.tlsConfig()))
		srv := grpc.NewServer(append(s.hub.ServerOptions(s.issuer.Tap), grpc.Creds(creds))...)
		s.issuer.Register(srv)
		serve(s.secure, srv, xds.Access{
			Authenticate: s.authenticate, Certificate: s.clientCertificate, CheckNode: s.checkNode, Recheck: s.recheck, Trust: s.forAgents, Debug: s.debug,
			Workload: s.workloadOf,
			Health:   s.apis.health, Connected: s.apis.registrations.Connected,
		})
	}
	if s.webhooks != nil {
		g.Go(func() error { return s.serveWebhooks(ctx) })
	}
	s.ready.Store(true)
	if s.cfg.OnReady != nil {
		s.cfg.OnReady()
	}
	s.cfg.Log.Info("ready", "cluster", s.cfg.ClusterID, "xds", addrOf(s.plain), "secure", addrOf(s.secure),
		"http", addrOf(s.http), "metrics", addrOf(s.monitoring))
	<-ctx.Done()
	s.draining.Store(true)
	s.cfg.Log.Info("stopping: telling the proxies to go to another server")
	stop(servers, cmp.Or(s.cfg.ShutdownTimeout, defaultShutdownTimeout), stopHub)
	return g.Wait()
}

func (s *Server) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion: cmp.Or(s.cfg.MinTLS, tls.VersionTLS13),
		NextProtos: []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := s.callers.Load()
			if c == nil {
				return nil, errNoMesh
			}
			cfg := c.TLSConfig(s.serving, s.cfg.MinTLS)
			cfg.CurvePreferences = s.cfg.KeyExchanges
			return cfg, nil
		},
	}
}

type grpcServer struct {
	*grpc.Server
	conns *admission.Conns
}

// stop accepts no more connections and calls, lets the hub ask its streams to
// reconnect elsewhere, and gives all calls the timeout to end.
func stop(servers []grpcServer, timeout time.Duration, stopHub func()) {
	timer := time.AfterFunc(timeout, func() {
		for _, srv := range servers {
			srv.Stop()
		}
	})
	defer timer.Stop()
	var wg sync.WaitGroup
	for _, srv := range servers {
		srv.conns.Stop()
		wg.Go(srv.GracefulStop)
	}
	stopHub() // what is in flight is still sent
	wg.Wait()
}

func closeAll(listeners ...net.Listener) {
	for _, l := range listeners {
		if l != nil {
			_ = l.Close()
		}
	}
}
