package server

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/workloadhealth"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/kube"
)

// machines is a service with a virtual machine behind it.
const machines = `apiVersion: v1
kind: Service
metadata: {name: machines, namespace: apps}
spec: {clusterIP: 10.96.0.9, selector: {app: machines}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm-1, namespace: apps, annotations: {proxy.istio.io/health-checks-enabled: "true"}}
spec: {address: 192.0.2.7, ports: {http: 9090}, labels: {app: machines}, serviceAccount: web}
`

// machine is the stream of the agent of a virtual machine.
type machine struct {
	t      *testing.T
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	conn   *grpc.ClientConn
}

// dialMachine connects as service account web with a WorkloadEntry, and waits until the stream
// is served.
func dialMachine(t *testing.T, s *Server, entry string) *machine {
	t.Helper()
	m, r := connectMachine(t, s, map[string]any{"WORKLOAD_ENTRY": entry})
	if !isCalledAt(t, r, 9090) {
		t.Errorf("the machine is not told where it is called: %.300s", r)
	}
	return m
}

// connectMachine connects as service account web with further metadata, and returns the first
// response.
func connectMachine(t *testing.T, s *Server, metadata map[string]any) (*machine, *discoveryv3.DiscoveryResponse) {
	t.Helper()
	conn, err := grpc.NewClient(s.secure.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(clientTLS(t, s))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	metadata["CLUSTER_ID"], metadata["NAMESPACE"] = "cluster1", "apps"
	md, err := structpb.NewStruct(metadata)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t, stream, conn}
	m.send(&discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~192.0.2.7~vm.apps~apps.svc.cluster.local", Metadata: md}, TypeUrl: xdswire.ListenerType,
	})
	r, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m, r
}

// isCalledAt reports whether listeners accept calls at the port.
func isCalledAt(t *testing.T, r *discoveryv3.DiscoveryResponse, port uint32) bool {
	t.Helper()
	for _, body := range r.GetResources() {
		var l listenerv3.Listener
		if err := body.UnmarshalTo(&l); err != nil {
			t.Fatal(err)
		}
		for _, chain := range l.GetFilterChains() {
			if chain.GetFilterChainMatch().GetDestinationPort().GetValue() == port {
				return true
			}
		}
	}
	return false
}

func (m *machine) send(r *discoveryv3.DiscoveryRequest) {
	m.t.Helper()
	if err := m.stream.Send(r); err != nil {
		m.t.Fatal(err)
	}
}

// says reports health as Istio's agent does. No problem is good health.
func (m *machine) says(problem string) {
	m.t.Helper()
	r := &discoveryv3.DiscoveryRequest{TypeUrl: xdswire.HealthType}
	if problem != "" {
		r.ErrorDetail = &statuspb.Status{Code: int32(codes.Internal), Message: problem}
	}
	m.send(r)
}

// healthOf returns the health of the machine's endpoint, as other proxies get it.
func healthOf(s *Server) (is snapshot.Health, known bool) {
	snap := s.registry.Current()
	if snap == nil || snap.Endpoints.Get("machines.apps.svc.cluster.local") == nil {
		return 0, false
	}
	list := snap.Endpoints.Get("machines.apps.svc.cluster.local").ByPort["http"]
	if len(list) != 1 || list[0].Port != 9090 {
		return 0, false
	}
	return list[0].Health, true
}

func waitForHealth(t *testing.T, s *Server, want snapshot.Health) {
	t.Helper()
	waitFor(t, fmt.Sprintf("health %d", want), func() bool {
		is, known := healthOf(s)
		return known && is == want
	})
}

// TestHealthOfMachine: a virtual machine is called at the address of its WorkloadEntry while
// its agent reports good health, and for a while after the agent is gone. Reports of other
// service accounts do not count.
func TestHealthOfMachine(t *testing.T) {
	t.Parallel()
	var later atomic.Int64 // how far the clock of the server is ahead
	s := start(t, func(c *Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
		write(t, c.ConfigDir, "vm.yaml", machines)
		write(t, c.ConfigDir, "other.yaml", strings.NewReplacer("name: machines", "name: others", "app: machines", "app: others",
			"10.96.0.9", "10.96.0.10", "vm-1", "vm-2", "serviceAccount: web", "serviceAccount: other").Replace(machines))
	})
	others := dialWire(t, s, true, xdswire.SotW, "sidecar", xdswire.EndpointType, "outbound|80||machines.apps.svc.cluster.local")
	next := func(want corev3.HealthStatus) {
		t.Helper()
		for told := corev3.HealthStatus(-1); told != want; {
			var a endpointv3.ClusterLoadAssignment
			if err := proto.Unmarshal(others.next("outbound|80||machines.apps.svc.cluster.local")[0], &a); err != nil {
				t.Fatal(err)
			}
			list := a.GetEndpoints()
			if len(list) != 1 || len(list[0].GetLbEndpoints()) != 1 || list[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress().GetAddress() != "192.0.2.7" {
				t.Fatalf("others are told %v", &a)
			}
			told = list[0].GetLbEndpoints()[0].GetHealthStatus()
		}
	}
	next(corev3.HealthStatus_UNHEALTHY) // nobody has said anything; Envoy calls unknown endpoints
	m := dialMachine(t, s, "vm-1")
	m.says("")
	next(corev3.HealthStatus_UNKNOWN)
	m.says("connection refused")
	next(corev3.HealthStatus_UNHEALTHY)
	m.says("")
	next(corev3.HealthStatus_UNKNOWN)
	wrong := dialMachine(t, s, "vm-2")
	wrong.says("")
	wrong.says("pretended")
	connected := len(s.hub.Proxies())
	if err := m.conn.Close(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "end of the machine's stream", func() bool { return len(s.hub.Proxies()) < connected })
	later.Store(int64(workloadhealth.Grace / 2))
	if is, _ := healthOf(s); is != snapshot.Healthy {
		t.Errorf("health %d within the grace period, want %d", is, snapshot.Healthy)
	}
	later.Store(int64(workloadhealth.Grace))
	next(corev3.HealthStatus_UNHEALTHY)
	snap := s.registry.Current()
	if list := snap.Endpoints.Get("others.apps.svc.cluster.local").ByPort["http"]; len(list) != 1 || list[0].Health != snapshot.Unhealthy {
		t.Errorf("another account is believed: %+v", list)
	}
}

// workloadEntries is the definition of the resource, with a status of its own.
const workloadEntries = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: workloadentries.networking.istio.io, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: networking.istio.io
  scope: Namespaced
  names: {kind: WorkloadEntry, listKind: WorkloadEntryList, plural: workloadentries, singular: workloadentry}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
---
apiVersion: v1
kind: Namespace
metadata: {name: apps}
---
`

// TestHealthInStatus: the status of the WorkloadEntry passes the health of a virtual machine
// to other control planes, also after a restart. When the machine moves to another control
// plane, the first one does not overwrite the report of the other.
func TestHealthInStatus(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Start(t)
	c.Apply(t, workloadEntries+machines)
	var logs text
	serve := func() *Server {
		return start(t, func(cfg *Config) {
			cfg.ConfigDir, cfg.KubeAccess = "", c.Config()
			cfg.Log = slog.New(slog.NewTextHandler(&logs, nil))
		})
	}
	a, b := serve(), serve()
	waitForHealth(t, a, snapshot.Unhealthy)
	condition := func() string {
		return c.Kubectl(t, "", "-n", "apps", "get", "workloadentry", "vm-1", "-o",
			`jsonpath={range .status.conditions[*]}{.type}={.status} {.message};{end}`)
	}
	c.Kubectl(t, "", "-n", "apps", "patch", "workloadentry", "vm-1", "--subresource=status", "--type=merge", "-p",
		`{"status":{"conditions":[{"type":"Other","status":"True"}]}}`)
	m := dialMachine(t, a, "vm-1")
	m.says("connection refused")
	waitFor(t, "condition", func() bool { return condition() == "Other=True ;Healthy=False connection refused;" })
	m.says("")
	waitForHealth(t, a, snapshot.Healthy)
	waitForHealth(t, b, snapshot.Healthy)
	if got := condition(); got != "Other=True ;Healthy=True ;" {
		t.Errorf("conditions: %s", got)
	}
	next := serve()
	waitForHealth(t, next, snapshot.Healthy)

	moved := dialMachine(t, b, "vm-1")
	moved.says("")
	const written = `meshctl_workload_health_writes_total{cluster="cluster1",result="updated"}`
	waitFor(t, "write of the second", func() bool { return metrics(t, b)[written] == 1 })
	if err := m.conn.Close(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "end of the first", func() bool { return strings.Contains(logs.String(), "the proxy of a workload is gone") })
	if got := condition(); got != "Other=True ;Healthy=True ;" {
		t.Errorf("the first took back what the second was told: %s", got)
	}
	if err := moved.conn.Close(); err != nil {
		t.Fatal(err)
	}
	waitForHealth(t, a, snapshot.Unhealthy)
	if got := condition(); got != "Other=True ;" {
		t.Errorf("conditions when all are gone: %s", got)
	}
}
