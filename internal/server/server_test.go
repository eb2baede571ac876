package server

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/xdswire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds the wait for an event.
const patience = 2 * time.Minute

// start runs a control plane on free ports until the test ends.
func start(t *testing.T, change func(*Config)) *Server {
	t.Helper()
	s, stop, done := launch(t, change)
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	waitFor(t, "readiness", func() bool { return s.ready.Load() })
	return s
}

// launch runs a control plane on free ports until stop is called. done receives the result
// of Run.
func launch(t *testing.T, change func(*Config)) (s *Server, stop func(), done <-chan error) {
	t.Helper()
	cfg := Config{
		ClusterID: "cluster1", ConfigDir: t.TempDir(), StateDir: filepath.Join(t.TempDir(), "state"),
		TokenAudiences: []string{"istio-ca"},
		GRPCAddr:       "127.0.0.1:0", SecureGRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", MonitoringAddr: "127.0.0.1:0",
		Version: map[string]string{"version": "test"}, TokenDirs: []string{t.TempDir()},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Now: time.Now, Rand: rand.Reader,
	}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return s, cancel, ended
}

// waitFor polls for an event without a channel.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within %v", what, patience)
		}
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name+".tmp~"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, name+".tmp~"), filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func serviceYAML(i int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: svc-%d, namespace: ns-%d}
spec:
  clusterIP: 10.96.%d.%d
  ports: [{name: http, port: 80, targetPort: 8080}]
`, i, i%10, i/250, i%250+1)
}

func sliceYAML(i int, addresses ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: svc-%d-abc
  namespace: ns-%d
  labels: {kubernetes.io/service-name: svc-%d}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
`, i, i%10, i)
	for _, a := range addresses {
		fmt.Fprintf(&b, "- addresses: [%q]\n", a)
	}
	return b.String()
}

// metrics returns the counters of a server.
func metrics(t *testing.T, s *Server) map[string]float64 {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Get("http://" + s.monitoring.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	out := make(map[string]float64)
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil && strings.HasPrefix(name, "meshctl_") {
			out[name] = v
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// testProxy is a client that acknowledges every response, over delta ADS.
type testProxy struct {
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	frames chan *discoveryv3.DeltaDiscoveryResponse
	// listeners are those that subscribeAll received.
	listeners []*discoveryv3.Resource
}

func connect(t *testing.T, s *Server, name string) *testProxy {
	t.Helper()
	return connectIn(t, s, name, "apps")
}

func connectIn(t *testing.T, s *Server, name, namespace string) *testProxy {
	t.Helper()
	return connectTyped(t, s, "sidecar", name, namespace)
}

// connectTyped connects a proxy of a type.
func connectTyped(t *testing.T, s *Server, typ, name, namespace string) *testProxy {
	t.Helper()
	return connectNode(t, s, typ, name, namespace, func(*corev3.Node) {})
}

// connectNode is connectTyped with a changed node.
func connectNode(t *testing.T, s *Server, typ, name, namespace string, change func(*corev3.Node)) *testProxy {
	t.Helper()
	conn, err := grpc.NewClient(s.plain.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p := &testProxy{stream: stream, frames: make(chan *discoveryv3.DeltaDiscoveryResponse, 1000)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce}); err != nil {
				return
			}
			p.frames <- r
		}
	}()
	t.Cleanup(func() {
		cancel()
		_ = conn.Close()
		<-done
	})
	md, err := structpb.NewStruct(map[string]any{"CLUSTER_ID": "cluster1", "NAMESPACE": namespace})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev3.Node{Id: typ + "~10.0.0.1~" + name + "." + namespace + "~" + namespace + ".svc.cluster.local", Metadata: md}
	change(node)
	p.send(t, &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: xdswire.ClusterType})
	return p
}

func (p *testProxy) send(t *testing.T, r *discoveryv3.DeltaDiscoveryRequest) {
	t.Helper()
	if err := p.stream.Send(r); err != nil {
		t.Fatal(err)
	}
}

func (p *testProxy) next(t *testing.T) *discoveryv3.DeltaDiscoveryResponse {
	t.Helper()
	select {
	case r := <-p.frames:
		return r
	case <-time.After(patience):
		t.Fatalf("no response within %v", patience)
		return nil
	}
}

// subscribeAll subscribes to all types as Envoy does, and waits for the responses.
func (p *testProxy) subscribeAll(t *testing.T) {
	t.Helper()
	var names []string
	for _, r := range p.next(t).Resources {
		if strings.HasPrefix(r.Name, "outbound|") {
			names = append(names, r.Name)
		}
	}
	p.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.EndpointType, ResourceNamesSubscribe: names})
	if got := len(p.next(t).Resources); got != len(names) {
		t.Fatalf("%d assignments for %d names", got, len(names))
	}
	p.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.ListenerType})
	p.listeners = p.next(t).GetResources()
	p.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.RouteType, ResourceNamesSubscribe: []string{"80"}})
	p.next(t)
}

// TestOneChangeCostsOneResource: generated and sent resources depend on the change, not on
// the number of proxies or services.
func TestOneChangeCostsOneResource(t *testing.T) {
	const services, proxies = 1000, 50
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
		for i := range services {
			write(t, dir, fmt.Sprintf("service-%d.yaml", i), serviceYAML(i))
			write(t, dir, fmt.Sprintf("slice-%d.yaml", i), sliceYAML(i, "10.1.0.1", "10.1.0.2"))
		}
	})
	var all []*testProxy
	for i := range proxies {
		p := connect(t, s, fmt.Sprintf("proxy-%d", i))
		p.subscribeAll(t)
		all = append(all, p)
	}
	settled := func() map[string]float64 {
		var m map[string]float64
		waitFor(t, "acknowledgement of everything", func() bool {
			for _, p := range s.hub.Proxies() {
				for _, typ := range p.Types {
					if typ.Sent != typ.Acked {
						return false
					}
				}
			}
			m = metrics(t, s)
			return true
		})
		return m
	}
	before := settled()

	write(t, dir, "slice-7.yaml", sliceYAML(7, "10.1.0.1", "10.1.0.3"))
	for _, p := range all {
		r := p.next(t)
		if r.TypeUrl != xdswire.EndpointType || len(r.Resources) != 1 || r.Resources[0].Name != "outbound|80||svc-7.ns-7.svc.cluster.local" {
			t.Fatalf("sent %s with %d resources, want the one assignment", r.TypeUrl, len(r.Resources))
		}
	}
	wantGrowth(t, "after one slice changed", before, settled(), map[string]float64{
		`meshctl_xds_generated_total{type="EDS"}`:      1,
		`meshctl_xds_encoded_total{type="EDS"}`:        1,
		`meshctl_xds_sent_total{type="EDS"}`:           proxies,
		`meshctl_xds_sent_resources_total{type="EDS"}`: proxies,
	})

	before = settled()
	connect(t, s, "late").subscribeAll(t)
	after := settled()
	for name, v := range after {
		if strings.HasPrefix(name, "meshctl_xds_generated_total") && v != before[name] {
			t.Errorf("a proxy that connected later had %v of %s generated", v-before[name], name)
		}
	}
}

// TestEmptiedListIsTold: in state of the world, an absent resource is removed, so an empty
// list must remove the last resource.
func TestEmptiedListIsTold(t *testing.T) {
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
		write(t, dir, "sidecar.yaml", `apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: client, namespace: apps}
spec:
  egress:
  - port: {number: 15080, protocol: HTTP_PROXY, name: proxy}
    bind: 127.0.0.1
    hosts: ["*/*"]
`)
	})
	conn, err := grpc.NewClient(s.plain.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	md, err := structpb.NewStruct(map[string]any{"CLUSTER_ID": "cluster1", "NAMESPACE": "apps", "INTERCEPTION_MODE": "NONE"})
	if err != nil {
		t.Fatal(err)
	}
	req := &discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~10.0.0.1~p.apps~apps.svc.cluster.local", Metadata: md}, TypeUrl: xdswire.ListenerType,
	}
	for _, want := range []int{1, 0, 1} {
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			t.Fatalf("waiting for %d listeners: %v", want, err)
		}
		if len(resp.Resources) != want {
			t.Fatalf("%d listeners, want %d", len(resp.Resources), want)
		}
		req = &discoveryv3.DiscoveryRequest{TypeUrl: resp.TypeUrl, ResponseNonce: resp.Nonce, VersionInfo: resp.VersionInfo}
		// The Sidecar leaves the directory and comes back.
		from, to := "sidecar.yaml", ".sidecar.yaml"
		if want == 0 {
			from, to = to, from
		}
		if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
}

// wantGrowth checks the growth of the counters. Counters that are not named must not grow.
func wantGrowth(t *testing.T, when string, before, after, want map[string]float64) {
	t.Helper()
	for name, v := range after {
		if !strings.HasPrefix(name, "meshctl_xds_generated_total") && !strings.HasPrefix(name, "meshctl_xds_encoded_total") &&
			!strings.HasPrefix(name, "meshctl_xds_sent_total") && !strings.HasPrefix(name, "meshctl_xds_sent_resources_total") {
			continue
		}
		if grew := v - before[name]; grew != want[name] {
			t.Errorf("%s %s grew by %v, want %v", when, name, grew, want[name])
		}
	}
}

// get reads a page of a server.
func get(t *testing.T, s *Server, path string) (code int, body string) {
	t.Helper()
	token, err := localtoken.Read(s.cfg.TokenDirs, s.http.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return getAs(t, s, path, token)
}

// getAs reads a page with a token, or without one if it is empty.
func getAs(t *testing.T, s *Server, path, token string) (code int, body string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.http.Addr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}
