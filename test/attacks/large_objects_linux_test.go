package attacks

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/harness"
)

// The memory of a container in deploy/, and how much of it a control plane with a small mesh may
// use, whatever its tenants do.
const (
	container = 1 << 30
	mostUsed  = 400 << 20
)

// largeObjects are ServiceEntries whose lists become something together, and plugins whose
// configuration costs much more to read than it has bytes.
func largeObjects() map[string]string {
	list := func(n int, format func(int) string) string {
		items := make([]string, n)
		for i := range items {
			items[i] = format(i)
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	hosts := func(n int) string {
		return list(n, func(i int) string { return fmt.Sprintf(`"h%d.example"`, i) })
	}
	ports := func(n int) string {
		return list(n, func(i int) string { return fmt.Sprintf(`{"number":%d,"name":"p%d","protocol":"TCP"}`, i+1, i) })
	}
	entry := func(spec string) string {
		return `{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":{"name":"large","namespace":"tenant"},"spec":{` + spec + `}}`
	}
	plugin := func(config string) string {
		return `{"apiVersion":"extensions.istio.io/v1alpha1","kind":"WasmPlugin","metadata":{"name":"large","namespace":"tenant"},"spec":{"url":"https://plugins.example/a.wasm","pluginConfig":` + config + `}}`
	}
	endpoints := list(10_000, func(i int) string { return fmt.Sprintf(`{"address":"10.%d.%d.%d"}`, i>>16, i>>8&255, i&255) })
	addresses := list(5000, func(i int) string { return fmt.Sprintf(`"240.1.%d.%d"`, i>>8, i&255) })
	return map[string]string{
		"60000 hosts, 300 ports":               entry(`"resolution":"DNS","hosts":` + hosts(60_000) + `,"ports":` + ports(300)),
		"10000 hosts, 300 ports":               entry(`"resolution":"DNS","hosts":` + hosts(10_000) + `,"ports":` + ports(300)),
		"2000 hosts, 10000 endpoints":          entry(`"resolution":"STATIC","hosts":` + hosts(2000) + `,"ports":` + ports(1) + `,"endpoints":` + endpoints),
		"1000 hosts, 5000 addresses, 50 ports": entry(`"resolution":"STATIC","hosts":` + hosts(1000) + `,"ports":` + ports(50) + `,"addresses":` + addresses),
		"values that nest 9000 deep":           plugin(strings.Repeat(`{"a":`, 9000) + "1" + strings.Repeat("}", 9000)),
	}
}

// smallMesh is a control plane in a container, with a proxy that is connected to it.
type smallMesh struct {
	t                       *testing.T
	dir                     string
	pid                     int
	status, webhooks, grpcA string
	clusters                chan []string // of each response to the proxy
	changes                 int
}

// startSmallMesh starts a control plane of a small mesh in a cgroup of 1 GiB.
func startSmallMesh(t *testing.T) *smallMesh {
	t.Helper()
	procs := harness.MemoryGroup(t, container)
	work := t.TempDir()
	addrs := harness.FreeAddrs(t, 4)
	m := &smallMesh{t: t, dir: filepath.Join(work, "mesh"), grpcA: addrs[0], status: addrs[1], webhooks: addrs[2], clusters: make(chan []string, 100)}
	if err := os.Mkdir(m.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	m.change()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "sh", "-c", `echo $$ > "$0" && exec "$@"`, procs, meshctl, "serve", "--config-dir", m.dir,
		"--state-dir", filepath.Join(work, "state"), "--grpc-addr", m.grpcA, "--secure-grpc-addr", "", "--http-addr", m.status,
		"--https-addr", m.webhooks, "--monitoring-addr", addrs[3], "--log-level", "warn")
	cmd.Env = slicesWithout(os.Environ(), "GOMEMLIMIT=")
	log := &harness.LogBuffer{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m.pid = cmd.Process.Pid
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("log of the control plane:\n%.4000s", log.String())
		}
	})
	eventually(t, "ready", m.ready)
	return m
}

func slicesWithout(env []string, prefix string) []string {
	var out []string
	for _, v := range env {
		if !strings.HasPrefix(v, prefix) {
			out = append(out, v)
		}
	}
	return out
}

// ready reports why the control plane is not ready.
func (m *smallMesh) ready() error {
	ctx, cancel := context.WithTimeout(m.t.Context(), deadline)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.status+"/ready?verbose", nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%d %s: %w", resp.StatusCode, text, err)
	}
	return nil
}

// change adds a Service to the mesh and returns its name.
func (m *smallMesh) change() string {
	m.t.Helper()
	m.changes++
	name := fmt.Sprintf("svc-%d", m.changes)
	m.write(name, fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q,"namespace":"others"},"spec":{"clusterIP":"10.96.0.%d","ports":[{"name":"http","port":80}]}}`, name, m.changes))
	return name
}

// write writes a file of the directory at once.
func (m *smallMesh) write(name, text string) {
	m.t.Helper()
	path := filepath.Join(m.dir, name)
	if err := os.WriteFile(path+".tmp", []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path+".yaml"); err != nil {
		m.t.Fatal(err)
	}
}

// connect connects a proxy of another namespace, whose responses go to m.clusters.
func (m *smallMesh) connect() {
	m.t.Helper()
	done := m.t.Context().Done()
	m.stream("sidecar~10.0.0.1~p.others~others.svc.cluster.local", func(all []string) {
		select {
		case m.clusters <- all:
		case <-done:
		}
	}, xdswire.ClusterType)
}

// stream connects a proxy that requests some types, without labels but istio=gw. got is called with
// the clusters of each response.
func (m *smallMesh) stream(node string, got func(clusters []string), types ...string) {
	m.t.Helper()
	conn, err := grpc.NewClient("passthrough:"+m.grpcA, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		m.t.Fatal(err)
	}
	labels, err := structpb.NewStruct(map[string]any{"LABELS": map[string]any{"istio": "gw"}})
	if err != nil {
		m.t.Fatal(err)
	}
	for _, typ := range types {
		if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: node, Metadata: labels}, TypeUrl: typ}); err != nil {
			m.t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			resp, err := stream.Recv()
			if err != nil {
				return
			}
			if resp.GetTypeUrl() == xdswire.ClusterType {
				var all []string
				for _, r := range resp.GetResources() {
					all = append(all, string(r.GetValue())) // which holds the name
				}
				got(all)
			}
			if stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: resp.GetTypeUrl(), VersionInfo: resp.GetVersionInfo(), ResponseNonce: resp.GetNonce()}) != nil {
				return
			}
		}
	}()
	m.t.Cleanup(func() {
		cancel()
		<-done
		_ = conn.Close()
	})
}

// reaches waits until a change reaches the proxy.
func (m *smallMesh) reaches(service string) {
	m.t.Helper()
	timeout, began := time.NewTimer(deadline), time.Now()
	defer timeout.Stop()
	for {
		select {
		case all := <-m.clusters:
			for _, cluster := range all {
				if strings.Contains(cluster, "|80||"+service+".others.svc.cluster.local") {
					m.t.Logf("%s reached the proxy after %v", service, time.Since(began))
					return
				}
			}
		case <-timeout.C:
			m.t.Fatalf("the change of another object did not reach the proxy: %s", service)
		}
	}
}

// withstood checks that the control plane has needed little memory, and is ready.
func (m *smallMesh) withstood() {
	m.t.Helper()
	if err := m.ready(); err != nil {
		m.t.Errorf("not ready: %v", err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.pid))
	if err != nil {
		m.t.Fatalf("the control plane has ended: %v", err)
	}
	_, after, _ := strings.Cut(string(text), "VmHWM:")
	var kib int
	if _, err := fmt.Sscan(after, &kib); err != nil {
		m.t.Fatalf("no VmHWM in %s: %v", text, err)
	}
	m.t.Logf("resident: at most %d MiB", kib>>10)
	if kib<<10 > mostUsed {
		m.t.Errorf("the control plane has used %d MiB, want at most %d", kib>>10, mostUsed>>20)
	}
}

// validate posts an object to the validating webhook, and returns the response.
func (m *smallMesh) validate(object string) (allowed bool, message string) {
	m.t.Helper()
	review := map[string]any{
		"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
		"request": map[string]any{
			"uid": "u", "kind": map[string]string{"group": "networking.istio.io", "version": "v1", "kind": "ServiceEntry"},
			"operation": "CREATE", "object": json.RawMessage(object),
		},
	}
	body, err := json.Marshal(review)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(m.t.Context(), deadline)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+m.webhooks+"/validate", bytes.NewReader(body))
	if err != nil {
		m.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}, // an attacker
	}}
	resp, err := client.Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	var answer struct {
		Response struct {
			Allowed bool
			Status  struct{ Message string }
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		m.t.Fatalf("%d %.500s: %v", resp.StatusCode, text, err)
	}
	return answer.Response.Allowed, answer.Response.Status.Message
}

// TestLargeObjectsInTheWebhook: whoever posts a large object to the webhook gets a refusal, and the
// control plane serves the others.
func TestLargeObjectsInTheWebhook(t *testing.T) {
	m := startSmallMesh(t)
	m.connect()
	m.reaches("svc-1")
	for name, object := range largeObjects() {
		allowed, message := m.validate(object)
		if allowed || !strings.Contains(message, "at most") {
			t.Errorf("%s: allowed %v: %q, want a refusal that names the limit", name, allowed, message)
		}
		t.Logf("%s: %.300s", name, message)
		m.reaches(m.change())
	}
	m.withstood()
}

// TestLargeObjectsInTheDirectory: a large object is not used, and the control plane serves the
// others, also if the object is there when it starts.
func TestLargeObjectsInTheDirectory(t *testing.T) {
	for name, object := range largeObjects() {
		t.Run(name, func(t *testing.T) {
			m := startSmallMesh(t)
			m.connect()
			m.reaches("svc-1")
			m.write("large", object)
			m.reaches(m.change())
			m.withstood()
		})
	}
}
