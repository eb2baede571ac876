package e2e

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/demo"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/harness"
)

var setClocks = flag.Bool("clocks", false, "run TestClocks, which builds meshctl with another package time")

const (
	hours = int64(time.Hour / time.Second)
	// skew is a difference of clocks, in seconds, that certificates permit.
	skew = 90
	// quiet is the number of requests in a row that must not fail after a clock was set.
	quiet = 2000
)

// TestClocks sets the clocks of the machine under a mesh of two clusters with real Envoys, whose
// requests each begin with a handshake. No request fails while the certificates in use are valid
// by the new time, and otherwise none after the proxies have others. No certificate is renewed
// more than twice for a jump.
func TestClocks(t *testing.T) {
	if !*setClocks {
		t.Skip("builds the standard library anew: make e2e-faults")
	}
	dir := harness.ShortDir(t)
	c := newClocks(t, dir)
	m, err := demo.Start(t.Context(), demo.Options{
		Program: c.meshctl, Envoy: c.envoy, Dir: filepath.Join(dir, "demo"),
		Rand: rand.Reader, Now: time.Now, LookupEnv: os.LookupEnv,
		Done: func(step string) { t.Log(step) },
	})
	if err != nil {
		logAll(t, filepath.Join(dir, "demo"))
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			logAll(t, filepath.Join(dir, "demo"))
		}
		if err := m.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
	for _, cluster := range []mesh.ClusterID{"cluster1", "cluster2"} {
		replace(t, filepath.Join(m.Dir(cluster), "closing.yaml"), closing)
	}
	eventually(t, "each request has a connection of its own", func() error {
		client := m.Clients()[0]
		before := countHandshakes(t, client.Admin())
		for range 20 {
			if _, err := client.Get(t.Context()); err != nil {
				return err
			}
		}
		if n := countHandshakes(t, client.Admin()) - before; n < 20 {
			return fmt.Errorf("%d handshakes", n)
		}
		return nil
	})

	l := newClockLoad(t, m)
	defer l.stop()
	l.quiet(t)
	proxies := len(m.Proxies())
	for _, jump := range []struct {
		what          string
		serve, agents int64
		whole         bool // no request fails
	}{
		{"within the lives of all certificates", 13 * hours, 13 * hours, true},
		{"past the ends of all certificates", 40 * hours, 40 * hours, false},
		{"before the begins of all certificates", 0, 0, false},
		{"with control planes that are ahead", 13*hours + skew, 13 * hours, true},
		{"with control planes that are behind", 26*hours - skew, 26 * hours, true},
		{"with control planes that are right again", 39 * hours, 39 * hours, true},
	} {
		failed, renewed, began := l.failed.Load(), c.certificates(t, m), time.Now()
		c.set(t, jump.serve, jump.agents)
		eventually(t, "new certificates of all proxies", func() error {
			if n := c.certificates(t, m) - renewed; n < proxies {
				return fmt.Errorf("%d of %d", n, proxies)
			}
			return nil
		})
		renewal := time.Since(began)
		l.quiet(t)
		failed, renewed = l.failed.Load()-failed, c.certificates(t, m)-renewed
		t.Logf("%s: %d requests failed, the last one %s after the jump; %d certificates for %d proxies in %s", jump.what, failed,
			time.Duration(max(0, l.lastFailure.Load()-began.UnixNano())).Round(time.Millisecond), renewed, proxies, renewal.Round(time.Millisecond))
		if jump.whole && failed > 0 {
			t.Errorf("%s: %d requests failed, the last one with %v", jump.what, failed, l.lastError())
		}
		if renewed > 2*proxies {
			t.Errorf("%s: %d certificates for %d proxies: a storm", jump.what, renewed, proxies)
		}
		if err := m.Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// clocks are programs whose clocks can be set.
type clocks struct {
	dir, meshctl, envoy string
}

// newClocks builds meshctl and a preloaded library for Envoy that read the shifts of their clocks
// from files.
func newClocks(t *testing.T, dir string) *clocks {
	t.Helper()
	c := &clocks{dir: dir, meshctl: filepath.Join(dir, "meshctl"), envoy: filepath.Join(dir, "envoy")}
	for _, name := range []string{"serve", "agents"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 8), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	testdata, err := filepath.Abs("testdata/clock")
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(dir, "clock.so")
	run := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	run("cc", "-shared", "-fPIC", "-O1", "-DCLOCK=\""+filepath.Join(dir, "agents")+"\"", "-o", library, filepath.Join(testdata, "envoy.c"))
	script := "#!/bin/sh\nLD_PRELOAD=" + library + " exec " + envoy.Path(t) + " \"$@\"\n"
	if err := os.WriteFile(c.envoy, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}

	// Every time.Now gets the shift, and a monotonic time as before.
	goroot, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	timeDir := filepath.Join(strings.TrimSpace(string(goroot)), "src/time")
	text, err := os.ReadFile(filepath.Join(timeDir, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const now = "func Now() Time {"
	if strings.Count(string(text), now) != 1 {
		t.Fatal("package time is not as expected")
	}
	changed := strings.Replace(string(text), now, `var Shift *int64

func Now() Time {
	t := unshifted()
	if Shift != nil {
		t.addSec(*Shift)
	}
	return t
}

func unshifted() Time {`, 1)
	if err := os.WriteFile(filepath.Join(dir, "time.go"), []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(timeDir, "time.go"):               filepath.Join(dir, "time.go"),
		filepath.Join(root, "cmd/meshctl/clock_set.go"): filepath.Join(testdata, "main.go.txt"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	run("go", "build", "-C", root, "-trimpath", "-overlay", filepath.Join(dir, "overlay.json"), "-tags", "grpcnotrace",
		"-ldflags", "-s -w -X main.clocks="+dir, "-o", c.meshctl, "./cmd/meshctl")
	return c
}

// set sets the clocks of control planes, and of agents with their Envoys.
func (c *clocks) set(t *testing.T, serve, agents int64) {
	t.Helper()
	for name, shift := range map[string]int64{"serve": serve, "agents": agents} {
		f, err := os.OpenFile(filepath.Join(c.dir, name), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(shift)), 0)
		if closed := f.Close(); err != nil || closed != nil {
			t.Fatal(err, closed)
		}
	}
}

// certificates returns the number of certificates that agents have got.
func (c *clocks) certificates(t *testing.T, m *demo.Mesh) int {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(filepath.Dir(m.ControlPlaneLog("cluster1")), "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n += strings.Count(string(text), "got a certificate")
	}
	return n
}

// clockLoad is requests without a pause, of which some may fail.
type clockLoad struct {
	load
	failed, lastFailure, row atomic.Int64 // row: requests since the last failure

	mu      sync.Mutex
	failure error
}

func newClockLoad(t *testing.T, m *demo.Mesh) *clockLoad {
	t.Helper()
	l := &clockLoad{}
	var stopped atomic.Bool
	l.cancel = func() { stopped.Store(true) }
	for _, c := range m.Clients() {
		for range 2 {
			l.done.Go(func() {
				for !stopped.Load() {
					if _, err := c.Get(t.Context()); err != nil {
						l.fail(err)
						time.Sleep(10 * time.Millisecond)
						continue
					}
					l.sent.Add(1)
					l.row.Add(1)
				}
			})
		}
	}
	return l
}

func (l *clockLoad) fail(err error) {
	l.failed.Add(1)
	l.row.Store(0)
	l.lastFailure.Store(time.Now().UnixNano())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure = err
}

// lastError returns the error of the last failed request.
func (l *clockLoad) lastError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

// quiet waits for requests in a row that do not fail.
func (l *clockLoad) quiet(t *testing.T) {
	t.Helper()
	l.row.Store(0)
	eventually(t, "requests that do not fail", func() error {
		if n := l.row.Load(); n < quiet {
			return fmt.Errorf("%d in a row, then %w", n, l.lastError())
		}
		return nil
	})
}
