package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/inject"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/debug"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/webhook"
	"github.com/meshctl/meshctl/internal/serving"
)

// injection holds the injector of the current settings. It is safe for concurrent use.
type injection struct {
	mu       sync.Mutex // guards what follows
	from     facts.Injection
	injector *inject.Injector // of the last good settings, nil before
	err      error            // of from
	known    bool             // from was set
}

// injector returns the injector of the current settings. With invalid settings it returns the
// last good one, if there is one.
func (s *Server) injector() (*inject.Injector, error) {
	now := s.registry.Injection()
	s.injection.mu.Lock()
	defer s.injection.mu.Unlock()
	i := &s.injection
	if !i.known || !i.from.Equal(now) {
		made, err := s.newInjector(now)
		i.from, i.known = now, true
		if i.err = err; err == nil {
			i.injector = made
		} else {
			s.cfg.log(logHTTP).Error("settings of the injector refused", "last_good", i.injector != nil, "error", err)
		}
	}
	if i.injector == nil {
		return nil, i.err
	}
	return i.injector, nil
}

func (s *Server) newInjector(from facts.Injection) (*inject.Injector, error) {
	values, err := inject.ParseValues(from.Values, from.Config)
	if err == nil {
		if values.Revision == "" {
			values.Revision = s.cfg.Revision
		}
		var made *inject.Injector
		made, err = inject.New(inject.Settings{
			Mesh: from.Mesh, Values: values, SystemNamespace: s.cfg.systemNamespace(), TrustDomain: s.cfg.TrustDomain,
			Cluster: s.cfg.ClusterID, Network: from.Network, MeshID: s.cfg.MeshID, ProxyConfigs: from.ProxyConfigs,
		})
		if err == nil {
			return made, nil
		}
	}
	return nil, fmt.Errorf("ConfigMap %s/%s: %w", s.cfg.systemNamespace(), mesh.InjectorConfigMapOf(s.cfg.Revision), err)
}

// injectionProblem returns why the current settings of the injector are not used, or "".
func (s *Server) injectionProblem() string {
	if s.webhooks == nil || s.registry.Current() == nil {
		return ""
	}
	_, _ = s.injector()
	s.injection.mu.Lock()
	defer s.injection.mu.Unlock()
	if s.injection.err == nil {
		return ""
	}
	return s.injection.err.Error()
}

// serveWebhooks answers the API server until ctx ends.
func (s *Server) serveWebhooks(ctx context.Context) error {
	// API servers verify it with caBundle, whatever the secure port shows to agents.
	cert, err := s.issuer.ServingCertificate(s.cfg.ServingNames...)
	if err != nil {
		return err
	}
	log := s.cfg.log(logHTTP)
	handler := webhook.Handler(webhook.Config{
		Injector:  s.injector,
		Converter: &source.Converter{Cluster: s.cfg.ClusterID, SystemNamespace: s.cfg.systemNamespace(), RefuseLocal: true, IgnorePolicies: s.cfg.IgnorePolicies},
		Findings:  s.findingsOfChange, FromAPIServer: s.fromAPIServer,
		Done: s.reviews.count,
		Log:  log,
	})
	tlsConfig := &tls.Config{
		MinVersion: tls.VersionTLS13, GetCertificate: cert.GetCertificate, NextProtos: []string{"h2", "http/1.1"}, CurvePreferences: s.cfg.KeyExchanges,
	}
	if len(s.cfg.WebhookClientRoots) > 0 {
		tlsConfig.ClientAuth, tlsConfig.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		if !tlsConfig.ClientCAs.AppendCertsFromPEM(s.cfg.WebhookClientRoots) {
			return errors.New("the roots for clients of the webhooks have no certificate in PEM")
		}
	}
	l := tls.NewListener(s.webhooks, tlsConfig)
	if err := serving.HTTP(ctx, debug.NewServer(handler, log), l); err != nil {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// fromAPIServer reports whether a request is known to come from an API server: by the client
// certificate that all callers then have, or because it comes from this machine or from an endpoint
// of the Service kubernetes in the local cluster.
func (s *Server) fromAPIServer(r *http.Request) bool {
	if len(s.cfg.WebhookClientRoots) > 0 {
		return true
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	from := peer.Addr().Unmap()
	if from.IsLoopback() {
		return true
	}
	now := s.registry.Current()
	if now == nil {
		return false
	}
	key := mesh.ServiceHost("kubernetes", "default", mesh.DefaultDomain)
	service, endpoints := now.Services.Get(key), now.Endpoints.Get(key)
	if service == nil || service.Entry || service.Namespace != "default" || endpoints == nil {
		return false
	}
	for _, list := range endpoints.ByPort {
		if slices.ContainsFunc(list, func(e snapshot.Endpoint) bool { return e.Cluster == s.cfg.ClusterID && e.Address == from }) {
			return true
		}
	}
	return false
}

// servingRoots returns the roots that verify the certificate of the webhooks, PEM.
func (s *Server) servingRoots() []byte {
	if set := s.ca.Current(); set != nil {
		return certs.EncodeCerts(set.Roots...)
	}
	return nil
}
