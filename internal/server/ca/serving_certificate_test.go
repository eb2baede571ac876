package ca

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
)

// handshake does a TLS handshake with a client that trusts root.
func handshake(t *testing.T, s *ServingCertificate, root *certs.Authority, name string, now time.Time) (*x509.Certificate, error) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(root.Cert)
	near, far := net.Pipe()
	server := tls.Server(far, &tls.Config{GetCertificate: s.GetCertificate, MinVersion: tls.VersionTLS13})
	client := tls.Client(near, &tls.Config{
		RootCAs: roots, ServerName: name, Time: func() time.Time { return now }, MinVersion: tls.VersionTLS13,
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.HandshakeContext(t.Context()) // the client reports the error
		_ = far.Close()
	}()
	err := client.HandshakeContext(t.Context())
	_ = near.Close()
	<-done
	if err != nil {
		return nil, err
	}
	return client.ConnectionState().PeerCertificates[0], nil
}

func TestServingCertificate(t *testing.T) {
	root, intermediate := authorities(t, 365*24*time.Hour)
	s, err := newIssuer(t, issuerConfig(intermediate)).ServingCertificate("mesh.example.com", "127.1.0.1", "istiod.istio-system.svc")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"istiod.istio-system.svc", "istiod-remote.istio-system.svc", "istio-pilot.istio-system.svc",
		"mesh.example.com", "127.1.0.1",
	} {
		if _, err := handshake(t, s, root, name, start); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := handshake(t, s, root, "other.istio-system.svc", start); err == nil {
		t.Error("good for a name that it was not made for")
	}
	stranger, _ := authorities(t, time.Hour)
	if _, err := handshake(t, s, stranger, "istiod.istio-system.svc", start); err == nil {
		t.Error("good for a client that trusts another root")
	}
}

func TestServingCertificateRenews(t *testing.T) {
	root, intermediate := authorities(t, 365*24*time.Hour)
	var elapsed atomic.Int64
	cfg := issuerConfig(intermediate)
	cfg.Now = func() time.Time { return start.Add(time.Duration(elapsed.Load())) }
	i := newIssuer(t, cfg)
	s, err := i.ServingCertificate()
	if err != nil {
		t.Fatal(err)
	}
	at := func(d time.Duration, root *certs.Authority) *x509.Certificate {
		elapsed.Store(int64(d))
		cert, err := handshake(t, s, root, "istiod.istio-system.svc", start.Add(d))
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	first := at(0, root)
	if !at(12*time.Hour-time.Second, root).Equal(first) {
		t.Error("renewed before half of its life")
	}
	second := at(12*time.Hour, root)
	if second.Equal(first) {
		t.Error("not renewed at half of its life")
	}
	if want := start.Add(36 * time.Hour); !second.NotAfter.Equal(want) {
		t.Errorf("ends %v, want %v", second.NotAfter, want)
	}

	// The clock is set back.
	if back := at(0, root); !back.NotAfter.Equal(start.Add(24 * time.Hour)) {
		t.Errorf("ends %v, want %v", back.NotAfter, start.Add(24*time.Hour))
	}

	newRoot, newIntermediate := authorities(t, 365*24*time.Hour)
	i.SetAuthority(newIntermediate)
	at(12*time.Hour, newRoot)
}

func TestServingCertificateErrors(t *testing.T) {
	_, intermediate := authorities(t, time.Hour)
	i := newIssuer(t, issuerConfig(intermediate))
	if _, err := i.ServingCertificate("not a name"); err == nil {
		t.Error("a bad name is accepted")
	}
}

// TestServingCertificateWithinConstraints: names that the CA may not certify are left
// out, and the other names work.
func TestServingCertificateWithinConstraints(t *testing.T) {
	spec := certs.CASpec{
		Algorithm: certs.ECDSAP256, CommonName: "CA", TTL: 24 * time.Hour,
		PermittedURIDomains: []string{"cluster.local"}, PermittedDNSDomains: []string{"svc", "example.org"},
	}
	root, err := certs.NewRoot(spec, start, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for extra, want := range map[string]int{"cp.example.org": 4, "cp.example.com": 3} {
		s, err := newIssuer(t, issuerConfig(root)).ServingCertificate(extra)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := s.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := cert.Leaf.DNSNames; len(got) != want {
			t.Errorf("with %s the names are %q", extra, got)
		}
	}
}
