package e2e

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

// signer signs tokens of one issuer with one key.
type signer struct {
	issuer string
	kid    string
	alg    jose.SignatureAlgorithm
	key    any // private, or a secret
}

func newSigner(t *testing.T, issuer, kid string, alg jose.SignatureAlgorithm) signer {
	t.Helper()
	var key any
	var err error
	if alg == jose.ES256 {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	} else {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	return signer{issuer, kid, alg, key}
}

// public returns the public key.
func (s signer) public() jose.JSONWebKey {
	private, _ := s.key.(crypto.Signer)
	return jose.JSONWebKey{Key: private.Public(), KeyID: s.kid, Algorithm: string(s.alg), Use: "sig"}
}

// keySet returns a JWKS of the public keys of signers.
func keySet(t *testing.T, of ...signer) string {
	t.Helper()
	var set jose.JSONWebKeySet
	for _, s := range of {
		set.Keys = append(set.Keys, s.public())
	}
	text, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// token returns a token that is valid for an hour for the audience "shop", with some claims
// changed; nil removes one.
func (s signer) token(t *testing.T, changed map[string]any) string {
	t.Helper()
	claims := map[string]any{
		"iss": s.issuer, "sub": "alice", "aud": "shop", "group": "staff",
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	}
	maps.Copy(claims, changed)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	options := (&jose.SignerOptions{}).WithType("JWT")
	if s.kid != "" {
		options = options.WithHeader("kid", s.kid)
	}
	by, err := jose.NewSigner(jose.SigningKey{Algorithm: s.alg, Key: s.key}, options)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := by.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	out, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// unsigned returns a token with alg none.
func unsigned(issuer string) string {
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	return part(`{"alg":"none","typ":"JWT"}`) + "." + part(fmt.Sprintf(`{"iss":%q,"sub":"alice","aud":"shop","exp":%d}`, issuer, time.Now().Add(time.Hour).Unix())) + "."
}

// keyServer serves a key set that tests change, and the discovery of its issuer.
func keyServer(t *testing.T) (at string, set func(string)) {
	t.Helper()
	var keys atomic.Value
	keys.Store("")
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/keys", "/others":
			_, _ = io.WriteString(w, keys.Load().(string))
		case "/.well-known/openid-configuration":
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, server.URL, server.URL+"/keys")
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, func(text string) { keys.Store(text) }
}

// echoServer is an application that answers with the headers and the path of the request.
func echoServer(t *testing.T) string {
	t.Helper()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("x-uri", r.RequestURI)
		_ = json.NewEncoder(w).Encode(r.Header)
	}))
	t.Cleanup(app.Close)
	return strings.TrimPrefix(app.URL, "http://")
}

const tokenPolicies = `
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: sample}
spec:
  selector: {matchLabels: {app: helloworld}}
  jwtRules:
  - issuer: fetched
    jwksUri: %[1]s/keys
    audiences: [shop, bank]
    outputPayloadToHeader: x-payload
    outputClaimToHeaders: [{header: x-group, claim: group}, {header: x-city, claim: address.city}]
  - issuer: %[1]s
    forwardOriginalToken: true
  - issuer: inline
    jwks: '%[2]s'
    fromHeaders: [{name: x-token, prefix: "Token "}]
    fromParams: [tok]
    fromCookies: [session]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: down, namespace: istio-system}
spec:
  jwtRules: [{issuer: down, jwksUri: "http://127.0.0.1:1/keys", fromHeaders: [{name: x-down}]}]
`

// TestTokens sends requests with valid, invalid and forged tokens to a sidecar.
func TestTokens(t *testing.T) {
	at, serve := keyServer(t)
	rs := newSigner(t, "fetched", "rs", jose.RS256)
	es := newSigner(t, "inline", "es", jose.ES256)
	serve(keySet(t, rs))
	discovered := rs
	discovered.issuer = at
	other := newSigner(t, "fetched", "rs", jose.RS256)
	renamed := rs
	renamed.kid = "unknown"
	der, err := x509.MarshalPKIXPublicKey(rs.public().Key)
	if err != nil {
		t.Fatal(err)
	}
	confused := signer{"fetched", "rs", jose.HS256, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})}
	now := time.Now()

	dir := harness.ShortDir(t)
	mesh := helloworldMesh(t, echoServer(t))
	replace(t, filepath.Join(mesh, "cluster1", "tokens.yaml"), fmt.Sprintf(tokenPolicies, at, keySet(t, es)))
	_, secure := controlPlane(t, dir, mesh)
	p := proxy{"helloworld-v1", "sidecar", "sample", "helloworld", "127.3.0.1", map[string]string{"app": "helloworld"}}
	defer p.start(t, dir, secure, "ISTIO_META_INTERCEPTION_MODE=NONE")()
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()

	bearer := func(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
	good := rs.token(t, nil)
	for name, tc := range map[string]struct {
		path   string
		header http.Header
		want   int
		sees   map[string]string // headers of the application; empty means missing
	}{
		"no token": {"/", nil, 200, nil},
		"valid": {"/", bearer(rs.token(t, map[string]any{"address": map[string]any{"city": "Oslo"}})), 200, map[string]string{
			"Authorization": "", "X-Group": "staff", "X-City": "Oslo",
		}},
		"several audiences":   {"/", bearer(rs.token(t, map[string]any{"aud": []string{"other", "bank"}})), 200, nil},
		"in a parameter":      {"/?access_token=" + good, nil, 200, nil},
		"forged output":       {"/", http.Header{"X-Group": {"admin"}, "X-Payload": {"e30"}}, 200, map[string]string{"X-Group": "", "X-Payload": ""}},
		"discovered":          {"/", bearer(discovered.token(t, nil)), 200, map[string]string{"Authorization": "Bearer " + discovered.token(t, nil)}},
		"ES256 in a header":   {"/", http.Header{"X-Token": {"Token " + es.token(t, nil)}}, 200, map[string]string{"X-Token": ""}},
		"ES256 in a query":    {"/a?tok=" + es.token(t, nil), nil, 200, nil},
		"ES256 in a cookie":   {"/", http.Header{"Cookie": {"session=" + es.token(t, nil)}}, 200, nil},
		"bad in a cookie":     {"/", http.Header{"Cookie": {"session=abc"}}, 401, nil},
		"bad in a query":      {"/a?tok=abc", nil, 401, nil},
		"another place":       {"/", bearer(es.token(t, nil)), 401, nil}, // found by rules of other issuers
		"alg none":            {"/", bearer(unsigned("fetched")), 401, nil},
		"HS256 of public key": {"/", bearer(confused.token(t, nil)), 401, nil},
		"unknown kid":         {"/", bearer(renamed.token(t, nil)), 401, nil},
		"another key":         {"/", bearer(other.token(t, nil)), 401, nil},
		"expired":             {"/", bearer(rs.token(t, map[string]any{"exp": now.Add(-time.Hour).Unix()})), 401, nil},
		"not yet valid":       {"/", bearer(rs.token(t, map[string]any{"nbf": now.Add(time.Hour).Unix()})), 401, nil},
		"wrong audience":      {"/", bearer(rs.token(t, map[string]any{"aud": "other"})), 403, nil},
		"no audience":         {"/", bearer(rs.token(t, map[string]any{"aud": nil})), 403, nil},
		"wrong issuer":        {"/", bearer(rs.token(t, map[string]any{"iss": "other"})), 401, nil},
		"no issuer":           {"/", bearer(rs.token(t, map[string]any{"iss": nil})), 401, nil},
		"not a token":         {"/", bearer("abc"), 401, nil},
		"changed claims":      {"/", bearer(strings.Replace(good, ".ey", ".ez", 1)), 401, nil},
		"keys not fetched":    {"/", http.Header{"X-Down": {signer{"down", "rs", jose.RS256, rs.key}.token(t, nil)}}, 401, nil},
		"bad, then good":      {"/", http.Header{"Authorization": {"Bearer abc", "Bearer " + good}}, 401, nil},
		"large":               {"/", bearer(rs.token(t, map[string]any{"pad": strings.Repeat("x", 30_000)})), 200, nil},
		"too large":           {"/", bearer(rs.token(t, map[string]any{"pad": strings.Repeat("x", 1_000_000)})), 431, nil},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.3.0.1:5000"+tc.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(req.Header, tc.header)
		resp, err := client.Do(req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != tc.want {
			t.Errorf("%s: %s %s, want %d", name, resp.Status, body, tc.want)
			continue
		}
		var got http.Header
		if len(tc.sees) > 0 {
			if err := json.Unmarshal(body, &got); err != nil {
				t.Fatal(err)
			}
		}
		for header, want := range tc.sees {
			if got.Get(header) != want {
				t.Errorf("%s: the application gets %s: %q, want %q", name, header, got.Get(header), want)
			}
		}
	}
}

const someoneMayCall = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: all, namespace: sample}
spec: {rules: [{}]}
`

const tokensAreRequired = `
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: sample}
spec: {jwtRules: [{issuer: inline, jwks: '%s'}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: tokens, namespace: sample}
spec: {action: DENY, rules: [{from: [{source: {notRequestPrincipals: ["*"]}}]}]}
`

// TestRequiredTokens: while a workload with a policy begins to require tokens, no request with a
// valid token is refused, also on connections from before.
func TestRequiredTokens(t *testing.T) {
	es := newSigner(t, "inline", "es", jose.ES256)
	dir := harness.ShortDir(t)
	mesh := helloworldMesh(t, echoServer(t))
	replace(t, filepath.Join(mesh, "cluster1", "policy.yaml"), someoneMayCall)
	_, secure := controlPlane(t, dir, mesh)
	p := proxy{"helloworld-v1", "sidecar", "sample", "helloworld", "127.3.0.1", map[string]string{"app": "helloworld"}}
	defer p.start(t, dir, secure, "ISTIO_META_INTERCEPTION_MODE=NONE")()

	status := func(client *http.Client, token string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.3.0.1:5000/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	good := es.token(t, nil)
	var clients []*http.Client // with one connection each
	for range 20 {
		client := dial.HTTPClient(deadline, nil)
		defer client.CloseIdleConnections()
		clients = append(clients, client)
		if got := status(client, good); got != http.StatusOK {
			t.Fatalf("status %d before", got)
		}
	}
	replace(t, filepath.Join(mesh, "cluster1", "tokens.yaml"), fmt.Sprintf(tokensAreRequired, keySet(t, es)))
	required := func() bool {
		client := dial.HTTPClient(deadline, nil)
		defer client.CloseIdleConnections()
		return status(client, "") == http.StatusForbidden
	}
	harness.Eventually(t, deadline, "required tokens", func() error {
		if !required() {
			return errors.New("a request without a token is permitted")
		}
		return nil
	})
	for i, client := range clients {
		if got := status(client, good); got != http.StatusOK {
			t.Errorf("status %d at connection %d", got, i)
		}
	}
}
