package debug

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// newProxy is a connected proxy of that name.
func newProxy(name, namespace, stream string) history.Proxy {
	return history.Proxy{
		ID: name + "." + namespace + "-" + stream, Connected: time.Unix(1, 0),
		Node: proxy.Node{ID: mesh.NodeID{Type: mesh.Sidecar, Name: name, Namespace: namespace}, Namespace: namespace, Cluster: "c1"},
	}
}

func testConfig(proxies ...history.Proxy) Config {
	return Config{
		Proxies: func() []history.Proxy { return append([]history.Proxy{}, proxies...) },
		Sent:    func(string) map[string]history.SentConfig { return nil },
		Snapshot: func() *snapshot.Snapshot {
			return &snapshot.Snapshot{Mesh: &snapshot.Mesh{TrustDomain: "mesh.example", Aliases: []string{"old.example"}}}
		},
		SystemNamespace: "istio-system", Namespaces: []string{"observers"}, ID: "istiod-1",
	}
}

// authenticate takes "<trust domain>/<namespace>" for a token.
func authenticate(_ context.Context, token, _ string) (mesh.Caller, error) {
	if token == "undecided" {
		return mesh.Caller{}, status.Error(codes.Unavailable, "secret detail")
	}
	domain, namespace, ok := strings.Cut(token, "/")
	if !ok {
		return mesh.Caller{}, errors.New("secret detail")
	}
	return mesh.Caller{Identity: mesh.Identity{TrustDomain: domain, Namespace: namespace, ServiceAccount: "a"}}, nil
}

// TestStatusPagesByNetwork asks from everywhere, with every token.
func TestStatusPagesByNetwork(t *testing.T) {
	dirs := []string{t.TempDir()}
	listener := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}
	operator, _, _, err := localtoken.Keep(dirs, listener, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := localtoken.Read(dirs, listener.String())
	if err != nil {
		t.Fatal(err)
	}
	pages := New(testConfig(newProxy("web", "apps", "1")))
	const system = "mesh.example/istio-system"
	for _, tc := range []struct {
		name, remote, host, token string
		network                   bool
		want                      int
	}{
		{"network, no token", "10.0.0.1:1", "10.0.0.9:8080", "", true, 401},
		{"network, no token, off", "10.0.0.1:1", "10.0.0.9:8080", "", false, 401},
		{"network, a bad token", "10.0.0.1:1", "10.0.0.9:8080", "x", true, 401},
		{"network, the API server refuses the control plane", "10.0.0.1:1", "10.0.0.9:8080", "undecided", true, 503},
		{"network, the token of this machine", "10.0.0.1:1", "10.0.0.9:8080", raw, true, 401},
		{"network, system namespace, off", "10.0.0.1:1", "10.0.0.9:8080", system, false, 403},
		{"network under a local name", "10.0.0.1:1", "127.0.0.1:8080", system, false, 403},
		{"network, system namespace", "10.0.0.1:1", "10.0.0.9:8080", system, true, 200},
		{"network, allowed namespace", "10.0.0.1:1", "10.0.0.9:8080", "mesh.example/observers", true, 200},
		{"network, another namespace", "10.0.0.1:1", "10.0.0.9:8080", "mesh.example/apps", true, 403},
		{"an alias of the trust domain", "10.0.0.1:1", "10.0.0.9:8080", "old.example/istio-system", true, 200},
		{"another trust domain", "10.0.0.1:1", "10.0.0.9:8080", "foreign.example/istio-system", true, 403},
		{"loopback, no token", "127.0.0.1:1", "127.0.0.1:8080", "", false, 401},
		{"loopback, the token of this machine", "127.0.0.1:1", "127.0.0.1:8080", raw, false, 200},
		{"another loopback address", "127.1.0.9:1", "127.1.0.2:8080", raw, false, 200},
		{"IPv6 loopback", "[::1]:1", "[::1]:8080", raw, false, 200},
		{"loopback, foreign host", "127.0.0.1:1", "evil.example:8080", raw, false, 403},
		{"loopback, foreign host, system namespace", "[::1]:1", "evil.example", system, true, 403},
		{"loopback, host of another machine", "127.0.0.1:1", "10.0.0.9:8080", raw, false, 403},
		{"loopback, no host", "127.0.0.1:1", "", raw, false, 403},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var logs strings.Builder
			h := pages.Handler(HTTPConfig{
				Operator: operator, Authenticate: authenticate, Network: tc.network, Log: slog.New(slog.NewTextHandler(&logs, nil)),
			})
			r := httptest.NewRequest(http.MethodGet, "/debug/syncz", nil)
			r.RemoteAddr, r.Host = tc.remote, tc.host
			if tc.token != "" {
				r.Header.Set("Authorization", "Bearer "+tc.token)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			body := w.Body.String()
			if w.Code != tc.want {
				t.Errorf("status %d, want %d: %s", w.Code, tc.want, body)
			}
			if (tc.want == 200) != strings.Contains(body, "web.apps") || strings.Contains(body, "secret detail") {
				t.Errorf("body: %s", body)
			}
			if (tc.want == 401) != (w.Header().Get("WWW-Authenticate") != "") {
				t.Errorf("headers: %v", w.Header())
			}
			if tc.token != "x" && tc.token != "" && strings.Contains(logs.String(), tc.token) && tc.token == raw {
				t.Error("the token is logged")
			}
		})
	}
}

func TestHandlerReadsOnly(t *testing.T) {
	h := New(testConfig()).Handler(HTTPConfig{Authenticate: authenticate, Network: true, Log: slog.New(slog.DiscardHandler)})
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(method, "/debug/syncz", nil)
		r.Header.Set("Authorization", "Bearer mesh.example/istio-system")
		if h.ServeHTTP(w, r); w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
}
