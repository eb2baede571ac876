package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

// restarts is the number of control planes that follow each other.
const restarts = 100

// TestEnvoyOutlivesControlPlanes: while the control plane restarts 100 times, Envoy's stream
// never ends and no request fails. Each control plane sends nothing that Envoy holds, and
// what has changed meanwhile.
func TestEnvoyOutlivesControlPlanes(t *testing.T) {
	dir := harness.ShortDir(t)
	mesh := filepath.Join(dir, "mesh")
	for _, cluster := range []string{"cluster1", "cluster2"} {
		if err := os.MkdirAll(filepath.Join(mesh, cluster), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(mesh, "cluster1", "mesh.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, accessLogMesh, "{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	answers(t, "127.3.0.9:8088", "ok")
	makeAuthorities(t, dir)
	stopServe := serveMesh(t, dir, mesh)
	defer func() { stopServe() }()
	p := proxy{"client", "sidecar", "shop", "client", "127.3.0.1", nil}
	defer p.start(t, dir, secureXDS, "ISTIO_META_INTERCEPTION_MODE=NONE")()
	called(t, "http://127.3.0.1:15080/", "web.shop")

	var requests, failures atomic.Int64
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		client := dial.HTTPClient(deadline, nil)
		defer client.CloseIdleConnections()
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			req, err := http.NewRequest(http.MethodGet, "http://127.3.0.1:15080/", http.NoBody)
			if err != nil {
				panic(err)
			}
			req.Host = "web.shop"
			requests.Add(1)
			resp, err := client.Do(req)
			if err != nil {
				failures.Add(1)
				continue
			}
			if resp.StatusCode != http.StatusOK {
				failures.Add(1)
			}
			_ = resp.Body.Close()
		}
	}()
	for round := range restarts {
		stopServe()
		changed := round%10 == 9
		if changed {
			text, err := os.ReadFile(config)
			if err != nil {
				t.Fatal(err)
			}
			replace(t, config, string(text)+fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: web-%d, namespace: shop}
spec:
  clusterIP: 10.96.1.%d
  ports:
  - {name: http, port: 15080, targetPort: 8088}
`, round, round))
		}
		stopServe = serveMesh(t, dir, mesh)
		eventually(t, "Envoy's stream is resumed", func() error {
			ps := exec.Command(meshctl, "ps", "--server", "127.3.0.2:8080")
			ps.Env = append(os.Environ(), "HOME="+dir) // where serve has left its token
			out, err := ps.CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			if !strings.Contains(string(out), "(CDS,LDS,EDS,RDS)") || !strings.Contains(string(out), "SYNCED") {
				return errors.New(string(out))
			}
			return nil
		})
		if changed {
			eventually(t, "Envoy has the new cluster", func() error {
				name := fmt.Sprintf("web-%d.shop", round)
				if all := adminGet(t, admin, "/clusters"); !strings.Contains(all, name) {
					return fmt.Errorf("no %s in: %s", name, all)
				}
				return nil
			})
			continue
		}
		for typ, n := range metrics(t, "meshctl_xds_sent_resources_total") {
			if n > 0 {
				t.Errorf("round %d: Envoy held them, but %d of %s were sent", round, n, typ)
			}
		}
	}
	close(stop)
	<-ended
	if n := failures.Load(); n > 0 || requests.Load() < restarts {
		t.Errorf("%d of %d requests failed", n, requests.Load())
	}
	stats := adminGet(t, admin, "/stats?filter="+`^cluster\.xds-grpc;?\.upstream_(cx|rq)_total$|update_(failure|rejected)$`)
	for line := range strings.Lines(stats) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		want := "0"
		if strings.HasSuffix(name, "_total") {
			want = "1"
		}
		if value != want {
			t.Errorf("%s is %s, want %s", name, value, want)
		}
	}
	if !strings.Contains(stats, "upstream_rq_total") {
		t.Errorf("statistics: %s", stats)
	}
}

// metrics returns the values of a metric of the control plane by type.
func metrics(t *testing.T, name string) map[string]int {
	t.Helper()
	out := map[string]int{}
	for line := range strings.Lines(adminGet(t, "127.3.0.2:15014", "/metrics")) {
		labels, ok := strings.CutPrefix(line, name+`{type="`)
		if !ok {
			continue
		}
		typ, value, _ := strings.Cut(strings.TrimSpace(labels), `"} `)
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(err)
		}
		out[typ] = int(n)
	}
	return out
}
