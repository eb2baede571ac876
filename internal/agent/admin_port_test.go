package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/peer"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

// fakeAdmin serves the admin interface of an Envoy, and returns its client.
func fakeAdmin(t *testing.T, answer http.HandlerFunc) *adminClient {
	t.Helper()
	cfg := &config.Config{}
	cfg.SDSSocket = filepath.Join(harness.ShortDir(t), "socket")
	admin, err := newAdmin(cfg)
	check(t, err)
	t.Cleanup(admin.close)
	envoy := httptest.NewUnstartedServer(answer)
	check(t, envoy.Listener.Close())
	envoy.Listener, err = net.Listen("unix", admin.socket)
	check(t, err)
	envoy.Start()
	t.Cleanup(envoy.Close)
	return admin
}

// serveAdmin serves the admin port of an Envoy, and returns its URL.
func serveAdmin(t *testing.T, admin *adminClient) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	go func() { done <- admin.serve(ctx, l, peer.New(log), log) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}

// TestAdminPort: requests reach Envoy as they are, and responses arrive while Envoy writes them.
func TestAdminPort(t *testing.T) {
	read := make(chan struct{})
	at := serveAdmin(t, fakeAdmin(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/missing" {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprintf(w, "%s %s %q %s\n", r.Method, r.RequestURI, r.Header.Get("X-Forwarded-For"), body)
		if r.URL.Path == "/stream" {
			check(t, http.NewResponseController(w).Flush())
			<-read
			fmt.Fprint(w, "end")
		}
	}))
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	send := func(method, path, body, site string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), method, at+path, strings.NewReader(body))
		check(t, err)
		if site != "" {
			req.Header.Set("Sec-Fetch-Site", site)
		}
		resp, err := client.Do(req)
		check(t, err)
		t.Cleanup(func() { check(t, resp.Body.Close()) })
		return resp
	}
	text := func(resp *http.Response) string {
		body, err := io.ReadAll(resp.Body)
		check(t, err)
		return fmt.Sprint(resp.StatusCode, " ", string(body))
	}
	for _, tc := range []struct{ method, path, body, site, want string }{
		{"GET", "/stats?usedonly&filter=a;b%", "", "", "200 GET /stats?usedonly&filter=a;b% \"\" \n"},
		{"GET", "/a/../b//c%2fd", "", "", "200 GET /a/../b//c%2fd \"\" \n"},
		{"POST", "/tap", "tapped", "same-origin", "200 POST /tap \"\" tapped\n"},
		{"GET", "/missing", "", "", "404 GET /missing \"\" \n"},
		{"POST", "/quitquitquit", "", "cross-site", "403 cross-origin request detected from Sec-Fetch-Site header\n"},
	} {
		if got := text(send(tc.method, tc.path, tc.body, tc.site)); got != tc.want { //nolint:bodyclose // text and the test read and close it
			t.Errorf("%s %s: %q, want %q", tc.method, tc.path, got, tc.want)
		}
	}
	resp := send("GET", "/stream", "", "") //nolint:bodyclose // text and the test read and close it
	first := make([]byte, len("GET"))
	_, err := io.ReadFull(resp.Body, first)
	check(t, err)
	close(read) // Envoy writes the end after the start has been read
	if got := text(resp); !strings.HasSuffix(got, "end") {
		t.Errorf("a stream ends with %q", got)
	}
}

// TestAdminPortWithoutEnvoy: the response says that Envoy does not answer.
func TestAdminPortWithoutEnvoy(t *testing.T) {
	cfg := &config.Config{}
	cfg.SDSSocket = filepath.Join(harness.ShortDir(t), "socket")
	admin, err := newAdmin(cfg)
	check(t, err)
	defer admin.close()
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	resp, err := client.Get(serveAdmin(t, admin) + "/ready")
	check(t, err)
	body, err := io.ReadAll(resp.Body)
	check(t, err)
	check(t, resp.Body.Close())
	if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "Envoy's admin interface does not answer") {
		t.Errorf("%s: %s", resp.Status, body)
	}
}

// TestAdminSockets: each agent has a socket of another name, and removes sockets of earlier ones.
func TestAdminSockets(t *testing.T) {
	dir := harness.ShortDir(t)
	cfg := &config.Config{}
	cfg.SDSSocket = filepath.Join(dir, "socket")
	first, err := newAdmin(cfg)
	check(t, err)
	second, err := newAdmin(cfg)
	check(t, err)
	if first.socket == second.socket {
		t.Errorf("both sockets are %s", first.socket)
	}
	for _, file := range []string{first.socket, cfg.SDSSocket} {
		check(t, os.WriteFile(file, nil, 0o600))
	}
	if args, err := second.prepare(); err != nil || len(args) != 2 || !strings.Contains(args[1], second.socket) || !strings.Contains(args[1], "384") {
		t.Errorf("arguments of Envoy: %q, %v", args, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != "socket" {
		t.Errorf("the directory has %v, %v, want the socket of SDS", left, err)
	}
	cfg.SDSSocket = filepath.Join(dir, strings.Repeat("x", 100), "socket")
	if _, err := newAdmin(cfg); err == nil || !strings.Contains(err.Error(), "--config-path") {
		t.Errorf("a long path: %v", err)
	}
}
