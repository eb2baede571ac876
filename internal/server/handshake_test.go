package server

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// clientTLS returns the TLS configuration of a workload of the mesh. Its certificate is
// followed by chain.
func clientTLS(t *testing.T, s *Server, chain ...[]byte) *tls.Config {
	t.Helper()
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	who := mesh.Caller{
		Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "apps", ServiceAccount: "web"}, Cluster: "cluster1",
	}
	leaf, err := s.ca.Current().SignLeaf(key.Public(), who, time.Hour, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	for _, r := range s.ca.Current().Roots {
		roots.AddCert(r)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: "127.0.0.1", NextProtos: []string{"h2"},
		Certificates: []tls.Certificate{{Certificate: append([][]byte{leaf.Raw}, chain...), PrivateKey: key}},
	}
}

// dialSecure opens a stream of the workload and waits for its clusters.
func dialSecure(t *testing.T, s *Server, cfg *tls.Config) (discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient, error) {
	t.Helper()
	conn, err := grpc.NewClient(s.secure.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
	if err != nil {
		return nil, err
	}
	err = stream.Send(&discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~10.0.0.1~web.apps~apps.svc.cluster.local"}, TypeUrl: xdswire.ClusterType,
	})
	if err != nil && !errors.Is(err, io.EOF) { // EOF: the reason comes from Recv
		return nil, err
	}
	r, err := stream.Recv()
	if err == nil && len(r.GetResources()) == 0 {
		err = errors.New("no clusters came")
	}
	return stream, err
}

// wantServed checks that a workload gets its configuration.
func wantServed(t *testing.T, s *Server) {
	t.Helper()
	if _, err := dialSecure(t, s, clientTLS(t, s)); err != nil {
		t.Fatal(err)
	}
}

// TestHandshakesThatNeverEnd: silent and incomplete handshakes, more than allowed, do not
// keep workloads out.
func TestHandshakesThatNeverEnd(t *testing.T) {
	const conns = 400
	s := start(t, func(c *Config) {
		c.Limits.PendingConns = 50
		c.Limits.Handshake, c.Limits.FirstRequest = time.Second, time.Hour
	})
	ended := make(chan struct{}, conns)
	for i := range conns {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.secure.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%2 == 0 { // the begin of a ClientHello; a closed connection may refuse it
			_, _ = conn.Write([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3})
		}
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			ended <- struct{}{}
		}()
	}
	wantServed(t, s)
	for i := range conns {
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatalf("%d of %d connections were closed", i, conns)
		}
	}
	wantServed(t, s)
	if n := metrics(t, s)["meshctl_xds_refused_connections_total"]; n < conns-50-10 {
		t.Errorf("%v connections refused, want those over the limit", n)
	}
}

func TestEmptyRecords(t *testing.T) {
	s := start(t, func(c *Config) { c.Limits.Handshake, c.Limits.FirstRequest = time.Hour, time.Hour })
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.secure.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// It may be closed before all is written.
	_, _ = conn.Write(slices.Repeat([]byte{22, 3, 3, 0, 0}, 1000))
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a connection with nothing but empty records goes on")
	}
	wantServed(t, s)
}

// TestOldTLS: before TLS 1.3 a client could renegotiate.
func TestOldTLS(t *testing.T) {
	s := start(t, nil)
	cfg := clientTLS(t, s)
	cfg.MaxVersion = tls.VersionTLS12
	cfg.Renegotiation = tls.RenegotiateFreelyAsClient
	if conn, err := (&tls.Dialer{Config: cfg}).DialContext(t.Context(), "tcp", s.secure.Addr().String()); err == nil {
		conn.Close()
		t.Error("TLS 1.2 was accepted")
	}
	wantServed(t, s)
}

func TestLongChain(t *testing.T) {
	s := start(t, nil)
	spec := certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "filler", TTL: time.Hour}
	filler, err := certs.NewRoot(spec, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	long := clientTLS(t, s, slices.Repeat([][]byte{filler.Cert.Raw}, 99)...)
	if _, err := dialSecure(t, s, long); status.Code(err) != codes.Unavailable {
		t.Errorf("100 certificates: got %v, want a failed handshake", err)
	}
	short := clientTLS(t, s, slices.Repeat([][]byte{filler.Cert.Raw}, 5)...)
	if _, err := dialSecure(t, s, short); err != nil {
		t.Errorf("6 certificates: %v", err)
	}
	wantServed(t, s)
}
