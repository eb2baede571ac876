package ca

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
)

func identity(n int) mesh.Identity {
	return mesh.Identity{TrustDomain: "td", Namespace: "ns", ServiceAccount: fmt.Sprint("sa-", n)}
}

// TestOneIdentityAsksWithoutMeasure: an identity that floods the issuer gets its limit
// and no more. Other identities get all of their certificates.
func TestOneIdentityAsksWithoutMeasure(t *testing.T) {
	_, intermediate := authorities(t, time.Hour)
	var counts tally
	cfg := issuerConfig(intermediate)
	cfg.Stats = counts.stats()
	cfg.Stats.Limited = counts.count("limited")
	cfg.Policy.PerIdentity = 10
	now := start
	cfg.Now = func() time.Time { return now }
	var who mesh.Caller
	cfg.Authenticate = func(context.Context) (mesh.Caller, error) { return who, nil }
	i := newIssuer(t, cfg)
	csr := newCSR(t)
	ask := func(id mesh.Identity) bool {
		who = mesh.Caller{Identity: id}
		_, err := i.CreateCertificate(t.Context(), &securityv1alpha1.IstioCertificateRequest{Csr: csr})
		switch status.Code(err) {
		case codes.OK:
			return true
		case codes.ResourceExhausted:
			return false
		}
		t.Fatal(err)
		return false
	}
	given := 0
	const seconds, perSecond = 2, 10_000
	for n := range seconds * perSecond {
		now = start.Add(time.Duration(n) * time.Second / perSecond)
		if ask(identity(0)) {
			given++
		}
		if n%2_000 == 0 && !ask(identity(1+n)) {
			t.Errorf("another identity is refused at request %d", n)
		}
	}
	if want := 100 + 10*seconds; given < want-1 || given > want {
		t.Errorf("it was given %d certificates, want %d", given, want)
	}
	if n := counts.n["limited"]; n != seconds*perSecond-given {
		t.Errorf("%d counted as limited", n)
	}
	if now = now.Add(time.Minute); !ask(identity(0)) {
		t.Error("it is refused though it has rested")
	}
}

// TestRefusedAtOnce: a known caller over its limit is refused without another
// authentication, and its connection is slowed down. Other callers are not affected.
func TestRefusedAtOnce(t *testing.T) {
	_, intermediate := authorities(t, time.Hour)
	var counts tally
	authenticated, slowed := 0, time.Duration(0)
	cfg := issuerConfig(intermediate)
	cfg.Stats = counts.stats()
	cfg.Stats.Limited = counts.count("limited")
	cfg.Policy.PerIdentity = 1
	known := mesh.Caller{}
	cfg.Authenticate = func(context.Context) (mesh.Caller, error) { authenticated++; return known, nil }
	cfg.Known = func(_ context.Context, md metadata.MD) (mesh.Caller, bool) {
		return known, len(md.Get("authorization")) == 1
	}
	cfg.SlowDown = func(_ context.Context, by time.Duration) { slowed += by }
	i := newIssuer(t, cfg)
	csr := newCSR(t)
	ask := func(method string, md metadata.MD) codes.Code {
		if _, err := i.Tap(t.Context(), &tap.Info{FullMethodName: method, Header: md}); err != nil {
			return status.Code(err)
		}
		if method != create {
			return codes.OK
		}
		_, err := i.CreateCertificate(t.Context(), &securityv1alpha1.IstioCertificateRequest{Csr: csr})
		return status.Code(err)
	}
	token := metadata.Pairs("authorization", "Bearer x")
	known.Identity = identity(0)
	given := 0
	for range 1000 {
		if ask(create, token) == codes.OK {
			given++
		}
	}
	if n := counts.n["limited"]; given != burst || n != 1000-burst || authenticated != burst || slowed != time.Duration(n)*refusalCost {
		t.Errorf("given %d, limited %d, authenticated %d times, slowed by %v", given, n, authenticated, slowed)
	}
	if got := ask(create, nil); got != codes.ResourceExhausted || authenticated != burst+1 {
		t.Errorf("unknown caller: got %v, authenticated %d times", got, authenticated)
	}
	if got := ask("/another.Service/Method", token); got != codes.OK {
		t.Errorf("another method: %v", got)
	}
	known.Identity = identity(1)
	if got := ask(create, token); got != codes.OK {
		t.Errorf("another identity: %v", got)
	}
}

const create = securityv1alpha1.IstioCertificateService_CreateCertificate_FullMethodName

func TestLimiter(t *testing.T) {
	off := newIdentityLimiter(0)
	for range 1000 {
		if !off.allow(identity(0), start) {
			t.Fatal("a limit of 0 refuses")
		}
	}
	slow := newIdentityLimiter(0.01)
	if !slow.allow(identity(0), start) || slow.allow(identity(0), start.Add(99*time.Second)) || !slow.allow(identity(0), start.Add(200*time.Second)) {
		t.Error("want one request in 100 seconds")
	}
	if !slow.allow(identity(1), start) || slow.allow(identity(1), start.Add(-time.Hour)) {
		t.Error("a clock that is set back fills the bucket")
	}

	// The number of limiters is bounded for any number of identities.
	full := newIdentityLimiter(10)
	for n := range maxLimiters + 10 {
		full.allow(identity(n), start)
	}
	if n := len(full.limiters); n > maxLimiters {
		t.Errorf("got %d limiters, want at most %d", n, maxLimiters)
	}
	full.allow(identity(0), start.Add(time.Hour))
	for n := range maxLimiters {
		full.allow(identity(n), start.Add(time.Hour))
	}
	if n := len(full.limiters); n > maxLimiters {
		t.Errorf("got %d limiters, want at most %d", n, maxLimiters)
	}
}

// TestPolicy: the policy sets the default and the longest lifetime.
func TestPolicy(t *testing.T) {
	_, intermediate := authorities(t, 365*24*time.Hour)
	cfg := issuerConfig(intermediate)
	cfg.Policy = Policy{TTL: 2 * time.Hour, MaxTTL: 3 * time.Hour}
	i := newIssuer(t, cfg)
	for seconds, want := range map[int64]time.Duration{0: 2 * time.Hour, 3 * 3600: 3 * time.Hour, 3*3600 + 1: 0} {
		resp, err := i.CreateCertificate(t.Context(), &securityv1alpha1.IstioCertificateRequest{Csr: newCSR(t), ValidityDuration: seconds})
		switch {
		case want == 0 && status.Code(err) != codes.InvalidArgument:
			t.Errorf("%d seconds: error is %v", seconds, err)
		case want == 0:
		case err != nil:
			t.Error(err)
		default:
			if got := parseOne(t, resp.GetCertChain()[0]).NotAfter.Sub(start); got != want {
				t.Errorf("%d seconds: lives %v, want %v", seconds, got, want)
			}
		}
	}
}

func TestSigned(t *testing.T) {
	_, a := authorities(t, 365*24*time.Hour)
	_, b := authorities(t, 365*24*time.Hour)
	cfg := issuerConfig(a)
	now := start
	cfg.Now = func() time.Time { return now }
	i := newIssuer(t, cfg)
	sign := func(ttl time.Duration) {
		if _, err := i.Sign([]byte(newCSR(t)), caller(), ttl); err != nil {
			t.Fatal(err)
		}
	}
	if len(i.Signed()) != 0 {
		t.Error("something was signed")
	}
	sign(2 * time.Hour)
	now = now.Add(time.Minute)
	sign(time.Hour)
	i.SetAuthority(b)
	sign(time.Hour)
	again := *a // loaded again
	i.SetAuthority(&again)
	now = now.Add(time.Minute)
	sign(time.Second)
	got := i.Signed()
	if len(got) != 2 || !got[0].Authority.Cert.Equal(b.Cert) || !got[1].Authority.Cert.Equal(a.Cert) {
		t.Fatalf("%d signers", len(got))
	}
	if !got[1].Until.Equal(start.Add(2*time.Hour)) || !got[1].Last.Equal(now) {
		t.Errorf("last signed %v, ends %v", got[1].Last, got[1].Until)
	}
	for n := range 2 * maxSigners {
		other := *a
		c := *a.Cert
		c.Raw = append(bytes.Clone(c.Raw), byte(n))
		other.Cert = &c
		i.signed.add(&other, now, now)
	}
	if n := len(i.Signed()); n != maxSigners {
		t.Errorf("%d signers are remembered", n)
	}
}
