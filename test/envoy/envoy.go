// Package envoy gives tests the real Envoy that make envoy installs.
package envoy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/process"
	"github.com/meshctl/meshctl/test/harness"
)

const (
	startTimeout = time.Minute      // from start to ready
	stopTimeout  = 10 * time.Second // from SIGTERM to SIGKILL
	adminTimeout = 30 * time.Second // one request to the admin interface
	pollInterval = 20 * time.Millisecond
)

// Path returns the pinned Envoy's path and fails the test without it.
func Path(t testing.TB) string {
	t.Helper()
	path, err := harness.Cached("envoy/envoy", "envoy")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Proxy is a running Envoy. Its methods fail the test when Envoy does not
// answer.
type Proxy struct {
	// Admin is host:port of the admin interface.
	Admin string

	t       testing.TB
	client  *http.Client
	process *process.Process
}

// Start runs Envoy with the bootstrap file until the test ends and returns
// when it is ready. The admin interface gets a free port of 127.0.0.1,
// whatever the bootstrap says. A failed test shows the end of Envoy's log; an
// Envoy that ends by itself fails the test.
func Start(t testing.TB, bootstrap string, args ...string) *Proxy {
	t.Helper()
	dir := t.TempDir()
	adminFile, log := filepath.Join(dir, "admin"), filepath.Join(dir, "log")
	ctx := context.WithoutCancel(t.Context())
	started, err := process.Start(ctx, process.Command{Name: "Envoy", Path: Path(t), LogFile: log, Args: append([]string{
		"--config-path", bootstrap,
		"--config-yaml", "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}",
		"--admin-address-path", adminFile,
		"--disable-hot-restart",
		"--concurrency", "1",
	}, args...)})
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{t: t, client: dial.HTTPClient(adminTimeout, nil), process: started}
	t.Cleanup(func() {
		select {
		case <-started.Done():
			t.Errorf("Envoy ended before the test: %v", started.Err())
		default:
			if _, err := started.Stop(ctx, stopTimeout); err != nil {
				t.Error(err)
			}
		}
		p.client.CloseIdleConnections()
		if t.Failed() {
			t.Logf("Envoy's log:\n%s", harness.Tail(log))
		}
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
		case <-p.process.Done():
			p.t.FailNow() // the cleanup reports the reason
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
