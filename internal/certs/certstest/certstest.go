// Package certstest has what tests of certificates need: authorities with real
// keys, a TLS server, and a CA that speaks Istio's protocol.
package certstest

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
)

// NewRoot makes a root that is valid for a day.
func NewRoot(tb testing.TB) *certs.Authority {
	tb.Helper()
	root, err := certs.NewRoot(certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "Root CA", TTL: 24 * time.Hour}, time.Now(), rand.Reader)
	check(tb, err)
	return root
}

// NewIntermediate makes the intermediate of cluster1 below root. It is valid for
// 23 hours.
func NewIntermediate(tb testing.TB, root *certs.Authority) *certs.Authority {
	tb.Helper()
	spec := certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "Intermediate CA", TTL: 23 * time.Hour}
	a, err := root.NewIntermediate("cluster1", spec, time.Now(), rand.Reader)
	check(tb, err)
	return a
}

// WithRoots returns a copy of a that trusts the given roots and no others.
func WithRoots(a *certs.Authority, roots ...*certs.Authority) *certs.Authority {
	b := *a
	b.Roots = make([]*x509.Certificate, 0, len(roots))
	for _, r := range roots {
		b.Roots = append(b.Roots, r.Cert)
	}
	return &b
}

// ServeTLS completes TLS handshakes and closes the connections until the test
// ends.
func ServeTLS(tb testing.TB, config *tls.Config) (address string) {
	tb.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	check(tb, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if server, ok := conn.(*tls.Conn); ok {
				_ = server.HandshakeContext(tb.Context()) // the client may close it at any time
			}
			_ = conn.Close()
		}
	}()
	tb.Cleanup(func() { _ = listener.Close(); <-done })
	return listener.Addr().String()
}
