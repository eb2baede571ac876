package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/test/harness"
)

// metricsMesh has a client and a server, both with a Sidecar that binds ports without redirection. The
// port 9001 of the server has no application. Telemetries set and remove labels of requests.
const metricsMesh = `
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    defaultProviders: {metrics: [prometheus]}
    accessLogFile: %[5]s
    accessLogFormat: "%%ACCESS_LOG_TYPE%%"
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: mesh, namespace: istio-system}
spec:
  metrics:
  - overrides:
    - match: {metric: REQUEST_SIZE, mode: CLIENT}
      disabled: true
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: client, namespace: shop}
spec:
  selector: {matchLabels: {app: client}}
  metrics:
  - overrides:
    - match: {metric: REQUEST_COUNT}
      tagOverrides:
        region: {value: '"100%% fixed"'}
        method: {value: request.method}
        nothing: {value: 'request.headers["x-nothing"]'}
        source_version: {operation: REMOVE}
        destination_canonical_revision: {operation: REMOVE}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.80
  selector: {app: web}
  ports:
  - {name: http, port: 15080, targetPort: 8088}
  - {name: grpc, port: 15081, targetPort: 8089}
  - {name: tcp, port: 15082, targetPort: 9000}
  - {name: tcp-dead, port: 15083, targetPort: 9001}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web, version: v1, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: web, containers: [{name: app}]}
status: {podIP: 127.3.0.9}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {app: client, version: v7, service.istio.io/workload-name: client-app}}
spec: {serviceAccountName: client, containers: [{name: app}]}
status: {podIP: 127.3.0.1}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8088}, {name: grpc, port: 8089}, {name: tcp, port: 9000}, {name: tcp-dead, port: 9001}]
endpoints: [{addresses: [127.3.0.9], targetRef: {kind: Pod, name: web-1, namespace: shop}}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: client, namespace: shop}
spec:
  workloadSelector: {labels: {app: client}}
  egress:
  - {bind: 127.3.0.1, port: {number: 15080, name: http, protocol: HTTP}, hosts: ["*/*"]}
  - {bind: 127.3.0.1, port: {number: 15081, name: grpc, protocol: GRPC}, hosts: ["*/*"]}
  - {bind: 127.3.0.1, port: {number: 15082, name: tcp, protocol: TCP}, hosts: ["*/*"]}
  - {bind: 127.3.0.1, port: {number: 15083, name: tcp-dead, protocol: TCP}, hosts: ["*/*"]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  ingress:
  - {bind: 127.3.0.9, port: {number: 8088, name: http, protocol: HTTP}, defaultEndpoint: '%[1]s'}
  - {bind: 127.3.0.9, port: {number: 8089, name: grpc, protocol: GRPC}, defaultEndpoint: '%[2]s'}
  - {bind: 127.3.0.9, port: {number: 9000, name: tcp, protocol: TCP}, defaultEndpoint: '%[3]s'}
  - {bind: 127.3.0.9, port: {number: 9001, name: tcp-dead, protocol: TCP}, defaultEndpoint: '%[4]s'}
`

// Labels of the calls that TestStandardMetrics makes, as both proxies have them.
const (
	metricsDestination = `destination_service="web.shop.svc.cluster.local" destination_service_name="web" destination_service_namespace="shop" ` +
		`destination_canonical_service="web" destination_workload_namespace="shop" destination_app="web" destination_cluster="cluster1" response_flags="-" ` +
		`source_principal="spiffe://cluster.local/ns/shop/sa/client" destination_principal="spiffe://cluster.local/ns/shop/sa/web" source_workload_namespace="shop" `
	metricsClient = `reporter="source" source_workload="client-app" source_canonical_service="client" source_app="client" source_cluster="cluster1" ` +
		`destination_workload="web-1" connection_security_policy="unknown" ` + metricsDestination
	metricsServer = `reporter="destination" source_workload="client-app" source_canonical_service="client" source_canonical_revision="v7" ` +
		`source_app="client" source_version="v7" source_cluster="cluster1" destination_workload="web-app" ` +
		`destination_canonical_revision="v1" destination_version="v1" connection_security_policy="mutual_tls" ` + metricsDestination
)

// TestStandardMetrics calls a workload from another one, both with real Envoys, by HTTP, gRPC and TCP.
// The agents serve Istio's metrics with the calls.
func TestStandardMetrics(t *testing.T) {
	dir := harness.ShortDir(t)
	log, mesh := filepath.Join(dir, "access.log"), filepath.Join(dir, "mesh")
	for _, cluster := range []string{"cluster1", "cluster2"} {
		if err := os.MkdirAll(filepath.Join(mesh, cluster), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	web := serverOf(t, func(l net.Listener) {
		servesOn(t, l, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/missing" {
				w.WriteHeader(http.StatusNotFound)
			}
			_, _ = io.WriteString(w, "ok")
		})
	})
	rpc := serverOf(t, func(l net.Listener) {
		s := grpc.NewServer()
		grpc_health_v1.RegisterHealthServer(s, health.NewServer())
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
	})
	echo := serverOf(t, func(l net.Listener) {
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(conn, conn); _ = conn.Close() }()
			}
		}()
	})
	dead := serverOf(t, func(l net.Listener) { _ = l.Close() })
	replace(t, filepath.Join(mesh, "cluster1", "mesh.yaml"), fmt.Sprintf(metricsMesh, web, rpc, echo, dead, log))
	_, secure := controlPlane(t, dir, mesh)
	server := proxy{"web-1", "sidecar", "shop", "web", "127.3.0.9", map[string]string{"app": "web", "version": "v1"}}
	defer server.startAt(t, "127.3.0.9", dir, secure, "ISTIO_META_INTERCEPTION_MODE=NONE", "ISTIO_META_WORKLOAD_NAME=web-app")()
	client := proxy{"client", "sidecar", "shop", "client", "127.3.0.1", map[string]string{"app": "client"}}
	defer client.start(t, dir, secure, "ISTIO_META_INTERCEPTION_MODE=NONE", "ISTIO_META_WORKLOAD_NAME=client-app")()

	for range 3 {
		called(t, "http://127.3.0.1:15080/", "web.shop")
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.3.0.1:15080/missing", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "web.shop"
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	checkHealth(t, "127.3.0.1:15081")

	conn := opened(t, "127.3.0.1:15082")
	const first, second = "127.3.0.1", "127.3.0.9"
	for _, at := range []string{first, second} {
		waitForMetric(t, at+":15020", "istio_tcp_connections_opened_total", `destination_service_name="web" response_flags="-" request_protocol="tcp"`, 1)
	}
	_ = conn.Close()
	failing, err := net.Dial("tcp", "127.3.0.1:15083")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, failing) // until the server's proxy closes it
	_ = failing.Close()

	for _, tc := range []struct {
		at, metric, labels string
		want               float64
	}{
		{first, "istio_requests_total", metricsClient + `response_code="200" request_protocol="http" region="100% fixed" method="GET" nothing="unknown"`, 3},
		{first, "istio_requests_total", metricsClient + `response_code="404" request_protocol="http"`, 1},
		{first, "istio_requests_total", metricsClient + `response_code="200" request_protocol="grpc" grpc_response_status="0" method="POST"`, 1},
		{first, "istio_requests_total", metricsClient + `response_code="200" request_protocol="grpc" grpc_response_status="5"`, 1},
		{first, "istio_request_duration_milliseconds_count", metricsClient + `response_code="404" source_version="unknown" destination_canonical_revision="v1"`, 1},
		{first, "istio_request_duration_milliseconds_bucket", metricsClient + `response_code="404" le="+Inf"`, 1},
		{first, "istio_response_bytes_count", metricsClient + `response_code="404"`, 1},
		{first, "istio_tcp_connections_opened_total", metricsClient + `request_protocol="tcp"`, 2},
		{first, "istio_tcp_connections_closed_total", metricsClient + `request_protocol="tcp"`, 2},
		{first, "istio_tcp_sent_bytes_total", metricsClient + `request_protocol="tcp"`, 5},
		{first, "istio_tcp_received_bytes_total", metricsClient + `request_protocol="tcp"`, 5},
		{second, "istio_requests_total", metricsServer + `response_code="200" request_protocol="http"`, 3},
		{second, "istio_requests_total", metricsServer + `response_code="404" request_protocol="http"`, 1},
		{second, "istio_requests_total", metricsServer + `response_code="200" request_protocol="grpc" grpc_response_status="5"`, 1},
		{second, "istio_request_bytes_count", metricsServer + `response_code="404"`, 1},
		{second, "istio_tcp_connections_opened_total", metricsServer + `request_protocol="tcp"`, 1},
		{second, "istio_tcp_connections_closed_total", metricsServer + `request_protocol="tcp"`, 1},
		{second, "istio_tcp_sent_bytes_total", metricsServer + `request_protocol="tcp"`, 5},
		{second, "istio_tcp_connections_opened_total", strings.Replace(metricsServer, `response_flags="-"`, `response_flags="UF,URX"`, 1) + `request_protocol="tcp"`, 1},
		{second, "istio_tcp_connections_closed_total", strings.Replace(metricsServer, `response_flags="-"`, `response_flags="UF,URX"`, 1) + `request_protocol="tcp"`, 1},
	} {
		waitForMetric(t, tc.at+":15020", tc.metric, tc.labels, tc.want)
		waitForMetric(t, tc.at+":15090", tc.metric, tc.labels, tc.want)
	}
	text, _, err := get("http://" + first + ":15020/stats/prometheus")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, "envoy_istio_") || strings.HasPrefix(line, "istio_request_bytes") ||
			strings.HasPrefix(line, "istio_requests_total") && (strings.Contains(line, "source_version=") || strings.Contains(line, "destination_canonical_revision=")) {
			t.Errorf("the metrics of the client have %s", line)
		}
	}
	eventually(t, "the end of the connection is logged", func() error {
		logged, err := os.ReadFile(log)
		if err == nil && !strings.Contains(string(logged), "TcpConnectionEnd") {
			err = fmt.Errorf("the log is: %s", logged)
		}
		if strings.Contains(string(logged), "TcpUpstreamConnected") {
			t.Fatalf("the start of a connection is logged: %s", logged)
		}
		return err
	})
}

// serverOf starts a server on a port of its own and returns its address.
func serverOf(t *testing.T, start func(net.Listener)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	start(l)
	return l.Addr().String()
}

// checkHealth calls a gRPC server until it responds, and then once with a response of NOT_FOUND.
func checkHealth(t *testing.T, at string) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+at, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("web.shop:15081"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := grpc_health_v1.NewHealthClient(conn)
	eventually(t, "gRPC responds", func() error {
		_, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if _, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Fatalf("got %v, want NotFound", err)
	}
}

// opened opens a connection through which it sends and receives a few bytes.
func opened(t *testing.T, at string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// waitForMetric waits until a proxy serves exactly one series of a metric with labels, and its value is want.
func waitForMetric(t *testing.T, at, metric, labels string, want float64) {
	t.Helper()
	eventually(t, at+" serves "+metric, func() error {
		text, _, err := get("http://" + at + "/stats/prometheus")
		if err != nil {
			return err
		}
		var lines []string
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, metric+"{") {
				lines = append(lines, line)
			}
		}
		found := slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
			return slices.ContainsFunc(splitLabels(labels), func(label string) bool { return !strings.Contains(line, label) })
		})
		if len(found) != 1 {
			return fmt.Errorf("%d series have %s:\n%s", len(found), labels, strings.Join(lines, ""))
		}
		_, value, _ := strings.Cut(found[0], "} ")
		if got, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err != nil || got != want {
			return errors.Join(err, fmt.Errorf("got %swant %g", found[0], want))
		}
		return nil
	})
}

// splitLabels splits labels that are separated by spaces.
func splitLabels(labels string) []string {
	out := strings.SplitAfter(strings.TrimSpace(labels), `" `)
	for i, label := range out {
		out[i] = strings.TrimSpace(label)
	}
	return out
}
