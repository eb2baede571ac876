package bundle

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func newRoot(tb testing.TB, name string, start time.Time) *certs.Authority {
	tb.Helper()
	spec := certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: name, TTL: time.Hour}
	a, err := certs.NewRoot(spec, start, rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

func parse(tb testing.TB, data []byte) *Bundle {
	tb.Helper()
	b, err := Parse(data)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func join(tb testing.TB, all ...*Bundle) *Bundle {
	tb.Helper()
	b, err := Join(all...)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func names(roots []*x509.Certificate) (out []string) {
	for _, c := range roots {
		out = append(out, c.Subject.CommonName+c.NotBefore.Format(" 15:04"))
	}
	return out
}

func TestJoinOrdersAndDeduplicates(t *testing.T) {
	old, b, a := newRoot(t, "a", now), newRoot(t, "b", now), newRoot(t, "a", now.Add(time.Hour))
	one := parse(t, certs.EncodeCerts(b.Cert, a.Cert, b.Cert))
	two := parse(t, certs.EncodeCerts(old.Cert, a.Cert))
	got := join(t, one, two)
	if diff := cmp.Diff([]string{"a 11:58", "a 12:58", "b 11:58"}, names(got.Roots)); diff != "" {
		t.Error(diff)
	}
	if !bytes.Equal(got.PEM(), join(t, two, one).PEM()) {
		t.Error("equal bundles have other bytes")
	}
	if !bytes.Equal(got.PEM(), parse(t, got.PEM()).PEM()) {
		t.Error("the bundle changed on its way through PEM")
	}
	onlyOne, onlyTwo := Diff(one, two)
	if diff := cmp.Diff([][]string{{"b 11:58"}, {"a 11:58"}}, [][]string{names(onlyOne), names(onlyTwo)}); diff != "" {
		t.Error(diff)
	}
	if x, y := Diff(got, join(t, two, one)); len(x)+len(y) > 0 {
		t.Errorf("equal bundles differ by %v and %v", names(x), names(y))
	}
}

func TestSPIFFE(t *testing.T) {
	root, other := newRoot(t, "root", now), newRoot(t, "other", now)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	td := spiffeid.RequireTrustDomainFromString("east.example")
	made := spiffebundle.FromX509Authorities(td, []*x509.Certificate{root.Cert})
	made.SetSequenceNumber(7)
	made.SetRefreshHint(5 * time.Minute)
	if err := made.AddJWTAuthority("jwt-1", key.Public()); err != nil {
		t.Fatal(err)
	}
	data, err := made.Marshal()
	if err != nil {
		t.Fatal(err)
	}

	joined := join(t, parse(t, data), parse(t, certs.EncodeCerts(other.Cert)))
	if diff := cmp.Diff([]string{"jwt-1"}, joined.TokenKeys()); diff != "" {
		t.Error(diff)
	}
	out, err := joined.SPIFFE(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	back, err := spiffebundle.Parse(td, out)
	if err != nil {
		t.Fatal(err)
	}
	sequence, _ := back.SequenceNumber()
	hint, _ := back.RefreshHint()
	if len(back.X509Authorities()) != 2 || !back.HasJWTAuthority("jwt-1") || sequence != 7 || hint != 5*time.Minute {
		t.Errorf("the bundle that comes back: %s", out)
	}
	if out, err = joined.SPIFFE(9, time.Hour); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"spiffe_sequence": 9`, `"spiffe_refresh_hint": 3600`, `"use": "x509-svid"`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %s in %s", want, out)
		}
	}
}

// withKeys returns a SPIFFE bundle with new keys for tokens under the given ids.
func withKeys(t *testing.T, root *certs.Authority, jwt, wit string) *Bundle {
	t.Helper()
	made := spiffebundle.FromX509Authorities(spiffeid.RequireTrustDomainFromString("east.example"), []*x509.Certificate{root.Cert})
	for id, add := range map[string]func(string, crypto.PublicKey) error{jwt: made.AddJWTAuthority, wit: made.AddWITAuthority} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if err := add(id, key.Public()); err != nil {
			t.Fatal(err)
		}
	}
	data, err := made.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, data)
}

// TestTokenKeys: bundles with different keys under one id differ and cannot be joined.
func TestTokenKeys(t *testing.T) {
	root := newRoot(t, "root", now)
	one, same, two := withKeys(t, root, "a", "w"), withKeys(t, root, "a", "w"), withKeys(t, root, "b", "v")
	for name, tc := range map[string]struct {
		a, b         *Bundle
		onlyA, onlyB []string
	}{
		"equal":         {a: one, b: one},
		"other ids":     {one, two, []string{`JWT key "a"`, `WIT key "w"`}, []string{`JWT key "b"`, `WIT key "v"`}},
		"the same ids":  {one, same, []string{`JWT key "a"`, `WIT key "w"`}, []string{`JWT key "a"`, `WIT key "w"`}},
		"PEM has none":  {a: one, b: parse(t, one.PEM())},
		"one is joined": {join(t, one, two), two, []string{`JWT key "a"`, `WIT key "w"`}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			onlyA, onlyB := DiffTokenKeys(tc.a, tc.b)
			if diff := cmp.Diff([][]string{tc.onlyA, tc.onlyB}, [][]string{onlyA, onlyB}); diff != "" {
				t.Error(diff)
			}
		})
	}
	join(t, one, one) // one key twice is no conflict
	if _, err := Join(one, same); err == nil || !strings.Contains(err.Error(), "two bundles have different keys under this id") {
		t.Errorf("joined different keys of one id: %v", err)
	}
}

func TestParseRefuses(t *testing.T) {
	root := newRoot(t, "root", now)
	leaf, err := root.SignLeaf(root.Cert.PublicKey, mesh.Caller{
		Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "a", ServiceAccount: "b"},
	}, time.Hour, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ data, want string }{
		"nothing":      {"", "no PEM block"},
		"text":         {"hello", "no PEM block"},
		"a leaf":       {string(certs.EncodeCerts(root.Cert, leaf)), `certificate 2 ("spiffe://cluster.local/ns/a/sa/b") is not a CA`},
		"damaged":      {string(certs.EncodeCerts(root.Cert)[:200]), "damaged"},
		"broken JSON":  {"{", "unable to parse"},
		"no keys":      {"{}", "no authorities found"},
		"empty keys":   {`{"keys": []}`, "holds no root"},
		"an odd entry": {`{"keys": [{"use": "x509-svid", "kty": "EC"}]}`, "unable to parse"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse([]byte(test.data)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	root := newRoot(f, "root", now)
	b := parse(f, certs.EncodeCerts(root.Cert))
	f.Add(b.PEM())
	data, err := b.SPIFFE(1, time.Minute)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(append(b.PEM(), b.PEM()...))
	f.Add(bytes.ReplaceAll(b.PEM(), []byte("\n"), []byte("\r\n")))
	f.Add(b.PEM()[:100])
	f.Add(bytes.ReplaceAll(data, []byte("x509-svid"), []byte("jwt-svid")))
	f.Add(data[:len(data)/2])
	for _, text := range []string{
		`{"keys": [{"use": "jwt-svid", "kid": "a", "kty": "OKP"}]}`,
		`{"keys": [{"use": "x509-svid", "kty": "EC", "x5c": ["AA=="]}]}`,
		`{"keys": [{"use": "jwt-svid", "kid": "", "kty": "oct", "k": "AA"}]}`,
		`{"keys": [], "spiffe_sequence": 18446744073709551615, "spiffe_refresh_hint": -1}`,
		`{"keys": null}`, "{", " \n{}", "\ufeff{}", "-----BEGIN CERTIFICATE-----", "",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := Parse(data)
		if err != nil {
			return
		}
		out, err := b.SPIFFE(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Parse(out)
		if err != nil {
			t.Fatalf("what we write cannot be read: %v\n%s", err, out)
		}
		if x, y := Diff(b, back); len(x)+len(y) > 0 {
			t.Error("roots are lost on the way")
		}
		if x, y := DiffTokenKeys(b, back); len(x)+len(y) > 0 {
			t.Errorf("keys for tokens are lost on the way: %v, %v", x, y)
		}
	})
}
