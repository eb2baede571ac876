package server

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/kube"
)

// TestRejectsUnderIstiosNames: refusals are counted under Istio's names, and the number of
// series does not grow with invented codes.
func TestRejectsUnderIstiosNames(t *testing.T) {
	s := start(t, func(c *Config) { write(t, c.ConfigDir, "a.yaml", serviceYAML(1)) })
	conn, err := grpc.NewClient(s.plain.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(r *discoveryv3.DiscoveryRequest) {
		t.Helper()
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "sidecar~10.0.0.1~web.apps~apps.svc.cluster.local"}, TypeUrl: xdswire.ClusterType})
	r, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	refuse := func(typeURL string, code int32) {
		t.Helper()
		send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: r.GetNonce(), ErrorDetail: &status.Status{Code: code, Message: "no"}})
	}
	refuse(xdswire.ClusterType, int32(codes.Internal))
	refuse(xdswire.ClusterType, int32(codes.Internal))
	for code := range int32(50) {
		refuse(xdswire.ClusterType, 1000+code)
		refuse(xdswire.ClusterType, -1-code)
	}
	refuse(xdswire.ListenerType, int32(codes.InvalidArgument))
	refuse(xdswire.SecretType, int32(codes.Internal))
	want := map[string]float64{
		`pilot_xds_cds_reject{err="Internal"}`: 2, `pilot_xds_cds_reject{err="Unknown"}`: 100, `pilot_xds_lds_reject{err="InvalidArgument"}`: 1,
		`pilot_total_xds_rejects{type="cds"}`: 102, `pilot_total_xds_rejects{type="lds"}`: 1, `pilot_total_xds_rejects{type="sds"}`: 1,
	}
	waitFor(t, fmt.Sprintf("refusals %v", want), func() bool {
		got := pilot(t, s)
		maps.DeleteFunc(got, func(name string, n float64) bool { return n == 0 || !strings.Contains(name, "_reject") })
		return maps.Equal(got, want)
	})
}

// TestInboundUpdates: events of a directory are counted under Istio's names.
func TestInboundUpdates(t *testing.T) {
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
		write(t, dir, "a.yaml", serviceYAML(1)+"---\n"+serviceYAML(2)+"---\n"+sliceYAML(1, "10.1.0.1"))
	})
	until := func(want ...float64) {
		t.Helper()
		waitFor(t, fmt.Sprintf("updates %v", want), func() bool {
			m, got := pilot(t, s), []float64(nil)
			for _, name := range []string{"svc", "svcdelete", "eds", "config"} {
				got = append(got, m[fmt.Sprintf(`pilot_inbound_updates{type=%q}`, name)])
			}
			return slices.Equal(got, want)
		})
	}
	until(2, 0, 1, 0)
	write(t, dir, "b.yaml", serviceYAML(3))
	until(3, 0, 1, 0)
	write(t, dir, "c.yaml", "{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: a, namespace: ns-1}, spec: {mtls: {mode: STRICT}}}")
	until(3, 0, 1, 1)
	if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	until(3, 1, 1, 1)
}

// TestKubernetesEvents: events of a Kubernetes API are counted under Istio's names.
func TestKubernetesEvents(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Start(t)
	s := start(t, func(cfg *Config) { cfg.ConfigDir, cfg.KubeAccess = "", c.Config() })
	before := pilot(t, s)
	grew := func(what, name string, want float64) {
		t.Helper()
		waitFor(t, what, func() bool { return pilot(t, s)[name]-before[name] == want })
	}
	if before[`pilot_k8s_reg_events{event="add",type="Services"}`] < 1 { // the Service of the API server
		t.Errorf("what was there at the start is not counted: %v", before)
	}
	if _, there := before[`pilot_k8s_reg_events{event="update",type="Pods"}`]; !there {
		t.Error("what has not happened is not told as 0")
	}
	service := func(port int) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default}, spec: {clusterIP: None, ports: [{name: http, port: %d}]}}", port)
	}
	c.Apply(t, service(80))
	grew("a service", `pilot_k8s_reg_events{event="add",type="Services"}`, 1)
	c.Apply(t, service(81))
	grew("another port", `pilot_k8s_reg_events{event="update",type="Services"}`, 1)
	c.Kubectl(t, "", "delete", "service", "web")
	grew("no service", `pilot_k8s_reg_events{event="delete",type="Services"}`, 1)
	c.Apply(t, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: sidecars.networking.istio.io, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: networking.istio.io
  scope: Namespaced
  names: {kind: Sidecar, listKind: SidecarList, plural: sidecars, singular: sidecar}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: default}
spec: {egress: [{hosts: ["./*"]}]}
`)
	grew("a Sidecar", `pilot_k8s_cfg_events{event="add",type="Sidecar"}`, 1)
	for name := range pilot(t, s) {
		if strings.HasPrefix(name, "pilot_k8s_") && (strings.Contains(name, "ConfigMap") || strings.Contains(name, "Secret") || strings.Contains(name, "CustomResource")) {
			t.Errorf("%s is not Istio's", name)
		}
	}
}
