package server

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/server/debug"
	"github.com/meshctl/meshctl/internal/token"
	tokenstore "github.com/meshctl/meshctl/internal/token/store"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// issuing has a control plane trust an issuer, which makes tokens for it.
func issuing(t *testing.T) (change func(*Config), mint func(namespace string, ttl time.Duration) string) {
	t.Helper()
	issuer, err := token.GenerateIssuer("https://issuer.example")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "issuer")
	if err := tokenstore.Save(dir, issuer, false); err != nil {
		t.Fatal(err)
	}
	return func(c *Config) { c.TokenIssuers = []ClusterDir{{"cluster1", dir}} },
		func(namespace string, ttl time.Duration) string {
			raw, err := issuer.Create(token.Claims{
				Namespace: namespace, ServiceAccount: "default", Audiences: []string{"istio-ca"}, TTL: ttl,
			}, time.Now().Add(-time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			return raw
		}
}

// TestCase_F1_StatusPagesNeedATokenOnLoopback asks a real server for its status
// pages as everybody who may be on its machine.
func TestCase_F1_StatusPagesNeedATokenOnLoopback(t *testing.T) {
	trust, mint := issuing(t)
	s := start(t, func(c *Config) {
		trust(c)
		write(t, c.ConfigDir, "a.yaml", serviceYAML(1))
		c.DebugNamespaces = []string{"observers"}
	})
	connect(t, s, "web").subscribeAll(t)
	operator, err := localtoken.Read(s.cfg.TokenDirs, s.http.Addr().String())
	if err != nil || operator == "" {
		t.Fatalf("no token for this machine: %v", err)
	}
	for name, tc := range map[string]struct {
		token string
		want  int
	}{
		"no token":              {"", http.StatusUnauthorized},
		"any token":             {"x", http.StatusUnauthorized},
		"an expired token":      {mint("istio-system", time.Second), http.StatusUnauthorized},
		"a part of the token":   {operator[:len(operator)-1], http.StatusUnauthorized},
		"the operator":          {operator, http.StatusOK},
		"the system namespace":  {mint("istio-system", time.Hour), http.StatusOK},
		"an allowed namespace":  {mint("observers", time.Hour), http.StatusOK},
		"a namespace like any":  {mint("apps", time.Hour), http.StatusForbidden},
		"a namespace like that": {mint("istio-system2", time.Hour), http.StatusForbidden},
	} {
		for _, page := range append(s.debug.Names(), "list", "of/nobody") {
			code, body := getAs(t, s, "/debug/"+page, tc.token)
			switch {
			case tc.want != http.StatusOK && code == tc.want && !strings.Contains(body, "web.apps"):
			case tc.want == http.StatusForbidden && code == http.StatusBadRequest: // pages that show it its own proxies
			case tc.want == http.StatusOK && (code == http.StatusOK || code == http.StatusBadRequest || page == "of/nobody" && code == http.StatusNotFound):
			default:
				t.Errorf("%s: /debug/%s answers %d, want %d: %.200s", name, page, code, tc.want, body)
			}
		}
	}
	if code, body := getAs(t, s, "/debug", operator); code != http.StatusOK || !strings.Contains(body, `href="/debug/syncz"`) {
		t.Errorf("/debug: %d, %s", code, body)
	}
	if code, _ := getAs(t, s, "/debug", ""); code != http.StatusUnauthorized {
		t.Errorf("/debug without a token: %d", code)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.http.Addr().String()+"/debug/syncz", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host, req.Close = "evil.example", true
	req.Header.Set("Authorization", "Bearer "+operator)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("a foreign host: %s", resp.Status)
	}
}

// TestSyncz has a proxy accept one type, refuse another and leave a third.
func TestSyncz(t *testing.T) {
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
		write(t, dir, "a.yaml", serviceYAML(1))
	})
	connect(t, s, "web").subscribeAll(t)
	var got []debug.SyncStatus
	read := func() {
		code, body := get(t, s, "/debug/syncz")
		if err := json.Unmarshal([]byte(body), &got); code != http.StatusOK || err != nil || len(got) != 1 {
			t.Fatalf("%d, %v: %s", code, err, body)
		}
	}
	waitFor(t, "synced proxy", func() bool {
		read()
		return got[0].Resources[xdswire.RouteType].Status == "SYNCED"
	})
	p := got[0]
	if p.Proxy != "web.apps" || p.ProxyType != "sidecar" || p.ClusterID != "cluster1" || p.Connection != "web.apps-1" || p.Variant != "delta" {
		t.Errorf("got %+v", p)
	}
	if p.ClusterSent == "" || p.ClusterSent != p.ClusterAcked || p.EndpointSent != p.EndpointAcked || p.ListenerSent != p.ListenerAcked || p.RouteSent == "" {
		t.Errorf("got %+v", p)
	}
	if r := p.Resources[xdswire.ClusterType]; r.Sent != p.ClusterSent || r.SentTime.IsZero() || r.AnsweredTime.Before(r.SentTime) || r.LastError != "" {
		t.Errorf("clusters: %+v", r)
	}
	if len(p.Resources) != 4 {
		t.Errorf("%d types, want 4", len(p.Resources))
	}
	if code, body := get(t, s, "/debug/syncz?namespace=other"); code != http.StatusOK || body != "[]\n" {
		t.Errorf("another namespace: %d %s", code, body)
	}
}
