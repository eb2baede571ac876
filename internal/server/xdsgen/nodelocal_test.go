package xdsgen_test

import (
	"net/netip"
	"slices"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/endpoints"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

const nodeLocalObjects = `
apiVersion: v1
kind: Service
metadata: {name: agent, namespace: shop}
spec:
  clusterIPs: [10.96.0.80]
  selector: {app: agent}
  internalTrafficPolicy: Local
  ports:
  - {name: http, port: 80}
---
apiVersion: v1
kind: Pod
metadata: {name: agent-a, namespace: shop, labels: {app: agent}}
spec: {nodeName: a}
status: {podIPs: [{ip: 10.11.0.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: agent-b, namespace: shop, labels: {app: agent}}
spec: {nodeName: b}
status: {podIPs: [{ip: 10.11.0.2}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: agent-1, namespace: shop, labels: {kubernetes.io/service-name: agent}}
addressType: IPv4
ports:
- {name: http, port: 80}
endpoints:
- {addresses: [10.11.0.1], nodeName: a, targetRef: {kind: Pod, name: agent-a}}
- {addresses: [10.11.0.2], nodeName: b, targetRef: {kind: Pod, name: agent-b}}
- {addresses: [10.11.0.3]}
`

// TestInternalTrafficPolicyLocal: a proxy gets only the endpoints on its own node, and
// none if its node is not known.
func TestInternalTrafficPolicyLocal(t *testing.T) {
	s := build(t, []mesh.ClusterID{"cluster1", "cluster2"}, append(
		decodeObjects(t, "cluster1", "inline", []byte(nodeLocalObjects)),
		decodeObjects(t, "cluster2", "inline", []byte(nodeLocalObjects))...)) // with nodes of the same names
	const name = "outbound|80||agent.shop.svc.cluster.local"
	for pod, want := range map[string][]string{"agent-a": {"10.11.0.1"}, "agent-b": {"10.11.0.2"}, "unknown": nil} {
		n := proxy.Node{
			ID:      mesh.NodeID{Type: mesh.Sidecar, IP: netip.MustParseAddr("10.11.0.9"), Name: pod, Namespace: "shop"},
			Cluster: "cluster1", Namespace: "shop", Captured: true, IPs: []netip.Addr{netip.MustParseAddr("10.11.0.9")},
		}
		var got []string
		for _, r := range generate(t, s, n)[xdswire.EndpointType] {
			if r.Name != name {
				continue
			}
			a := new(endpointv3.ClusterLoadAssignment)
			decode(t, r, a)
			for _, l := range a.GetEndpoints() {
				for _, e := range l.GetLbEndpoints() {
					got = append(got, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress())
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has the endpoints %v, want %v", pod, got, want)
		}
		ports, missing := endpoints.ReachOf(s, n, s.Services.Get("agent.shop.svc.cluster.local"))
		if missing != "" || len(ports) != 1 {
			t.Fatalf("%s: ports %v, missing %q", pod, ports, missing)
		}
		for _, r := range ports[0].Endpoints {
			given := r.Endpoint.Cluster == "cluster1" && slices.Contains(want, r.Endpoint.Address.String())
			if (r.Obstacle == "") != given {
				t.Errorf("%s: endpoint %s of %s: obstacle %q", pod, r.Endpoint.Address, r.Endpoint.Cluster, r.Obstacle)
			}
		}
	}
}
