package debug

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func request(h http.Handler, path, remote, host string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.RemoteAddr, r.Host = remote, host
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestStatusHandler(t *testing.T) {
	var reasons []string
	h := StatusHandler(StatusConfig{
		Ready:   func() []string { return reasons },
		Notes:   func() []string { return []string{"a note"} },
		Version: map[string]string{"version": "v1"},
		Debug:   http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Error(w, r.URL.Path, http.StatusTeapot) }),
		Log:     slog.New(slog.DiscardHandler),
	})
	for _, tc := range []struct {
		name, path, remote, host string
		reasons                  []string
		want                     int
		body                     string
	}{
		{"ready", "/ready", "10.0.0.1:1", "x", nil, 200, ""},
		{"not ready says why", "/ready", "10.0.0.1:1", "x", []string{"cluster c2: not read yet"}, 503, "cluster c2: not read yet\n"},
		{"notes when ready", "/ready?verbose", "127.0.0.1:1", "localhost:8080", nil, 200, "a note\n"},
		{"what others wrote", "/ready?verbose", "127.0.0.1:1", "localhost", []string{"403: \x1b[2J\x9b\nforged"}, 503, "403: \\x1b[2J\\x9b\\nforged\na note\n"},
		{"notes when not ready", "/ready?verbose", "127.0.0.1:1", "localhost:8080", []string{"why"}, 503, "why\na note\n"},
		{"no notes for the network", "/ready?verbose", "10.0.0.1:1", "localhost:8080", []string{"why"}, 503, "why\n"},
		{"version for everyone", "/version", "10.0.0.1:1", "x", nil, 200, ""},
		{"no notes through a rebound name", "/ready?verbose", "127.0.0.1:1", "evil.example:8080", nil, 200, ""},
		{"notes on another loopback address", "/ready?verbose", "127.1.0.9:1", "127.1.0.2:8080", nil, 200, "a note\n"},
		{"notes on IPv6 loopback", "/ready?verbose", "[::1]:1", "[::1]:8080", nil, 200, "a note\n"},
		{"status pages", "/debug/proxies", "10.0.0.1:1", "x", nil, 418, "/debug/proxies\n"},
		{"their list", "/debug", "10.0.0.1:1", "x", nil, 418, "/debug\n"},
		{"no metrics here", "/metrics", "127.0.0.1:1", "localhost", nil, 404, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reasons = tc.reasons
			w := request(h, tc.path, tc.remote, tc.host)
			if w.Code != tc.want {
				t.Errorf("status %d, want %d: %s", w.Code, tc.want, w.Body)
			}
			if tc.body != "" && w.Body.String() != tc.body {
				t.Errorf("body %q, want %q", w.Body, tc.body)
			}
		})
	}
}

func TestVersionIsJSON(t *testing.T) {
	h := StatusHandler(StatusConfig{Version: map[string]string{"version": "v1"}, Log: slog.New(slog.DiscardHandler)})
	var got map[string]string
	if err := json.Unmarshal(request(h, "/version", "127.0.0.1:1", "x").Body.Bytes(), &got); err != nil || got["version"] != "v1" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestMonitoringHandler(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "meshctl_test_total", Help: "x"})
	reg.MustRegister(c)
	c.Inc()
	h := MonitoringHandler(MonitoringConfig{
		Metrics: reg, Version: "v1-abc-Clean", Clusters: func() any { return []string{"c1"} },
		Proxies: func() any { return []string{"web.apps"} }, Log: slog.New(slog.DiscardHandler),
	})
	for _, tc := range []struct {
		path, remote, host string
		want               int
		body               string
	}{
		{"/metrics", "10.0.0.1:1", "x", 200, "meshctl_test_total 1"},
		{"/version", "10.0.0.1:1", "x", 200, "v1-abc-Clean"},
		{"/debug/clusterz", "127.0.0.1:1", "localhost:15014", 200, `"c1"`},
		{"/debug/clusterz", "[::1]:1", "[::1]:15014", 200, `"c1"`},
		{"/debug/clusterz", "10.0.0.1:1", "localhost:15014", 403, "forward the port"},
		{"/debug/clusterz", "127.0.0.1:1", "evil.example:15014", 403, "forward the port"},
		{"/debug/syncz", "127.0.0.1:1", "localhost:15014", 200, `"web.apps"`},
		{"/debug/syncz", "10.0.0.1:1", "localhost:15014", 403, "forward the port"},
		{"/debug/syncz", "127.0.0.1:1", "evil.example:15014", 403, "forward the port"},
		{"/debug/clusters", "127.0.0.1:1", "localhost:15014", 404, ""},
		{"/ready", "10.0.0.1:1", "x", 404, ""},
	} {
		if w := request(h, tc.path, tc.remote, tc.host); w.Code != tc.want || !strings.Contains(w.Body.String(), tc.body) {
			t.Errorf("%s for %s at %s: %d %s", tc.path, tc.remote, tc.host, w.Code, w.Body)
		}
	}
}
