package agent

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/dial"
)

// TestLocal: only POST requests of processes of this machine pass.
func TestLocal(t *testing.T) {
	for name, tc := range map[string]struct {
		method, from, host string
		want               int
	}{
		"loopback":                {"POST", "127.0.0.1:1", "localhost:15020", 200},
		"IPv6 loopback":           {"POST", "[::1]:1", "[::1]:15020", 200},
		"own address":             {"POST", "127.1.0.12:1", "127.1.0.12:15020", 200},
		"get":                     {"GET", "127.0.0.1:1", "localhost:15020", 405},
		"another machine":         {"POST", "10.0.0.1:1", "10.0.0.2:15020", 403},
		"another machine's get":   {"GET", "10.0.0.1:1", "10.0.0.2:15020", 403},
		"the mesh, through Envoy": {"POST", "127.0.0.6:1", "10.0.0.2:15020", 403},
		"the mesh on IPv6":        {"POST", "[::6]:1", "[fd00::1]:15020", 403},
		"mapped":                  {"POST", "[::ffff:127.0.0.6]:1", "10.0.0.2:15020", 403},
		"a page of a browser":     {"POST", "127.0.0.1:1", "rebound.test:15020", 403},
		"no address":              {"POST", "", "localhost", 403},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(tc.method, "/quitquitquit", http.NoBody)
			r.RemoteAddr, r.Host = tc.from, tc.host
			local(http.MethodPost, func(w http.ResponseWriter, _ *http.Request) { ok(w) }).ServeHTTP(w, r)
			if w.Code != tc.want {
				t.Errorf("status %d, want %d", w.Code, tc.want)
			}
		})
	}
}

// post sends a request to the status port.
func (a *agentTest) post(t *testing.T, path string, header http.Header) int {
	t.Helper()
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"http://"+netip.AddrPortFrom(a.cfg.Listen, a.cfg.StatusPort).String()+path, http.NoBody)
	check(t, err)
	req.Header = header
	resp, err := client.Do(req)
	check(t, err)
	check(t, resp.Body.Close())
	return resp.StatusCode
}

// TestQuit: the agent ends without draining.
func TestQuit(t *testing.T) {
	a := newAgentTest(t, "sidecar", "run")
	a.start(t)
	a.waitReady(t)
	if status := a.post(t, "/quitquitquit", http.Header{"Sec-Fetch-Site": {"cross-site"}}); status != http.StatusForbidden {
		t.Errorf("from a page of a browser: status %d", status)
	}
	if status := a.post(t, "/quitquitquit", nil); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
	if err := a.ended(t); err != nil {
		t.Errorf("ended with %v", err)
	}
	a.wantLog(t, "start -rw-------\nterminate\n")
	a.wantClean(t)
}

// TestDrainBeforeTheEnd: the agent of a native sidecar drains once, stays ready, and ends at
// once on the signal.
func TestDrainBeforeTheEnd(t *testing.T) {
	a := newAgentTest(t, "sidecar", "run")
	a.cfg.TerminationDrain = 10 * deadline
	a.start(t)
	a.waitReady(t)
	if status := a.post(t, "/drain", nil); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
	a.waitReady(t)
	a.stop()
	if err := a.ended(t); err != nil {
		t.Errorf("ended with %v", err)
	}
	a.wantLog(t, "start -rw-------\ndrain /drain_listeners?inboundonly&graceful&skip_exit\nterminate\n")
}

// TestQuitWhileDraining: /quitquitquit cuts a drain short.
func TestQuitWhileDraining(t *testing.T) {
	a := newAgentTest(t, "sidecar", "run")
	a.cfg.ExitOnZeroConnections, a.cfg.MinimumDrain = true, 10*deadline
	a.start(t)
	a.waitReady(t)
	a.stop()
	a.post(t, "/quitquitquit", nil)
	if err := a.ended(t); err != nil {
		t.Errorf("ended with %v", err)
	}
}

// TestExitOnZeroConnections: the drain ends when Envoy has no connection.
func TestExitOnZeroConnections(t *testing.T) {
	a := newAgentTest(t, "router", "run")
	a.cfg.ExitOnZeroConnections, a.cfg.TerminationDrain = true, 10*deadline
	a.start(t)
	a.waitReady(t)
	a.stop()
	if err := a.ended(t); err != nil {
		t.Errorf("ended with %v", err)
	}
	a.wantLog(t, "start -rw-------\ndrain /drain_listeners?graceful\nterminate\n")
}

// TestCountConnections: only connections of the workload count.
func TestCountConnections(t *testing.T) {
	stats := map[string]uint64{
		"listener.0.0.0.0_15006.downstream_cx_active":          3,
		"listener.0.0.0.0_15006.worker_0.downstream_cx_active": 3,
		"listener.[__]_15001.downstream_cx_active":             2,
		"listener.0.0.0.0_15021.downstream_cx_active":          7,
		"listener.[__]_15090.downstream_cx_active":             7,
		"listener.admin.downstream_cx_active":                  7,
		"listener.admin.main_thread.downstream_cx_active":      7,
		"listener.envoy_internal_main.downstream_cx_active":    7,
		"listener.0.0.0.0_15006.downstream_cx_total":           7,
		"cluster.x.downstream_cx_active":                       7,
	}
	cfg := &config.Config{}
	cfg.Listen, cfg.ReadyPort, cfg.StatsPort = netip.IPv4Unspecified(), 15021, 15090
	if n := countConnections(stats, ownListeners(cfg)); n != 5 {
		t.Errorf("%d connections, want 5", n)
	}
}
