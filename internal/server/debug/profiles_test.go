package debug

import (
	"bytes"
	"crypto/rand"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/profiles"
)

// serveProfiles serves the pages with profiles, and returns their URL and the token
// of this machine.
func serveProfiles(t *testing.T) (url, token string) {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	dirs := []string{t.TempDir()}
	operator, _, _, err := localtoken.Keep(dirs, server.Listener.Addr(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if token, err = localtoken.Read(dirs, server.Listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	server.Config = NewServer(New(testConfig()).Handler(HTTPConfig{Operator: operator, Authenticate: authenticate, Profiles: true, Log: log}), log)
	server.Start()
	t.Cleanup(server.Close)
	return server.URL + profiles.Path, token
}

// ask returns the status and the body of an answer.
func ask(t *testing.T, url, token string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, body
}

// TestProfiles: go tool pprof reads each profile.
func TestProfiles(t *testing.T) {
	url, token := serveProfiles(t)
	for path, want := range map[string]string{
		"heap": "inuse_space", "heap?gc=1": "inuse_space", "allocs": "alloc_space", "goroutine": "goroutine", "threadcreate": "threadcreate",
		"profile?seconds=1": "cpu", "mutex?seconds=1": "delay", "block?seconds=1": "delay",
	} {
		code, body := ask(t, url+path, token)
		if code != http.StatusOK || !bytes.HasPrefix(body, []byte("\x1f\x8b")) {
			t.Errorf("%s: got %d %.100q, want a profile", path, code, body)
			continue
		}
		file := filepath.Join(t.TempDir(), "profile.pb.gz")
		if err := os.WriteFile(file, body, 0o600); err != nil {
			t.Fatal(err)
		}
		if text, err := exec.CommandContext(t.Context(), "go", "tool", "pprof", "-raw", file).CombinedOutput(); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: got %v, %.500s, want %s", path, err, text, want)
		}
	}
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"":                    {200, "/debug/pprof/"},
		"goroutine?debug=2":   {200, "goroutine "},
		"trace?seconds=1":     {200, "go 1."},
		"profile?seconds=0":   {400, `seconds="0": want a whole number from 1 to 120`},
		"profile?seconds=999": {400, ""},
		"trace?seconds=31":    {400, ""},
		"mutex?seconds=x":     {400, ""},
		"cmdline":             {404, ""},
		"symbol":              {404, ""},
	} {
		if code, body := ask(t, url+path, token); code != want.code || !strings.Contains(string(body), want.text) {
			t.Errorf("%s: got %d %.200q, want %d %q", path, code, body, want.code, want.text)
		}
	}
}

// TestProfilesAreForTheOperator: no identity of the mesh reads profiles.
func TestProfilesAreForTheOperator(t *testing.T) {
	url, _ := serveProfiles(t)
	for token, want := range map[string]int{"": 401, "x": 401, "mesh.example/istio-system": 403, "mesh.example/apps": 403} {
		if code, body := ask(t, url+"heap", token); code != want {
			t.Errorf("token %q: got %d %s, want %d", token, code, body, want)
		}
	}
}

// TestOneProfileAtATime: a request during a profile is refused; a client that goes
// away ends its profile.
func TestOneProfileAtATime(t *testing.T) {
	url, token := serveProfiles(t)
	conn, err := net.Dial("tcp", strings.Split(url, "/")[2])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /debug/pprof/trace?seconds=30 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+token+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil { // it has begun
		t.Fatal(err)
	}
	if code, body := ask(t, url+"heap", token); code != http.StatusServiceUnavailable || !strings.Contains(string(body), "another profile") {
		t.Errorf("got %d %s, want 503", code, body)
	}
	_ = conn.Close()
	for code := http.StatusServiceUnavailable; code != http.StatusOK; {
		if code, _ = ask(t, url+"heap", token); code != http.StatusServiceUnavailable && code != http.StatusOK {
			t.Fatal(code)
		}
	}
}
