package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// What a connection was authenticated with is lost by a revocation and by the
// end of its root, not by time.
func TestLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cert := w.leaf(t, w.east, caller("cluster.local", "sample", "helloworld", "east"))
	var revoked *x509.Certificate
	w.cfg.Revoked = func(cert, _ *x509.Certificate) bool { return revoked != nil && cert.Equal(revoked) }
	a := must(New(w.cfg))(t)
	shown := tls.ConnectionState{HandshakeComplete: true}
	on := func() context.Context {
		return peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: shown}})
	}
	if err := a.Lost(on()); err != nil {
		t.Errorf("without a certificate: %v", err)
	}
	for _, der := range cert.Certificate {
		shown.PeerCertificates = append(shown.PeerCertificates, must(x509.ParseCertificate(der))(t))
	}
	if err := a.Lost(on()); err != nil {
		t.Errorf("a good one: %v", err)
	}
	w.setTime(start.Add(2 * time.Hour))
	if err := a.Lost(on()); err != nil {
		t.Errorf("an expired one: %v", err)
	}
	revoked = w.east.Cert // the CA above
	if err := a.Lost(on()); err == nil {
		t.Error("a revoked one is not lost")
	}
	revoked = nil
	w.setRoots(w.stranger)
	if err := a.Lost(on()); err == nil {
		t.Error("one whose root is gone is not lost")
	}
}
