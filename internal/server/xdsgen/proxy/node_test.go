package proxy

import (
	"fmt"
	"math"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

const nodeID = "sidecar~10.0.0.1~app.ns~ns.svc.cluster.local"

// testMetadata is the limit of metadata in these tests.
const testMetadata = 512 << 10

func metadata(t testing.TB, fields map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestParseNodeBounds(t *testing.T) {
	many := make(map[string]any)
	for i := range maxLabels + 1 {
		many[fmt.Sprint("label", i)] = "x"
	}
	for name, tt := range map[string]struct {
		fields map[string]any
		want   string
	}{
		"fits":           {map[string]any{"CLUSTER_ID": strings.Repeat("c", maxText), "OTHER": math.NaN()}, ""},
		"no text":        {map[string]any{"CLUSTER_ID": math.Inf(1), "LABELS": map[string]any{"a": math.NaN()}, "INSTANCE_IPS": []any{"x"}}, ""},
		"whole metadata": {map[string]any{"OTHER": strings.Repeat("x", testMetadata)}, "metadata has"},
		"kept text":      {map[string]any{"ISTIO_VERSION": strings.Repeat("x", maxText+1)}, "ISTIO_VERSION has"},
		"labels":         {map[string]any{"LABELS": many}, "LABELS"},
		"long labels":    {map[string]any{"LABELS": map[string]any{"a": strings.Repeat("x", maxLabelsSize)}}, "LABELS"},
		"HTTP proxy":     {map[string]any{"HTTP_PROXY_PORT": "70000"}, `HTTP_PROXY_PORT: "70000" is not a port`},
		"networks":       {map[string]any{"REQUESTED_NETWORK_VIEW": strings.Repeat("n,", maxList) + "n"}, "REQUESTED_NETWORK_VIEW"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseNode(&corev3.Node{Id: nodeID, Metadata: metadata(t, tt.fields)}, testMetadata)
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want an error with %q", err, tt.want)
			case err != nil && len(err.Error()) > 2*maxText:
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

// TestReportedPorts: the ports of a proxy that differ from the defaults count as its own.
func TestReportedPorts(t *testing.T) {
	node, err := ParseNode(&corev3.Node{Id: nodeID, Metadata: metadata(t, map[string]any{
		"PROXY_CONFIG": map[string]any{"proxyAdminPort": 16000, "statusPort": math.NaN()}, "ENVOY_STATUS_PORT": "16021", "ENVOY_PROMETHEUS_PORT": 70000,
	})}, testMetadata)
	if err != nil {
		t.Fatal(err)
	}
	for port, want := range map[uint32]bool{16000: false, 16021: false, 15000: false, 15020: false, 15053: false, 15463: false, 16020: true, 8080: true, 15443: true} {
		if got := Accepts(&snapshot.Mesh{}, node, port); got != want {
			t.Errorf("port %d is accepted: %t, want %t", port, got, want)
		}
	}
}

// TestRegisteredName: a proxy that names a WorkloadGroup has the WorkloadEntry that Istio makes
// for it, unless it names an entry itself.
func TestRegisteredName(t *testing.T) {
	long := strings.Repeat("a.", 125) + "b"
	for name, tt := range map[string]struct {
		address     string
		fields      map[string]any
		group, want string
	}{
		"IPv4":    {"192.0.2.7", map[string]any{"AUTO_REGISTER_GROUP": "vm"}, "vm", "vm-192.0.2.7"},
		"IPv6":    {"fd00::1", map[string]any{"AUTO_REGISTER_GROUP": "vm"}, "vm", "vm-fd00--1"},
		"network": {"192.0.2.7", map[string]any{"AUTO_REGISTER_GROUP": "vm", "NETWORK": "dc"}, "vm", "vm-192.0.2.7-dc"},
		"long":    {"192.0.2.7", map[string]any{"AUTO_REGISTER_GROUP": long}, long, (long + "-192.0.2.7")[8:]},
		"entry":   {"192.0.2.7", map[string]any{"AUTO_REGISTER_GROUP": "vm", "WORKLOAD_ENTRY": "own"}, "", "own"},
		"neither": {"192.0.2.7", nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := ParseNode(&corev3.Node{Id: "sidecar~" + tt.address + "~app.ns~ns.svc.cluster.local", Metadata: metadata(t, tt.fields)}, testMetadata)
			if err != nil || n.WorkloadEntry != tt.want || n.WorkloadGroup != tt.group {
				t.Errorf("entry %q, group %q, %v; want %q, %q", n.WorkloadEntry, n.WorkloadGroup, err, tt.want, tt.group)
			}
		})
	}
	_, err := ParseNode(&corev3.Node{Id: nodeID, Metadata: metadata(t, map[string]any{"AUTO_REGISTER_GROUP": "a/b"})}, testMetadata)
	if err == nil || !strings.Contains(err.Error(), `AUTO_REGISTER_GROUP: "a/b-10.0.0.1" is not a DNS name`) {
		t.Errorf("got %v", err)
	}
}

// FuzzParseNode: no node id and no encoded metadata causes a panic or a result beyond
// the bounds.
func FuzzParseNode(f *testing.F) {
	add := func(id string, fields map[string]any) {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(metadata(f, fields))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(id, b)
	}
	add(nodeID, map[string]any{
		"CLUSTER_ID": "c", "NAMESPACE": "ns", "LABELS": map[string]any{"app": "a", "n": 1.0},
		"INSTANCE_IPS": "10.0.0.1,fd00::1", "REQUESTED_NETWORK_VIEW": "b,a,a",
	})
	add("router~::1~gw.istio-system~istio-system.svc.cluster.local", map[string]any{"CLUSTER_ID": math.NaN()})
	add("sidecar~10.0.0.1~app.ns", map[string]any{"LABELS": []any{nil}, "INSTANCE_IPS": ",,"})
	add("~~~", map[string]any{"NAMESPACE": "other"})
	f.Fuzz(func(t *testing.T, id string, encoded []byte) {
		var md structpb.Struct
		if proto.Unmarshal(encoded, &md) != nil {
			return
		}
		n, err := ParseNode(&corev3.Node{Id: id, Metadata: &md}, testMetadata)
		if err != nil {
			if len(err.Error()) > 8<<10 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			return
		}
		kept := len(n.Cluster) + len(n.Namespace) + len(n.ServiceAccount) + len(n.Network) + len(n.MeshID) + len(n.Version)
		for k, v := range n.Labels {
			kept += len(k) + len(v)
		}
		for _, v := range n.View {
			kept += len(v)
		}
		if kept > maxLabelsSize+8*maxText || len(n.IPs) > maxList+1 || len(n.Labels) > maxLabels {
			t.Errorf("%d bytes, %d addresses and %d labels are kept", kept, len(n.IPs), len(n.Labels))
		}
		if n.Namespace != n.ID.Namespace {
			t.Errorf("namespace %q of node %q", n.Namespace, id)
		}
	})
}
