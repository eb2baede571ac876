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
	"github.com/meshctl/meshctl/internal/xdswire"
)

// issuing makes a control plane trust an issuer, and returns a function that makes its
// tokens.
func issuing(t *testing.T) (change func(*Config), mint func(namespace string, ttl time.Duration) string) {
	t.Helper()
	issuer, err := token.GenerateIssuer("https://issuer.example")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "issuer")
	if err := token.SaveIssuer(dir, issuer, false); err != nil {
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

// TestStatusPagesNeedATokenOnLoopback: callers on the machine of the server need a token.
func TestStatusPagesNeedATokenOnLoopback(t *testing.T) {
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

// TestSyncz: a proxy accepts one type, refuses another and does not ask for a third.
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

// TestSynczForKiali: in a pod, a port-forward reads one row for each proxy at the monitoring port,
// without a token. Elsewhere other users of the machine could, so there is no such page.
func TestSynczForKiali(t *testing.T) {
	for _, inPod := range []bool{true, false} {
		s := start(t, func(c *Config) {
			c.InPod = inPod
			write(t, c.ConfigDir, "a.yaml", serviceYAML(1))
		})
		connect(t, s, "web").subscribeAll(t)
		connect(t, s, "web").subscribeAll(t) // before the first stream has ended
		page := func() (code int, rows []map[string]any) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.monitoring.Addr().String()+"/debug/syncz", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			_ = json.NewDecoder(resp.Body).Decode(&rows)
			return resp.StatusCode, rows
		}
		if !inPod {
			if code, _ := page(); code != http.StatusNotFound {
				t.Errorf("outside of a pod: %d", code)
			}
			continue
		}
		waitFor(t, "a synced row", func() bool {
			code, rows := page()
			if code != http.StatusOK || len(rows) > 1 {
				t.Fatalf("%d: %v", code, rows)
			}
			if len(rows) == 0 || rows[0]["proxy"] != "web.apps" || rows[0]["cluster_id"] != "cluster1" {
				return false
			}
			for _, kind := range []string{"cluster", "listener", "route", "endpoint"} {
				if sent := rows[0][kind+"_sent"]; sent == nil || sent != rows[0][kind+"_acked"] {
					return false
				}
			}
			return true
		})
	}
}

// TestStatusPages: every page has its main contents.
func TestStatusPages(t *testing.T) {
	s := start(t, func(c *Config) {
		write(t, c.ConfigDir, "a.yaml", serviceYAML(1))
		write(t, c.ConfigDir, "b.yaml", sliceYAML(1, "10.1.0.1"))
	})
	connect(t, s, "web").subscribeAll(t)
	dialWire(t, s, false, xdswire.SotW, "sidecar", xdswire.NameTableType).next()
	const host = "svc-1.ns-1.svc.cluster.local"
	for page, want := range map[string]string{
		"adsz":                           `"watches":{"type.googleapis.com/envoy.config.cluster.v3.Cluster":["*"]`,
		"adsz?proxyID=web.apps-1":        `"totalClients":1`,
		"connections":                    `{"totalClients":2,"clients":[{"connectionId":"web.apps-1"`,
		"registryz":                      `"hostname":"` + host + `","clusterVIPs":{"Addresses":{"cluster1":["10.96.0.2"]}}`,
		"endpointShardz":                 `{"` + host + `":{"ns-1":{"Shards":{"Kubernetes/cluster1":[{"Addresses":["10.1.0.1"]`,
		"endpointz":                      `"EndpointPort":8080`,
		"networkz":                       `[]`,
		"mesh":                           `"trustDomain":"cluster.local"`,
		"pushcontext":                    `"NetworkGateways":[]`,
		"cachez":                         `"type":"CDS"`,
		"config_dump?proxyID=web.apps-1": `"dynamicActiveClusters":[{"versionInfo":`,
		"config_dump?proxyID=web.apps-1&types=lds,RDS&pretty": "\n      \"@type\": \"type.googleapis.com/envoy.config.listener.v3.Listener\"",
		"config_dump?proxyID=web.apps-1&include_eds":          `"dynamicEndpointConfigs":[{`,
		"edsz?proxyID=web.apps-1":                             `"clusterName":"outbound|80||` + host + `"`,
		"ndsz?proxyID=web.apps-2":                             `"table":{"` + host + `":{"ips":["10.96.0.2"],"registry":"Kubernetes","shortname":"svc-1","namespace":"ns-1"}}`,
		"ecdsz?proxyID=web":                                   `{"configs":[]}`,
		"list":                                                `"config_dump"`,
	} {
		if code, body := get(t, s, "/debug/"+page); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("/debug/%s: %d, no %s in %.600s", page, code, want, body)
		}
	}
	for page, want := range map[string]int{
		"config_dump": 400, "edsz": 400, "config_dump?proxyID=nobody": 404, "adsz?proxyID=nobody": 404, "nothing": 404,
		"config_dump?proxyID=web&types=xyz": 400, "ambientz": 404, "pprof/": 404, "quitquitquit": 404,
	} {
		if code, body := get(t, s, "/debug/"+page); code != want {
			t.Errorf("/debug/%s: %d, want %d: %s", page, code, want, body)
		}
	}
}
