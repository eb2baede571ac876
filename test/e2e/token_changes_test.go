package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

// askWith sends a request with a token, and returns the status and the body's start.
func askWith(ctx context.Context, client *http.Client, at, token string) (code int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text := make([]byte, 64)
	n, _ := resp.Body.Read(text)
	return resp.StatusCode, string(text[:n]), nil
}

// TestKeyRotation replaces the key of an issuer while requests with its tokens are served. None
// is refused, and no listener changes. Then tokens of the old key are refused. A rule with another
// URL keeps the keys until the new ones are fetched.
func TestKeyRotation(t *testing.T) {
	at, serve := keyServer(t)
	older, newer := newSigner(t, "issuer", "old", jose.ES256), newSigner(t, "issuer", "new", jose.ES256)
	serve(keySet(t, older))
	dir := harness.ShortDir(t)
	mesh := helloworldMesh(t, echoServer(t))
	keysAt := func(path string) {
		replace(t, filepath.Join(mesh, "cluster1", "tokens.yaml"), fmt.Sprintf(`
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: sample}
spec: {jwtRules: [{issuer: issuer, jwksUri: "%s%s", audiences: [shop, %q]}]}
`, at, path, strings.TrimPrefix(path, "/")))
	}
	keysAt("/keys")
	_, secure := controlPlane(t, dir, mesh, "--jwks-refresh-interval", "1s")
	p := proxy{"helloworld-v1", "sidecar", "sample", "helloworld", "127.3.0.1", map[string]string{"app": "helloworld"}}
	defer p.start(t, dir, secure, "ISTIO_META_INTERCEPTION_MODE=NONE")()
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	const url = "http://127.3.0.1:5000/"

	var current atomic.Value
	current.Store(older.token(t, nil))
	ctx, stop := context.WithCancel(t.Context())
	var traffic sync.WaitGroup
	var answered atomic.Int64
	traffic.Go(func() {
		for ctx.Err() == nil {
			code, _, err := askWith(t.Context(), client, url, current.Load().(string))
			if answered.Add(1); err != nil || code != http.StatusOK {
				t.Errorf("request %d: status %d, %v", answered.Load(), code, err)
				return
			}
		}
	})
	becomes := func(token string, want int) {
		t.Helper()
		eventually(t, fmt.Sprintf("status %d", want), func() error {
			code, _, err := askWith(t.Context(), client, url, token)
			if err == nil && code != want {
				err = fmt.Errorf("status %d", code)
			}
			return err
		})
	}
	listeners := adminGet(t, admin, "/stats?filter=listener_manager.listener_(modified|added|removed)")
	becomes(newer.token(t, nil), http.StatusUnauthorized)
	serve(keySet(t, older, newer))
	becomes(newer.token(t, nil), http.StatusOK)
	current.Store(newer.token(t, nil))
	serve(keySet(t, newer))
	becomes(older.token(t, nil), http.StatusUnauthorized)
	serve("") // the last keys stay
	becomes(newer.token(t, nil), http.StatusOK)
	keysAt("/others") // nor are keys fetched from another URL
	eventually(t, "Envoy has the new rule", func() error {
		if dump := adminGet(t, admin, "/config_dump?resource=ecds_filters"); !strings.Contains(dump, `"others"`) {
			return errors.New("it is not there")
		}
		return nil
	})
	becomes(newer.token(t, nil), http.StatusOK)
	eventually(t, "100 answers", func() error {
		if n := answered.Load(); n < 100 && !t.Failed() {
			return fmt.Errorf("only %d requests were answered", n)
		}
		return nil
	})
	stop()
	traffic.Wait()
	serve(keySet(t, older))
	becomes(older.token(t, nil), http.StatusOK)
	becomes(newer.token(t, nil), http.StatusUnauthorized)
	if now := adminGet(t, admin, "/stats?filter=listener_manager.listener_(modified|added|removed)"); now != listeners {
		t.Errorf("a listener changed with the keys: before\n%safter\n%s", listeners, now)
	}
}

// TestClaimRoutes: a gateway routes by the claims of valid tokens only.
func TestClaimRoutes(t *testing.T) {
	es := newSigner(t, "issuer", "es", jose.ES256)
	other := newSigner(t, "issuer", "es", jose.ES256)
	app := func(name string) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) }))
		t.Cleanup(server.Close)
		return server.URL[strings.LastIndex(server.URL, ":")+1:]
	}
	dir := harness.ShortDir(t)
	mesh := helloworldMesh(t, "127.0.0.1:1")
	var config strings.Builder
	fmt.Fprintf(&config, `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: web, namespace: edge}
spec:
  selector: {istio: ingress}
  servers: [{port: {number: 8880, name: http, protocol: HTTP}, hosts: ["*"]}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: edge}
spec:
  selector: {matchLabels: {istio: ingress}}
  jwtRules: [{issuer: issuer, jwks: '%s', spaceDelimitedClaims: [roles]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: edge}
spec:
  hosts: ["*"]
  gateways: [web]
  http:
  - match: [{headers: {"@request.auth.claims.group": {exact: staff}}}]
    route: [{destination: {host: staff.test}}]
  - match: [{headers: {"@request.auth.claims[address][city]": {prefix: Os}}}]
    route: [{destination: {host: oslo.test}}]
  - match: [{headers: {"@request.auth.claims.roles": {exact: admin}}}]
    route: [{destination: {host: admin.test}}]
  - match: [{withoutHeaders: {"@request.auth.claims.sub": {}}}]
    route: [{destination: {host: nobody.test}}]
  - route: [{destination: {host: rest.test}}]
`, keySet(t, es))
	for _, name := range []string{"staff", "oslo", "admin", "nobody", "rest"} {
		fmt.Fprintf(&config, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: edge}
spec:
  hosts: [%[1]s.test]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: %[2]s}]
  endpoints: [{address: 127.0.0.1}]
`, name, app(name))
	}
	replace(t, filepath.Join(mesh, "cluster1", "gateway.yaml"), config.String())
	_, secure := controlPlane(t, dir, mesh)
	gateway := proxy{"ingress", "router", "edge", "ingress", "127.3.0.1", map[string]string{"istio": "ingress"}}
	defer gateway.start(t, dir, secure)()
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	claims := func(more map[string]any) string { return es.token(t, more) }
	for name, tc := range map[string]struct {
		token string
		want  string
	}{
		"no token":     {"", "200 nobody"},
		"a text":       {claims(nil), "200 staff"},
		"a list":       {claims(map[string]any{"group": []string{"guests", "staff"}}), "200 staff"},
		"another text": {claims(map[string]any{"group": "staff2"}), "200 rest"},
		"a number":     {claims(map[string]any{"group": 7}), "200 rest"},
		"nested":       {claims(map[string]any{"group": nil, "address": map[string]any{"city": "Oslo"}}), "200 oslo"},
		"nested, flat": {claims(map[string]any{"group": nil, "address.city": "Oslo"}), "200 rest"},
		"spaces":       {claims(map[string]any{"group": nil, "roles": "user admin"}), "200 admin"},
		"in a word":    {claims(map[string]any{"group": nil, "roles": "user administrator"}), "200 rest"},
		"no subject":   {claims(map[string]any{"group": nil, "sub": nil}), "200 nobody"},
		"forged":       {other.token(t, nil), "401 Jwt verification fails"},
	} {
		code, body, err := askWith(t.Context(), client, "http://127.3.0.1:8880/", tc.token)
		if got := fmt.Sprint(code, " ", body); err != nil || got != tc.want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, tc.want)
		}
	}
}
