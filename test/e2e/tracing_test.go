package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/otlp/logs/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/meshctl/meshctl/test/harness"
)

// collectorMesh has a collector of spans and logs, and workloads that send to it by different
// providers. The collector of the last provider does not exist.
const collectorMesh = `
---
apiVersion: v1
kind: Service
metadata: {name: otel, namespace: observability}
spec:
  clusterIP: 10.96.0.81
  ports:
  - {name: grpc-otlp, port: 4317}
  - {name: http-otlp, port: 4318}
  - {name: http-zipkin, port: 9411}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: otel-1, namespace: observability, labels: {kubernetes.io/service-name: otel}}
addressType: IPv4
ports:
- {name: grpc-otlp, port: 4317}
- {name: http-otlp, port: 4318}
- {name: http-zipkin, port: 9411}
endpoints:
- addresses: [127.3.0.9]
`

const collectorSettings = `{extensionProviders: [
      {name: grpc, opentelemetry: {service: otel.observability.svc.cluster.local, port: 4317}},
      {name: http, opentelemetry: {service: otel.observability.svc.cluster.local, port: 4318, http: {path: /v1/traces, headers: [{name: x-tenant, value: shop}]}}},
      {name: zipkin, zipkin: {service: observability/otel.observability.svc.cluster.local, port: 9411}},
      {name: absent, opentelemetry: {service: absent.observability.svc.cluster.local, port: 4317}},
      {name: logs, envoyOtelAls: {service: otel.observability.svc.cluster.local, port: 4317, logName: shop, logFormat: {text: "path %REQ(:PATH)%", labels: {status: "%RESPONSE_CODE%"}}}}]}`

// tracedWorkload is a Telemetry for workloads with the label app: the name of a provider.
const tracedWorkload = `
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: %[1]s, namespace: shop}
spec:
  selector: {matchLabels: {app: %[1]s}}
  accessLogging: [{providers: [{name: logs}]}]
  tracing:
  - providers: [{name: %[1]s}]
    match: {mode: CLIENT}
    randomSamplingPercentage: 100
    customTags:
      a-literal: {literal: {value: fixed}}
      b-header: {header: {name: x-color, defaultValue: none}}
      c-variable: {environment: {name: NO_SUCH_VARIABLE, defaultValue: unset}}
      d-format: {formatter: {value: "%%REQ(:METHOD)%%"}}
`

// collector receives spans and logs, as texts.
type collector struct{ spans, logs chan string }

// collect starts a collector with OTLP over gRPC and HTTP, and Zipkin's API.
func collect(t *testing.T) collector {
	t.Helper()
	c := collector{make(chan string, 1000), make(chan string, 1000)}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		if strings.Contains(method, "LogsService") {
			var logs logsv1.LogsData
			if err := stream.RecvMsg(&logs); err != nil {
				return err
			}
			c.takeLogs(&logs)
		} else {
			var spans tracev1.TracesData
			if err := stream.RecvMsg(&spans); err != nil {
				return err
			}
			c.takeSpans(&spans)
		}
		return stream.SendMsg(&emptypb.Empty{})
	}))
	listen := func(at string) net.Listener {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	go func() { _ = server.Serve(listen("127.3.0.9:4317")) }()
	t.Cleanup(server.Stop)
	for at, take := range map[string]func(*http.Request, []byte) error{
		"127.3.0.9:4318": func(r *http.Request, body []byte) error {
			var spans tracev1.TracesData
			if r.URL.Path != "/v1/traces" || r.Header.Get("x-tenant") != "shop" {
				return fmt.Errorf("unexpected call of %s with %v", r.URL, r.Header)
			}
			if err := proto.Unmarshal(body, &spans); err != nil {
				return err
			}
			c.takeSpans(&spans)
			return nil
		},
		"127.3.0.9:9411": func(r *http.Request, body []byte) error {
			var spans []struct {
				LocalEndpoint struct{ ServiceName string }
				Tags          map[string]string
			}
			if r.URL.Path != "/api/v2/spans" {
				return fmt.Errorf("unexpected call of %s", r.URL)
			}
			if err := json.Unmarshal(body, &spans); err != nil {
				return err
			}
			for _, s := range spans {
				c.span(s.LocalEndpoint.ServiceName, s.Tags)
			}
			return nil
		},
	} {
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err == nil {
				err = take(r, body)
			}
			if err != nil {
				t.Error(err)
				w.WriteHeader(http.StatusBadRequest)
			}
		})}
		go func() { _ = s.Serve(listen(at)) }()
		t.Cleanup(func() { _ = s.Close() })
	}
	return c
}

func (c collector) takeSpans(spans *tracev1.TracesData) {
	for _, r := range spans.GetResourceSpans() {
		name := attributes(r.GetResource().GetAttributes())["service.name"]
		for _, scope := range r.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.span(name, attributes(s.GetAttributes()))
			}
		}
	}
}

func (c collector) takeLogs(logs *logsv1.LogsData) {
	for _, r := range logs.GetResourceLogs() {
		for _, scope := range r.GetScopeLogs() {
			for _, l := range scope.GetLogRecords() {
				c.logs <- l.GetBody().GetStringValue() + " status " + attributes(l.GetAttributes())["status"]
			}
		}
	}
}

func attributes(list []*commonv1.KeyValue) map[string]string {
	out := make(map[string]string)
	for _, a := range list {
		out[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return out
}

// span records a span by its service and the tags that the test sets.
func (c collector) span(service string, tags map[string]string) {
	text := []string{service}
	for _, tag := range []string{"a-literal", "b-header", "c-variable", "d-format", "istio.canonical_service", "istio.namespace"} {
		text = append(text, tags[tag])
	}
	c.spans <- strings.Join(text, " ")
}

// TestTracing: real Envoys send spans by OpenTelemetry over gRPC and HTTP and by Zipkin, with
// custom tags, and access logs by OTLP. A workload whose collector does not exist sends no
// spans, and its requests succeed.
func TestTracing(t *testing.T) {
	dir := harness.ShortDir(t)
	mesh := filepath.Join(dir, "mesh")
	for _, cluster := range []string{"cluster1", "cluster2"} {
		if err := os.MkdirAll(filepath.Join(mesh, cluster), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	providers := []string{"grpc", "http", "zipkin", "absent"}
	objects := fmt.Sprintf(accessLogMesh, collectorSettings) + collectorMesh
	for _, p := range providers {
		objects += fmt.Sprintf(tracedWorkload, p)
	}
	if err := os.WriteFile(filepath.Join(mesh, "cluster1", "mesh.yaml"), []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	answers(t, "127.3.0.9:8088", "ok")
	c := collect(t)
	_, secure := controlPlane(t, dir, mesh)
	for _, app := range providers {
		p := proxy{app, "sidecar", "shop", app, "127.3.0.1", map[string]string{"app": app}}
		stop := p.start(t, dir, secure, "ISTIO_META_INTERCEPTION_MODE=NONE")
		called(t, "http://127.3.0.1:15080/traced", "web.shop")
		await(t, c.logs, "path /traced status 200")
		if app != "absent" {
			await(t, c.spans, fmt.Sprintf("%[1]s.shop fixed none unset GET %[1]s shop", app))
		}
		stop()
		rest := drain(c.spans)
		if slices.ContainsFunc(rest, func(s string) bool { return strings.HasPrefix(s, "absent") }) {
			t.Errorf("workload %s sent the spans %q", app, rest)
		}
		drain(c.logs)
	}
}

// await reads texts until the wanted one arrives.
func await(t *testing.T, from <-chan string, want string) {
	t.Helper()
	var got []string
	eventually(t, want, func() error {
		got = append(got, drain(from)...)
		if !slices.Contains(got, want) {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
}

func drain(from <-chan string) (out []string) {
	for {
		select {
		case s := <-from:
			out = append(out, s)
		default:
			return out
		}
	}
}
