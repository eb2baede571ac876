package e2e

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/rotate"
	"github.com/meshctl/meshctl/internal/demo"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/harness"
)

var handshakes = flag.Uint64("handshakes", 20_000, "how many new connections TestRootRotationUnderLoad makes at least")

// Times of the rotation. Agents renew after half of the life time, at most
// once a second.
const (
	rotationLeafTTL     = 4 * time.Second
	rotationPropagation = time.Second
)

// closing has the server's Envoy close the connection after each answer, so
// that each request begins with a handshake.
const closing = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: closing, namespace: sample}
spec:
  workloadSelector: {labels: {app: helloworld}}
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_INBOUND}
    patch:
      operation: INSERT_FIRST
      value:
        name: closing
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code:
            inline_string: |
              function envoy_on_request(handle)
                handle:streamInfo():drainConnectionUponCompletion()
              end
`

// TestRootRotationUnderLoad replaces the root of a mesh of two clusters with
// real Envoys while their clients make new connections without a pause: from
// the first step of a rotation to its last, and from start through abort at the
// signing step to its end, no handshake fails.
func TestRootRotationUnderLoad(t *testing.T) {
	dir := filepath.Join(harness.ShortDir(t), "demo")
	m, err := demo.Start(t.Context(), demo.Options{
		Program: meshctl, Envoy: envoy.Path(t), Dir: dir, CertTTL: rotationLeafTTL,
		Rand: rand.Reader, Now: time.Now, LookupEnv: os.LookupEnv,
		Done: func(step string) { t.Log(step) },
	})
	if err != nil {
		logAll(t, dir)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			logAll(t, dir)
		}
		if err := m.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
	for _, cluster := range []mesh.ClusterID{"cluster1", "cluster2"} {
		replace(t, filepath.Join(m.Dir(cluster), "closing.yaml"), closing)
	}
	eventually(t, "each request has a connection of its own", func() error {
		for _, c := range m.Clients() {
			before := countHandshakes(t, c.Admin())
			const n = 20
			for range n {
				if _, err := c.Get(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := countHandshakes(t, c.Admin()) - before; got < n {
				return fmt.Errorf("%d handshakes in %d requests", got, n)
			}
		}
		return nil
	})

	l := startLoad(t, m)
	ca := filepath.Join(dir, "ca")
	old := rootOf(t, ca)
	for _, step := range []string{"start", "next", "finish", "start", "next", "abort", "abort"} {
		rotateRoot(t, ca, step)
		giveRoots(t, dir, ca)
		l.say(t, step)
	}
	if rootOf(t, ca) == old {
		t.Error("the root is the old one")
	}
	l.until(t, *handshakes)
	sent := l.stop()
	var made uint64
	for _, c := range m.Clients() {
		host := hostStats(t, c.Admin())
		made += host["cx_total"]
		// A request that is tried again would hide a handshake that failed.
		if host["cx_connect_fail"] > 0 || host["rq_error"] > 0 || host["rq_success"] != host["rq_total"] {
			t.Errorf("the Envoy of the client of %s counts failures: %v", c.Cluster, host)
		}
	}
	t.Logf("%d requests, %d handshakes", sent, made)
	if made < *handshakes {
		t.Errorf("%d handshakes, want at least %d", made, *handshakes)
	}
}

// rotateRoot waits until the next step is safe, and takes it.
func rotateRoot(t *testing.T, ca, step string) {
	t.Helper()
	d := &rotate.Dir{Path: ca, Now: time.Now}
	status, err := d.Status()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"certs", "rotate-root", step, ca}
	switch {
	case step == "start":
		args = append(args, "--leaf-ttl", rotationLeafTTL.String(), "--propagation", rotationPropagation.String(), "--force")
	case string(status.Command) == step:
		if out, err := exec.Command(meshctl, args...).CombinedOutput(); err == nil {
			t.Fatalf("%s was not refused before its time:\n%s", step, out)
		}
		timer := time.NewTimer(time.Until(status.SafeFrom))
		select {
		case <-timer.C:
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
	mustRun(t, args...)
}

// giveRoots gives every pod the roots that Kubernetes would mount.
func giveRoots(t *testing.T, dir, ca string) {
	t.Helper()
	pods, err := filepath.Glob(filepath.Join(dir, "pods", "*", "var", "run", "secrets", "istio", "root-cert.pem"))
	if err != nil || len(pods) != 6 {
		t.Fatalf("%d pods, %v", len(pods), err)
	}
	roots, err := os.ReadFile(filepath.Join(ca, "cluster1", "root-cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		replace(t, pod, string(roots))
	}
}

func rootOf(t *testing.T, ca string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(ca, "root-cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots, err := certs.ParseCerts(data)
	if err != nil {
		t.Fatal(err)
	}
	return certs.Fingerprint(roots[0])
}

// load is requests without a pause.
type load struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	sent   atomic.Uint64
	failed atomic.Pointer[error]
}

func startLoad(t *testing.T, m *demo.Mesh) *load {
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{cancel: cancel}
	for _, c := range m.Clients() {
		for range 4 {
			l.done.Go(func() {
				for ctx.Err() == nil {
					if _, err := c.Get(context.WithoutCancel(ctx)); err != nil {
						l.failed.CompareAndSwap(nil, &err)
						return
					}
					l.sent.Add(1)
				}
			})
		}
	}
	t.Cleanup(func() { l.stop() })
	return l
}

func (l *load) stop() uint64 {
	l.cancel()
	l.done.Wait()
	return l.sent.Load()
}

// say logs the progress, and fails the test when a request has failed.
func (l *load) say(t *testing.T, after string) {
	t.Helper()
	t.Logf("%s: %d requests so far", after, l.sent.Load())
	if err := l.failed.Load(); err != nil {
		t.Fatalf("after %d requests, after %s: %v", l.sent.Load(), after, *err)
	}
}

// until waits for so many requests, for as long as they come.
func (l *load) until(t *testing.T, n uint64) {
	t.Helper()
	for l.sent.Load() < n {
		before := l.sent.Load()
		eventually(t, "a hundred requests", func() error {
			if err := l.failed.Load(); err != nil {
				t.Fatal(*err)
			}
			if sent := l.sent.Load() - before; sent < 100 {
				return fmt.Errorf("%d requests", sent)
			}
			return nil
		})
	}
}

// countHandshakes is how many connections with mTLS the client's Envoy has made
// to helloworld.
func countHandshakes(t *testing.T, admin string) uint64 {
	t.Helper()
	return hostStats(t, admin)["cx_total"]
}

// hostStats are what an Envoy counts of the hosts of helloworld, added up. As
// the server's part of a handshake with TLS 1.3 comes last, some that fail count
// as connections that fail, others as requests.
func hostStats(t *testing.T, admin string) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for line := range strings.Lines(adminGet(t, admin, "/clusters")) {
		parts := strings.Split(strings.TrimSpace(line), "::")
		if len(parts) != 4 || !strings.HasPrefix(parts[0], "outbound|5000||helloworld.") {
			continue
		}
		if n, err := strconv.ParseUint(parts[3], 10, 64); err == nil {
			out[parts[2]] += n
		}
	}
	return out
}
