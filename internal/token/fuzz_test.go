package token

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/mesh"
)

// FuzzSubject: an accepted subject consists exactly of a namespace and an account.
func FuzzSubject(f *testing.F) {
	for _, s := range []string{
		"system:serviceaccount:a:b", "system:serviceaccount", "system:serviceaccount:a",
		"system:serviceaccount:a:b:c", "system:serviceaccountX:a:b", "system:serviceaccount:a:b.c", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ns, sa, err := ParseSubject(s)
		if err != nil {
			return
		}
		if strings.Join([]string{"system", "serviceaccount", ns, sa}, ":") != s || strings.Count(s, ":") != 3 {
			t.Fatalf("%q was read as %q, %q", s, ns, sa)
		}
		if !mesh.IsDNSLabel(ns) || !mesh.IsDNSName(sa) {
			t.Fatalf("%q gives names %q, %q", s, ns, sa)
		}
	})
}

// FuzzToken: only the one real token is accepted.
func FuzzToken(f *testing.F) {
	issuer := newIssuer(f, "https://issuer.example")
	in := Claims{Namespace: "sample", ServiceAccount: "helloworld", Pod: "p", Audiences: []string{"istio-ca"}, TTL: time.Hour}
	good, err := issuer.Create(in, now)
	if err != nil {
		f.Fatal(err)
	}
	v := verifierOf(issuer)
	want, err := v.Verify(good, now)
	if err != nil {
		f.Fatal(err)
	}
	head, rest, _ := strings.Cut(good, ".")
	f.Add(good)
	f.Add(good + ".")
	f.Add(rest)
	f.Add(head + "..")
	f.Add("eyJhbGciOiJub25lIn0." + rest)
	f.Add(`{"payload":"e30","signatures":[]}`)
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := v.Verify(raw, now)
		if err != nil {
			return
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("forged token %q (-real +forged):\n%s", raw, diff)
		}
		var p payload
		if tok, err := jwt.ParseSigned(raw, []jose.SignatureAlgorithm{jose.ES256}); err != nil {
			t.Fatalf("go-jose cannot read %q: %v", raw, err)
		} else if err := tok.Claims(issuer.Key().Public(), &p); err != nil {
			t.Fatalf("go-jose refuses %q: %v", raw, err)
		}
	})
}

// FuzzPayload: accepted payloads with a valid signature keep every rule.
func FuzzPayload(f *testing.F) {
	issuer := newIssuer(f, "https://issuer.example")
	v := verifierOf(issuer)
	f.Add(marshal(f, body(nil)))
	f.Add(marshal(f, body(map[string]any{"exp": 1e300})))
	f.Add(marshal(f, body(map[string]any{"aud": []string{"x", "istio-ca"}, "nbf": nil})))
	f.Add(marshal(f, body(map[string]any{"kubernetes.io": map[string]any{
		"namespace": "sample", "serviceaccount": map[string]string{"name": "helloworld"}, "pod": map[string]string{"name": "p"},
	}})))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		c, err := v.Verify(sign(t, issuer, nil, payload), now)
		if err != nil {
			return
		}
		if !mesh.IsDNSLabel(c.Namespace) || !mesh.IsDNSName(c.ServiceAccount) || c.Pod != "" && !mesh.IsDNSName(c.Pod) {
			t.Fatalf("names %q/%q, pod %q from %q", c.Namespace, c.ServiceAccount, c.Pod, payload)
		}
		if c.Issuer != v.Issuer || c.TTL <= 0 || c.TTL > MaxTTL ||
			!c.Expiry().After(now.Add(-Leeway)) || c.IssuedAt.After(now.Add(Leeway)) {
			t.Fatalf("claims %+v from %q", c, payload)
		}
		if utf8.Valid(payload) && !strings.Contains(string(payload), "sub") && !strings.Contains(string(payload), `\u`) {
			t.Fatalf("no subject in %q", payload)
		}
	})
}
