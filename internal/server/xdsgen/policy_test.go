package xdsgen

import (
	"net/netip"
	"strings"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestSidecarPolicyCountsWithoutEgress: a Sidecar with nothing but an
// outboundTrafficPolicy takes effect, even in a namespace without services.
func TestSidecarPolicyCountsWithoutEgress(t *testing.T) {
	svc := &snapshot.MeshService{
		Host: "web.ns0.svc.cluster.local", Name: "web", Namespace: "ns0",
		Ports: []snapshot.ServicePort{{Name: "http", Number: 80, Protocol: mesh.HTTP}},
	}
	sidecar := &snapshot.Sidecar{Kind: snapshot.KindSidecar, Spec: &networkingv1alpha3.Sidecar{
		OutboundTrafficPolicy: &networkingv1alpha3.OutboundTrafficPolicy{Mode: networkingv1alpha3.OutboundTrafficPolicy_REGISTRY_ONLY},
	}}
	s := &snapshot.Snapshot{Mesh: &snapshot.Mesh{RootNamespace: "istio-system", Domain: "cluster.local"}, Gateways: &snapshot.Gateways{}}
	s.Services = s.Services.With(map[string]*snapshot.MeshService{svc.Host: svc})
	s.Ports = s.Ports.With(map[uint32]*snapshot.PortServices{80: {Number: 80, Services: []*snapshot.MeshService{svc}}})
	s.Namespaces = s.Namespaces.With(map[string]*snapshot.NamespaceFacts{
		"istio-system": {Name: "istio-system", Policies: map[snapshot.Kind][]snapshot.Policy{snapshot.KindSidecar: {sidecar}}},
	})
	ip := netip.MustParseAddr("10.0.0.1")
	for _, ns := range []string{"istio-system", "empty"} {
		n := proxy.Node{ID: mesh.NodeID{Type: mesh.Sidecar, IP: ip, Name: "p", Namespace: ns}, Namespace: ns, IPs: []netip.Addr{ip}, Captured: true}
		views := Assign(s, n)
		for _, typ := range []string{xdswire.ListenerType, xdswire.RouteType} {
			for _, u := range units.Units(views[typ].Shared, s) {
				resources, err := u.Generate(&xdswire.Encoder{})
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range resources {
					if body := string(r.SotW()); strings.Contains(body, mesh.PassthroughCluster) {
						t.Errorf("%s of %s passes unknown destinations on: %s", xdswire.ShortType(typ), ns, r.Name)
					}
				}
			}
		}
	}
}
