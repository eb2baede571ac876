package profile

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves at a socket until the test ends.
func start(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "p")
	s, err := Listen(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("the socket is still there: %v", err)
		}
	})
	return path
}

// curl asks as people do. It returns the status and the body.
func curl(t *testing.T, socket, path string) (string, []byte) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	code, err := exec.CommandContext(t.Context(), "curl", "-s", "-o", out, "-w", "%{http_code}", "--unix-socket", socket, "http://localhost/debug/pprof/"+path).Output()
	if err != nil {
		t.Fatalf("curl: %v", err)
	}
	body, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return string(code), body
}

// TestProfiles has go tool pprof read each profile that curl gets.
func TestProfiles(t *testing.T) {
	socket := start(t)
	if info, err := os.Stat(socket); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for path, want := range map[string]string{
		"heap": "inuse_space", "heap?gc=1": "inuse_space", "allocs": "alloc_space", "goroutine": "goroutine", "threadcreate": "threadcreate",
		"profile?seconds=1": "cpu", "mutex?seconds=1": "delay", "block?seconds=1": "delay",
	} {
		code, body := curl(t, socket, path)
		if code != "200" || !bytes.HasPrefix(body, []byte("\x1f\x8b")) {
			t.Errorf("%s: %s, %.100q", path, code, body)
			continue
		}
		file := filepath.Join(t.TempDir(), "profile.pb.gz")
		if err := os.WriteFile(file, body, 0o600); err != nil {
			t.Fatal(err)
		}
		if text, err := exec.CommandContext(t.Context(), "go", "tool", "pprof", "-raw", file).CombinedOutput(); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v, no %s in %.500s", path, err, want, text)
		}
	}
	for path, want := range map[string]string{
		"":                    "200 allocs\n",
		"goroutine?debug=2":   "200 goroutine ",
		"trace?seconds=1":     "200 go 1.",
		"profile?seconds=0":   `400 seconds="0": want a whole number from 1 to 120`,
		"profile?seconds=999": "400 ",
		"trace?seconds=31":    "400 ",
		"mutex?seconds=x":     "400 ",
		"heap?debug=9":        "400 ",
		"cmdline":             "404 ",
		"symbol":              "404 ",
	} {
		code, body := curl(t, socket, path)
		if got := code + " " + string(body); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %.100q, want %q", path, got, want)
		}
	}
}

// TestOneAtATime asks while a profile is taken; who goes away ends theirs.
func TestOneAtATime(t *testing.T) {
	socket := start(t)
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("GET /debug/pprof/trace?seconds=30 HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil { // it has begun
		t.Fatal(err)
	}
	if code, body := curl(t, socket, "heap"); code != "503" || !strings.Contains(string(body), "another profile") {
		t.Errorf("%s: %s", code, body)
	}
	_ = conn.Close()
	for code := "503"; code != "200"; {
		if code, _ = curl(t, socket, "heap"); code != "503" && code != "200" {
			t.Fatal(code)
		}
	}
}

// TestSocket finds something else at the path.
func TestSocket(t *testing.T) {
	dir := t.TempDir()
	file, stale, log := filepath.Join(dir, "file"), filepath.Join(dir, "stale"), slog.New(slog.DiscardHandler)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	for path, want := range map[string]string{
		file: "is not a socket", start(t): "is in use", filepath.Join(dir, "none", "p"): "no such file",
		filepath.Join(dir, strings.Repeat("x", 90), "p"): "no such file", stale: "",
	} {
		s, err := Listen(path, log)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
		if err == nil {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".pprof-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
