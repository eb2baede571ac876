package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/agent/workloadcert"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/test/harness"
)

var rotationTime = flag.Duration("rotation", 0, "how long TestCertificateRotation makes handshakes with 50 clients and certificates that live 60s; 0 means two renewals of 10 clients")

// TestCertificateRotation: while Envoy and its clients renew their certificates again and again, no
// handshake fails. Each request of a client is on a new connection with mutual TLS.
func TestCertificateRotation(t *testing.T) {
	clients, ttl, pause := 10, 10*time.Second, 20*time.Millisecond
	if *rotationTime > 0 {
		clients, ttl, pause = 50, time.Minute, 200*time.Millisecond
	}
	app := application(t)
	ca := certstest.NewIstioCA(t)
	plane := newInbound(t, app.Listener.Addr())
	plane.listener.FilterChains[0].TransportSocket = &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(t, &tlsv3.DownstreamTlsContext{
			RequireClientCertificate: wrapperspb.Bool(true),
			CommonTlsContext: &tlsv3.CommonTlsContext{
				TlsParams:                      &tlsv3.TlsParameters{TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3},
				TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{secret(mesh.SecretCertificate)},
				ValidationContextType:          &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{ValidationContextSdsSecretConfig: secret(mesh.SecretRoots)},
			},
		})},
	}
	ca.Serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, plane) })
	a := start(t, flagsFor(t, ca, harness.ShortDir(t)), "SECRET_TTL="+ttl.String())
	a.waitReady(t)

	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	var handshakes, failures atomic.Int64
	issued := make([]atomic.Int64, clients)
	servers := &certificates{seen: make(map[string]bool)}
	for i := range clients {
		manager := workloadcert.NewManager(workloadcert.Config{
			Identity: certstest.Identity(),
			Signer: &workloadcert.Client{
				Servers: []workloadcert.Server{{Addr: ca.Addr, Name: certstest.ServerName}}, Kind: "certificate authority",
				RootFile: ca.RootFile, TokenFile: ca.TokenFile, Cluster: "cluster1",
			},
			TTL: ttl, Grace: 0.5, Jitter: 0.01,
			Publish: func(context.Context, *workloadcert.Certificate) error { issued[i].Add(1); return nil },
			Log:     slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
			Now:     time.Now, Rand: rand.New(rand.NewPCG(1, uint64(i))),
		})
		group.Go(func() { manager.Run(ctx) })
		group.Go(func() {
			select {
			case <-manager.Obtained():
			case <-ctx.Done():
			}
			for ctx.Err() == nil {
				err := handshake(ctx, manager.Current(), servers)
				switch {
				case err == nil:
					handshakes.Add(1)
				case ctx.Err() == nil:
					failures.Add(1)
					t.Errorf("client %d: %v", i, err)
				}
				select {
				case <-time.After(pause):
				case <-ctx.Done():
				}
			}
		})
	}
	if *rotationTime > 0 {
		select {
		case <-time.After(*rotationTime):
		case err := <-a.done:
			t.Fatalf("the agent ended: %v", err)
		}
	} else {
		const certificatesEach = 3
		a.wait(t, "two renewals by Envoy and each client", func() bool {
			for i := range issued {
				if issued[i].Load() < certificatesEach {
					return false
				}
			}
			return servers.count() >= certificatesEach || failures.Load() > 0
		})
	}
	t.Logf("%d handshakes with %d certificates of Envoy, %d failed", handshakes.Load(), servers.count(), failures.Load())
}

// certificates are the certificates of servers that clients have seen.
type certificates struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (c *certificates) add(leaf *x509.Certificate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[leaf.SerialNumber.String()] = true
}

func (c *certificates) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.seen)
}

// handshake sends a request on a new connection with mutual TLS. A response proves that the server
// accepted the certificate of the client, which TLS 1.3 does not report before.
func handshake(ctx context.Context, current workloadcert.Current, servers *certificates) error {
	if current.Certificate == nil {
		return errors.New("the client has no valid certificate")
	}
	roots := x509.NewCertPool()
	for _, r := range current.Roots {
		roots.AddCert(r)
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*current.Certificate},
		InsecureSkipVerify: true, // identities are no host names: VerifyConnection checks them
		VerifyConnection: func(s tls.ConnectionState) error {
			between := x509.NewCertPool()
			for _, c := range s.PeerCertificates[1:] {
				between.AddCert(c)
			}
			leaf := s.PeerCertificates[0]
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between}); err != nil {
				return err
			}
			if len(leaf.URIs) != 1 || leaf.URIs[0].String() != certstest.Identity().String() {
				return fmt.Errorf("the server is %v", leaf.URIs)
			}
			servers.add(leaf)
			return nil
		},
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(bind, fmt.Sprint(inboundPort))+"/metrics", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s, %w", resp.Status, err)
	}
	return nil
}
