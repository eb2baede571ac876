// Package envoy gives tests the real Envoy that make envoy installs.
package envoy

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/dial"
)

const (
	startTimeout = time.Minute      // from start to ready
	stopTimeout  = 10 * time.Second // from SIGTERM to SIGKILL
	adminTimeout = 30 * time.Second // one request to the admin interface
	pollInterval = 20 * time.Millisecond
	logTail      = 16 << 10 // bytes of the log that a failed test shows
)

// Path returns the pinned Envoy's path and fails the test without it.
func Path(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "hack", "envoy.sh")); err != nil {
			continue
		}
		path := filepath.Join(dir, ".cache", "envoy", "envoy")
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("no Envoy at %s: run make envoy", path)
		}
		return path
	}
	t.Fatal("the test does not run inside the repository")
	return ""
}

// Proxy is a running Envoy. Its methods fail the test when Envoy does not
// answer.
type Proxy struct {
	// Admin is host:port of the admin interface.
	Admin string

	t      testing.TB
	client *http.Client
	ended  chan struct{} // closed when Envoy has ended
}

// Start runs Envoy with the bootstrap file until the test ends and returns
// when it is ready. The admin interface gets a free port of 127.0.0.1,
// whatever the bootstrap says. A failed test shows the end of Envoy's log; an
// Envoy that ends by itself fails the test.
func Start(t testing.TB, bootstrap string, args ...string) *Proxy {
	t.Helper()
	dir := t.TempDir()
	adminFile := filepath.Join(dir, "admin")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), Path(t), append([]string{
		"--config-path", bootstrap,
		"--config-yaml", "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}",
		"--admin-address-path", adminFile,
		"--disable-hot-restart",
		"--concurrency", "1",
	}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	if err := cmd.Start(); err != nil {
		t.Fatalf("start Envoy: %v", err)
	}
	p := &Proxy{t: t, client: dial.HTTPClient(adminTimeout, nil), ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		if err := cmd.Wait(); t.Context().Err() == nil {
			t.Errorf("Envoy ended before the test: %v", err)
		}
	}()
	t.Cleanup(func() {
		<-p.ended
		p.client.CloseIdleConnections()
		if t.Failed() {
			t.Logf("Envoy's log:\n%s", tail(log))
		}
		_ = log.Close()
	})
	p.waitReady(adminFile)
	return p
}

// waitReady waits for the file that holds the admin address, then for /ready.
func (p *Proxy) waitReady(adminFile string) {
	p.t.Helper()
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		if p.Admin == "" {
			address, _ := os.ReadFile(adminFile)
			p.Admin = string(address)
		} else if _, err := p.get("/ready"); err == nil {
			return
		}
		select {
		case <-poll.C:
		case <-p.ended:
			p.t.FailNow() // the reason is told already
		case <-deadline.C:
			p.t.Fatalf("Envoy is not ready after %v", startTimeout)
		}
	}
}

// ConfigDump returns the admin interface's config_dump, endpoints included,
// as JSON.
func (p *Proxy) ConfigDump() []byte {
	p.t.Helper()
	return p.Get("/config_dump?include_eds")
}

// Stats returns the counters and gauges whose names match the regular
// expression filter.
func (p *Proxy) Stats(filter string) map[string]uint64 {
	p.t.Helper()
	stats := map[string]uint64{}
	body := p.Get("/stats?type=All&filter=" + url.QueryEscape(filter))
	for line := range strings.Lines(string(body)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil { // not a histogram or a text
			stats[name] = n
		}
	}
	return stats
}

// Get returns what the admin interface answers to GET path.
func (p *Proxy) Get(path string) []byte {
	p.t.Helper()
	body, err := p.get(path)
	if err != nil {
		p.t.Fatal(err)
	}
	return body
}

func (p *Proxy) get(path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+p.Admin+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %.200s", path, resp.Status, body)
	}
	return body, err
}

// tail returns the last logTail bytes of the file.
func tail(file *os.File) []byte {
	data, err := os.ReadFile(file.Name())
	if err != nil {
		return []byte(err.Error())
	}
	return data[max(0, len(data)-logTail):]
}
