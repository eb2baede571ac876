package identity

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/token"
)

// provider publishes the keys of an OIDC issuer.
type provider struct {
	*httptest.Server
	issuer *token.Issuer
	keys   atomic.Pointer[[]byte]
	asked  atomic.Int64
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{issuer: must(token.GenerateIssuer("https://id.example"))(t)}
	p.publish(t, p.issuer)
	p.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		p.asked.Add(1)
		if doc := p.keys.Load(); doc != nil {
			_, _ = w.Write(*doc)
			return
		}
		http.Error(w, "no", http.StatusInternalServerError)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) publish(t *testing.T, i *token.Issuer) {
	t.Helper()
	p.keys.Store(new(must(json.Marshal(i.JWKS()))(t)))
}

func (p *provider) rule() OIDCRule {
	return OIDCRule{Issuer: p.issuer.URL(), JWKSURI: p.URL + "/keys", Audiences: []string{"istio-ca"}}
}

func (w *testMesh) oidc(t *testing.T, roots *x509.Certificate, rules ...OIDCRule) {
	t.Helper()
	cfg := OIDCConfig{Rules: rules, Guard: dial.Guard{Loopback: true}, Now: w.cfg.Now, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	if roots != nil {
		cfg.Roots = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: roots.Raw})
	}
	w.cfg.OIDC = must(NewOIDC(cfg))(t)
}

func signed(t *testing.T, i *token.Issuer, claims map[string]any) string {
	t.Helper()
	signer := must(jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.Key(), KeyID: i.KeyID()}}, nil))(t)
	return must(jwt.Signed(signer).Claims(claims).Serialize())(t)
}

// TestOIDCTokens: wrong tokens of OIDC issuers are refused, and the keys are fetched
// once a minute at most, whatever callers send.
func TestOIDCTokens(t *testing.T) {
	t.Parallel()
	w, p := newTestMesh(t), newProvider(t)
	w.oidc(t, p.Certificate(), p.rule())
	s := w.serveTLS(t)
	conn := w.dial(t, s, nil)
	stranger := must(token.GenerateIssuer("https://id.example"))(t)
	claims := func(change map[string]any) map[string]any {
		c := map[string]any{
			"iss": "https://id.example", "aud": "istio-ca", "iat": start.Unix(), "exp": start.Add(time.Hour).Unix(),
			"sub": "system:serviceaccount:sample:helloworld",
		}
		maps.Copy(c, change)
		return c
	}
	body := base64.RawURLEncoding.EncodeToString(must(json.Marshal(claims(nil)))(t))
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must(x509.MarshalPKIXPublicKey(p.issuer.Key().Public()))(t)})
	forged := func(header string) string {
		text := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + body
		mac := hmac.New(sha256.New, public)
		mac.Write([]byte(text))
		return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	for name, raw := range map[string]string{
		"expired":         signed(t, p.issuer, claims(map[string]any{"exp": start.Add(-time.Minute).Unix()})),
		"nbf in future":   signed(t, p.issuer, claims(map[string]any{"nbf": start.Add(time.Minute).Unix()})),
		"wrong aud":       signed(t, p.issuer, claims(map[string]any{"aud": "vault"})),
		"wrong iss":       signed(t, p.issuer, claims(map[string]any{"iss": "https://other.example"})),
		"alg none":        base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + body + ".",
		"HS256":           forged(`{"alg":"HS256","kid":"` + p.issuer.KeyID() + `"}`),
		"unknown kid":     signed(t, stranger, claims(nil)),
		"1 MB":            strings.Repeat("a", 1<<20),
		"sub of a node":   signed(t, p.issuer, claims(map[string]any{"sub": "system:node:a"})),
		"sub too short":   signed(t, p.issuer, claims(map[string]any{"sub": "system:serviceaccount:a"})),
		"sub too long":    signed(t, p.issuer, claims(map[string]any{"sub": "system:serviceaccount:a:b:c"})),
		"sub of a person": signed(t, p.issuer, claims(map[string]any{"sub": "admin"})),
	} {
		err := call(t, conn, "authorization", "Bearer "+raw)
		s.result(t)
		if st := status.Convert(err); st.Code() != codes.Unauthenticated || st.Message() != "request authenticate failure" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 20 {
		_ = call(t, conn, "authorization", "Bearer "+signed(t, must(token.GenerateIssuer("https://id.example"))(t), claims(nil)))
		s.result(t)
	}
	if n := p.asked.Load(); n != 1 {
		t.Errorf("the issuer was asked for its keys %d times, want once", n)
	}
	if err := call(t, conn, "authorization", "Bearer "+signed(t, p.issuer, claims(nil)), "clusterid", "east"); err != nil {
		t.Errorf("the good one: %v", err)
	}
	if got := s.result(t).caller; got != caller("cluster.local", "sample", "helloworld", "") {
		t.Errorf("the good one is %+v", got)
	}
	// A new key is found after a minute; without the issuer the last keys count.
	p.publish(t, stranger)
	w.setTime(start.Add(refetchInterval))
	if err := call(t, conn, "authorization", "Bearer "+signed(t, stranger, claims(nil))); err != nil {
		t.Errorf("a new key: %v", err)
	}
	s.result(t)
	p.keys.Store(nil)
	w.setTime(start.Add(2 * refetchInterval))
	for range 3 {
		_ = call(t, conn, "authorization", "Bearer "+signed(t, p.issuer, claims(nil)))
		s.result(t)
	}
	if err := call(t, conn, "authorization", "Bearer "+signed(t, stranger, claims(map[string]any{"jti": "2"}))); err != nil {
		t.Errorf("the last good keys: %v", err)
	}
	s.result(t)
	if st := w.cfg.OIDC.Status(); p.asked.Load() != 3 || len(st) != 1 || !strings.Contains(st[0].Problem, "500") {
		t.Errorf("asked %d times, %+v", p.asked.Load(), st)
	}
}

// TestOIDCWithoutKeys: while keys cannot be fetched, callers may try again, and no
// forbidden address is connected to.
func TestOIDCWithoutKeys(t *testing.T) {
	t.Parallel()
	w, p := newTestMesh(t), newProvider(t)
	rule := p.rule()
	rule.JWKSURI = "https://keys.example/"
	w.oidc(t, p.Certificate(), rule)
	w.cfg.OIDC.cfg.Guard.Lookup = nil
	client := must(dial.Guard{Loopback: true, Lookup: func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("169.254.169.254")}, nil
	}}.Client(askTimeout, dial.ServerTLS{}, token.MaxKeySetSize))(t)
	w.cfg.OIDC.client = client
	s := w.serveTLS(t)
	err := call(t, w.dial(t, s, nil), "authorization", "Bearer "+w.token(t, p.issuer, "istio-ca"))
	if s.result(t); status.Code(err) != codes.Unavailable {
		t.Errorf("%v, want Unavailable", err)
	}
	if st := w.cfg.OIDC.Status(); !strings.Contains(st[0].Problem, "link-local or a metadata service") {
		t.Errorf("%+v", st)
	}
}

// TestOIDCFile: changes of a file of keys take effect.
func TestOIDCFile(t *testing.T) {
	t.Parallel()
	w := newTestMesh(t)
	one, two := must(token.GenerateIssuer("https://id.example"))(t), must(token.GenerateIssuer("https://id.example"))(t)
	file := filepath.Join(t.TempDir(), "jwks.json")
	put := func(i *token.Issuer) {
		if err := os.WriteFile(file, must(json.Marshal(i.JWKS()))(t), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(one)
	w.oidc(t, nil, OIDCRule{Issuer: "https://id.example", JWKSFile: file, Audiences: []string{"istio-ca"}})
	s := w.serveTLS(t)
	conn := w.dial(t, s, nil)
	ask := func(i *token.Issuer) error {
		err := call(t, conn, "authorization", "Bearer "+w.token(t, i, "istio-ca"))
		s.result(t)
		return err
	}
	if err := ask(one); err != nil {
		t.Error(err)
	}
	if err := ask(two); status.Code(err) != codes.Unauthenticated {
		t.Errorf("another key: %v", err)
	}
	put(two)
	w.setTime(start.Add(cacheTime))
	if err := ask(two); err != nil {
		t.Error(err)
	}
	if err := ask(one); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a key that is gone: %v", err)
	}
}

func TestOIDCRun(t *testing.T) {
	t.Parallel()
	w, p := newTestMesh(t), newProvider(t)
	w.oidc(t, p.Certificate(), p.rule())
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.cfg.OIDC.Run(ctx) }()
	for end := time.Now().Add(2 * time.Minute); w.cfg.OIDC.issuers[p.issuer.URL()].keys.get() == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no keys")
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestOIDCRulesAreChecked(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]OIDCRule{
		"no issuer":    {JWKSURI: "https://a/", Audiences: []string{"a"}},
		"no keys":      {Issuer: "a", Audiences: []string{"a"}},
		"both":         {Issuer: "a", JWKSURI: "https://a/", JWKSFile: "f", Audiences: []string{"a"}},
		"plain HTTP":   {Issuer: "a", JWKSURI: "http://a/", Audiences: []string{"a"}},
		"no audience":  {Issuer: "a", JWKSURI: "https://a/"},
		"missing file": {Issuer: "a", JWKSFile: "/nowhere/jwks.json", Audiences: []string{"a"}},
	} {
		if _, err := NewOIDC(OIDCConfig{Rules: []OIDCRule{r}, Now: time.Now}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestForwardedCertificates: forwarded certificates count only from the configured
// gateways, which do not include loopback by default.
func TestForwardedCertificates(t *testing.T) {
	t.Parallel()
	const uri = "spiffe://cluster.local/ns/sample/sa/helloworld"
	good := "By=spiffe://cluster.local/ns/gw/sa/gw;Hash=ab;Subject=\"CN=a;URI=x,b\";URI=" + uri
	for name, tc := range map[string]struct {
		sources []string
		headers []string
		ok      bool
	}{
		"nobody is named":         {nil, []string{headerXFCC, good}, false},
		"others are named":        {[]string{"10.0.0.0/8", "::1/128"}, []string{headerXFCC, good}, false},
		"a named gateway":         {[]string{"10.0.0.0/8", "127.0.0.1/32"}, []string{headerXFCC, good}, true},
		"quoted":                  {[]string{"127.0.0.0/8"}, []string{headerXFCC, `URI="` + uri + `"`}, true},
		"the last element counts": {[]string{"127.0.0.1/32"}, []string{headerXFCC, "URI=spiffe://cluster.local/ns/evil/sa/evil," + good}, true},
		"an earlier element":      {[]string{"127.0.0.1/32"}, []string{headerXFCC, good + ",Hash=cd"}, false},
		"two URIs":                {[]string{"127.0.0.1/32"}, []string{headerXFCC, good + ";URI=" + uri}, false},
		"two headers":             {[]string{"127.0.0.1/32"}, []string{headerXFCC, good, headerXFCC, good}, false},
		"another trust domain":    {[]string{"127.0.0.1/32"}, []string{headerXFCC, "URI=spiffe://b.example/ns/sample/sa/helloworld"}, false},
		"no end of a quote":       {[]string{"127.0.0.1/32"}, []string{headerXFCC, good + `;Subject="`}, false},
		"too long":                {[]string{"127.0.0.1/32"}, []string{headerXFCC, strings.Repeat("a", maxXFCC) + good}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestMesh(t)
			for _, n := range tc.sources {
				w.cfg.XFCCSources = append(w.cfg.XFCCSources, netip.MustParsePrefix(n))
			}
			s := w.serveTLS(t)
			err := call(t, w.dial(t, s, nil), tc.headers...)
			got := s.result(t)
			if tc.ok {
				if err != nil || got.caller != caller("cluster.local", "sample", "helloworld", "") {
					t.Errorf("%v, %+v", err, got.caller)
				}
				return
			}
			if c := status.Code(err); c != codes.Unauthenticated && c != codes.PermissionDenied {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// FuzzXFCC: an identity comes from the last element only, and is a valid one.
func FuzzXFCC(f *testing.F) {
	f.Add(`Hash=ab;URI=spiffe://a/ns/b/sa/c`)
	f.Add(`URI=spiffe://a/ns/x/sa/y,Subject="a,b;\"";URI=spiffe://a/ns/b/sa/c`)
	f.Add(`"`)
	f.Add(``)
	f.Fuzz(func(t *testing.T, header string) {
		id, err := ParseXFCC(header)
		if err != nil {
			return
		}
		if !strings.Contains(header, id.String()) {
			t.Fatalf("%s is not in %q", id, header)
		}
		again, err := ParseXFCC("URI=spiffe://evil/ns/e/sa/e," + header)
		if err != nil || again != id {
			t.Fatalf("an element before makes %v of %v: %v", again, id, err)
		}
	})
}
