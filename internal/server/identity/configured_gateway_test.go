package identity

import (
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// TestConfiguredGateway: only a pod that a Gateway selects gets keys.
func TestConfiguredGateway(t *testing.T) {
	pod := &snapshot.Pod{ServiceAccount: "gw", Meta: snapshot.Meta{Labels: map[string]string{"istio": "gw"}}}
	gateway := func(selector map[string]string) *snapshot.Gateway {
		return &snapshot.Gateway{Spec: &networkingv1alpha3.Gateway{Selector: selector}}
	}
	caller := mesh.Caller{Identity: mesh.Identity{TrustDomain: "td", Namespace: "ns", ServiceAccount: "gw"}, Cluster: "c1"}
	node := proxy.Node{ID: mesh.NodeID{Type: mesh.Router, Name: "gw-1", Namespace: "ns"}, Cluster: "c1", Namespace: "ns", Labels: map[string]string{"istio": "gw"}}
	for _, tc := range []struct {
		name   string
		change func(s *snapshot.Snapshot, c *mesh.Caller, n *proxy.Node)
		want   string
	}{
		{"gateway", func(*snapshot.Snapshot, *mesh.Caller, *proxy.Node) {}, ""},
		{"sidecar", func(_ *snapshot.Snapshot, _ *mesh.Caller, n *proxy.Node) { n.ID.Type = mesh.Sidecar }, "it is not a gateway"},
		{"pod of another account", func(_ *snapshot.Snapshot, c *mesh.Caller, _ *proxy.Node) { c.Identity.ServiceAccount = "web" }, "pod ns/gw-1 runs as another service account than web"},
		{"says the namespace of a gateway", func(_ *snapshot.Snapshot, c *mesh.Caller, _ *proxy.Node) { c.Identity.Namespace = "mine" }, "pod mine/gw-1 of cluster c1 is not known"},
		{"of another cluster", func(_ *snapshot.Snapshot, c *mesh.Caller, _ *proxy.Node) { c.Cluster = "c2" }, "pod ns/gw-1 of cluster c2 is not known"},
		{"another pod", func(_ *snapshot.Snapshot, _ *mesh.Caller, n *proxy.Node) { n.ID.Name = "x" }, "pod ns/x of cluster c1 is not known"},
		{"only says the labels", func(s *snapshot.Snapshot, _ *mesh.Caller, _ *proxy.Node) {
			s.GatewayConfigs = []*snapshot.Gateway{gateway(map[string]string{"istio": "other"})}
		}, "no Gateway selects pod ns/gw-1"},
		{"Gateway of everything", func(s *snapshot.Snapshot, _ *mesh.Caller, _ *proxy.Node) {
			s.GatewayConfigs = []*snapshot.Gateway{gateway(nil)}
		}, "no Gateway selects pod ns/gw-1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &snapshot.Snapshot{GatewayConfigs: []*snapshot.Gateway{gateway(nil), gateway(map[string]string{"istio": "gw"})}}
			s.Pods = s.Pods.With(map[string]*snapshot.Pod{"c1/ns/gw-1": pod})
			c, n := caller, node
			tc.change(s, &c, &n)
			got := ""
			if err := ConfiguredGateway(s, c, n); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
