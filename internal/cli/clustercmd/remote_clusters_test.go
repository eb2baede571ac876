package clustercmd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/server/clusters"
	"github.com/meshctl/meshctl/test/clitest"
)

// remoteClusters runs the command and returns its exit code and output.
func remoteClusters(t *testing.T, home string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return clitest.Run(t, home, args, group())
}

// TestRemoteClusters shows a missing cluster, waits until it is synced, and shows it drained.
func TestRemoteClusters(t *testing.T) {
	t.Parallel()
	own, away := t.TempDir(), filepath.Join(t.TempDir(), "cluster2")
	service := func(dir, ip string) {
		t.Helper()
		text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: web, namespace: apps}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-x, namespace: apps, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints: [{addresses: [%s], conditions: {ready: true}}]
`, ip)
		if err := os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	service(own, "10.1.0.1")
	debug, monitoring, home := clitest.FreeAddr(t), clitest.FreeAddr(t), t.TempDir()
	s, err := server.New(server.Config{
		ClusterID: "cluster1", ConfigDir: own, StateDir: filepath.Join(t.TempDir(), "state"), TokenAudiences: []string{"istio-ca"},
		RemoteDirs: []server.ClusterDir{{Cluster: "cluster2", Dir: away}}, RemoteTimeout: 10 * time.Millisecond,
		GRPCAddr: clitest.FreeAddr(t), HTTPAddr: debug, MonitoringAddr: monitoring, TokenDirs: localtoken.Directories(clitest.HomeOnly(home)),
		Log: slog.New(slog.DiscardHandler), Now: time.Now, Rand: rand.Reader,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})

	code, stdout, stderr := remoteClusters(t, home, "remote-clusters", "--server", debug)
	starting := func() bool { return !strings.Contains(stdout, "cluster2") || strings.Contains(stdout, "syncing") }
	for deadline := time.Now().Add(time.Minute); starting() && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		code, stdout, stderr = remoteClusters(t, home, "remote-clusters", "--server", debug)
	}
	if code != cli.ExitFindings || !strings.Contains(stdout, "cluster2") || !strings.Contains(stderr, "cluster cluster2 is ") || !strings.Contains(stderr, "does not exist") {
		t.Errorf("exit code %d\n%s\n%s", code, stdout, stderr)
	}
	if err := os.Mkdir(away, 0o700); err != nil {
		t.Fatal(err)
	}
	service(away, "10.2.0.1")
	code, stdout, stderr = remoteClusters(t, home, "remote-clusters", "--server", debug+",http://"+debug, "--wait", "--timeout", "1m")
	if code != cli.ExitOK || strings.Count(stdout, "cluster2") != 2 || strings.Count(stdout, "synced") != 2 { // name and directory, for two replicas
		t.Errorf("exit code %d\n%s\n%s", code, stdout, stderr)
	}

	if code, _, stderr := remoteClusters(t, home, "multicluster", "drain", "cluster2", "--config-dir", own); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	var views []struct {
		Clusters []clusters.PageCluster
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		_, stdout, _ = remoteClusters(t, home, "remote-clusters", "--server", debug, "-o", "json")
		if err := json.Unmarshal([]byte(stdout), &views); err != nil {
			t.Fatal(err)
		}
		if c := views[0].Clusters[1]; c.Drained {
			if c.Services != 1 || c.Endpoints != 1 || !c.Setting.Drain {
				t.Errorf("%+v", c)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the cluster is not drained: %s", stdout)
		}
	}
	if code, stdout, _ := remoteClusters(t, home, "remote-clusters", "--server", debug); code != cli.ExitOK || !strings.Contains(stdout, "synced, drained ") {
		t.Errorf("a drained cluster: exit code %d\n%s", code, stdout)
	}
	hostile := `apiVersion: v1
kind: Service
metadata: {name: eastwest, namespace: istio-system, labels: {topology.istio.io/network: n2}}
spec: {type: LoadBalancer, clusterIP: 10.96.9.9, ports: [{name: tls, port: 15443}]}
status: {loadBalancer: {ingress: [{ip: 10.96.0.1}, {hostname: gateway.example}, {ip: 192.0.2.7}]}}
`
	if err := os.WriteFile(filepath.Join(away, "eastwest.yaml"), []byte(hostile), 0o600); err != nil {
		t.Fatal(err)
	}
	const taken, host = "10.96.0.1:15443: it is the address of a service of the local cluster", "gateway.example: no address of this host name is known"
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		code, stdout, stderr = remoteClusters(t, home, "remote-clusters", "--server", debug, "-o", "wide")
		if code == cli.ExitOK && strings.Contains(stdout, "BALANCING") && strings.Contains(stdout, "drained") &&
			strings.Contains(stdout, "192.0.2.7:15443 ") && strings.Contains(stdout, host+"; "+taken) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the refused gateways are not shown: exit code %d\n%s%s", code, stdout, stderr)
		}
	}
	_, stdout, _ = remoteClusters(t, home, "remote-clusters", "--server", debug, "-o", "json")
	if err := json.Unmarshal([]byte(stdout), &views); err != nil {
		t.Fatal(err)
	}
	if c := views[0].Clusters[1]; c.RefusedGatewayCount != 2 || len(c.RefusedGateways) != 2 || c.RefusedGateways[1].Network != "n2" {
		t.Errorf("%+v", c)
	}
	metrics, err := http.Get("http://" + monitoring + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer metrics.Body.Close()
	text, err := io.ReadAll(metrics.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`meshctl_cluster_refused_gateways{cluster="cluster1"} 0`, `meshctl_cluster_refused_gateways{cluster="cluster2"} 2`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// TestRemoteClustersCredentials: the end of a credential is shown, and is a problem when it
// has expired.
func TestRemoteClustersCredentials(t *testing.T) {
	page := func(problem string, expired bool) replicaView {
		return replicaView{Server: "r", Clusters: []clusters.PageCluster{{Status: clusters.Status{
			Cluster: "c2", State: clusters.Synced, CredentialProblem: problem, CredentialExpired: expired,
		}}}}
	}
	forbidden := page("", false)
	forbidden.Clusters[0].Report = clusters.Report{Cause: "403", Reason: "may not list nodes"}
	expired := page("credential expired at 2026-01-02T00:00:00Z", true)
	expired.Clusters[0].Report = clusters.Report{Cause: clusters.CauseExpired, Reason: "credential expired at 2026-01-02T00:00:00Z"}
	several := page("", false)
	several.Clusters[0].State = clusters.Lost
	several.Clusters[0].Report = clusters.Report{Cause: "tcp", Reason: "TCP: refused", Faults: []clusters.Fault{
		{Cause: "tcp", Reason: "TCP: refused"}, {Cause: "401", Reason: "the new credential is refused", Fix: "meshctl remote-secret rotate"},
	}}
	o := &remoteClustersOptions{PageFlags: cli.PageFlags{Output: output.FormatWide}}
	for _, tc := range []struct {
		view         replicaView
		state, wrong string
	}{
		{page("", false), "synced", ""},
		{page("credential ends in 5 hours, at 2026-01-02T00:00:00Z", false), "synced, credential ends in 5 hours", ""},
		{expired, "synced, credential expired", "r: cluster c2: credential expired at 2026-01-02T00:00:00Z"},
		{several, "lost", "r: cluster c2 is lost: TCP: refused\nr: cluster c2: the new credential is refused; fix: meshctl remote-secret rotate"},
		{forbidden, "synced", "r: cluster c2: may not list nodes"},
	} {
		if got := o.row(time.Now(), &tc.view, &tc.view.Clusters[0])[2]; got != tc.state {
			t.Errorf("state %q, want %q", got, tc.state)
		}
		if got := strings.Join(mergeLines(tc.view.wrong()), "\n"); got != tc.wrong {
			t.Errorf("wrong %q, want %q", got, tc.wrong)
		}
	}
}
