package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/token"
)

// counting is a token verifier that counts its calls and accepts every token until
// end.
type counting struct {
	n       int
	refused bool
	end     time.Time
}

func (c *counting) Verify(string, time.Time) (token.Claims, error) {
	c.n++
	if c.refused {
		return token.Claims{}, errors.New("no")
	}
	return token.Claims{Namespace: "ns", ServiceAccount: "sa", IssuedAt: c.end.Add(-time.Hour), TTL: time.Hour}, nil
}

// TestTokensAreVerifiedOnceInAWhile: a verified token counts for some seconds, at
// most until it expires, and only for the cluster that it was verified for.
func TestTokensAreVerifiedOnceInAWhile(t *testing.T) {
	start := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	now := start
	one, two := &counting{end: start.Add(time.Hour)}, &counting{refused: true}
	a, err := New(Config{
		TrustDomain: "td", Roots: func(string) *x509.CertPool { return nil }, Now: func() time.Time { return now },
		Tokens: map[mesh.ClusterID][]TokenVerifier{"one": {one}, "two": {two}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(raw, cluster string) error {
		md := metadata.Pairs("authorization", "Bearer "+raw)
		if cluster != "" {
			md.Set("clusterid", cluster)
		}
		caller, err := a.byToken(t.Context(), md)
		if err == nil && caller.Cluster != "one" {
			t.Errorf("caller is of cluster %q", caller.Cluster)
		}
		return err
	}
	want := func(what string, n int) {
		t.Helper()
		if one.n != n {
			t.Errorf("%s: verified %d times, want %d", what, one.n, n)
		}
		one.n = 0
	}
	for range 3 {
		if err := ask("a", "one"); err != nil {
			t.Fatal(err)
		}
	}
	want("the same token", 1)
	if err := ask("a", "two"); err == nil {
		t.Error("a token of one cluster counts for another")
	}
	want("for another cluster", 0)
	if err := ask("b", "one"); err != nil {
		t.Error(err)
	}
	want("another token", 1)
	if err := ask("a", ""); err != nil {
		t.Error(err)
	}
	want("without cluster", 1)
	now = now.Add(cacheTime)
	if err := ask("a", "one"); err != nil {
		t.Error(err)
	}
	want("after a while", 1)
	now = now.Add(-time.Second)
	if err := ask("a", "one"); err != nil {
		t.Error(err)
	}
	want("with a clock that was set back", 1)
	one.end = now.Add(time.Second)
	if err := ask("c", "one"); err != nil {
		t.Error(err)
	}
	now, one.refused, one.n = now.Add(time.Second), true, 0
	if err := ask("c", "one"); err == nil {
		t.Error("a token that is over counts")
	}
	want("over", 1)
	for range 2 {
		if err := ask("d", "one"); err == nil {
			t.Error("a refused token counts")
		}
	}
	want("refused twice", 2)
}

// TestKnown: Known returns callers that Authenticate accepted with the same proof a
// moment ago, and no others. It verifies nothing.
func TestKnown(t *testing.T) {
	w := newTestMesh(t)
	now := start
	w.cfg.Now = func() time.Time { return now }
	verifier := &counting{end: start.Add(time.Hour)}
	w.cfg.Tokens = map[mesh.ClusterID][]TokenVerifier{"one": {verifier}}
	a := must(New(w.cfg))(t)
	over := func(state tls.ConnectionState, headers ...string) (context.Context, metadata.MD) {
		md := metadata.Pairs(headers...)
		ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}})
		return metadata.NewIncomingContext(ctx, md), md
	}
	want := func(what string, known bool, ctx context.Context, md metadata.MD) {
		t.Helper()
		if _, got := a.Known(ctx, md); got != known {
			t.Errorf("%s: known %v", what, got)
		}
	}
	done := tls.ConnectionState{HandshakeComplete: true}
	shown := done
	for _, der := range w.leaf(t, w.east, caller("cluster.local", "sample", "helloworld", "east")).Certificate {
		shown.PeerCertificates = append(shown.PeerCertificates, must(x509.ParseCertificate(der))(t))
	}
	for what, state := range map[string]tls.ConnectionState{"token": done, "certificate": shown} {
		ctx, md := over(state, "authorization", "Bearer "+what)
		want(what+" that nobody has seen", false, ctx, md)
		who, err := a.Authenticate(ctx)
		if err != nil {
			t.Fatal(what, err)
		}
		verified := verifier.n
		if got, known := a.Known(ctx, md); !known || got != who || verifier.n != verified {
			t.Errorf("%s: known %v, %v", what, known, got)
		}
	}
	ctx, md := over(tls.ConnectionState{}, "authorization", "Bearer token")
	want("without TLS", false, ctx, md)
	ctx, md = over(done, "authorization", "Bearer token", "clusterid", "two")
	want("for another cluster", false, ctx, md)
	ctx, md = over(done)
	want("without a proof", false, ctx, md)
	now = now.Add(cacheTime)
	ctx, md = over(done, "authorization", "Bearer token")
	want("later", false, ctx, md)
}

func TestCacheIsBounded(t *testing.T) {
	var c proofCache
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for n := range 3 * cacheSize {
		c.put(proofOf(nil, []byte(fmt.Sprint(n))), verifiedCaller{}, now, now.Add(time.Hour))
	}
	if n := len(c.young) + len(c.old); n > 2*cacheSize {
		t.Errorf("%d proofs are kept", n)
	}
	if proofOf(nil, []byte("ab"), []byte("c")) == proofOf(nil, []byte("a"), []byte("bc")) {
		t.Error("parts run into each other")
	}
}

// TestLost: a certificate is lost by revocation or with its root, not by expiry.
func TestLost(t *testing.T) {
	t.Parallel()
	w := newTestMesh(t)
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
