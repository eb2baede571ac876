package xdsgen

import (
	"iter"
	"net/netip"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestAssignmentsOfPrivateServicesStayPrivate: a proxy that requests a service by name
// gets no endpoints if the service is not exported to it.
func TestAssignmentsOfPrivateServicesStayPrivate(t *testing.T) {
	const host = "secret.ns0.svc.cluster.local"
	s := &snapshot.Snapshot{Mesh: &snapshot.Mesh{RootNamespace: "istio-system"}, Gateways: &snapshot.Gateways{}, Private: true}
	s.Services = s.Services.With(map[string]*snapshot.MeshService{host: {
		Host: host, Name: "secret", Namespace: "ns0", ExportTo: []string{"."},
		Ports: []snapshot.ServicePort{{Name: "http", Number: 80, Protocol: mesh.HTTP}},
	}})
	for _, typ := range []mesh.NodeType{mesh.Sidecar, mesh.Router} {
		for ns, want := range map[string]bool{"ns0": true, "ns1": false} {
			ip := netip.MustParseAddr("10.0.0.1")
			n := proxy.Node{ID: mesh.NodeID{Type: typ, IP: ip, Name: "p", Namespace: ns}, Namespace: ns, IPs: []netip.Addr{ip}}
			views := Assign(s, n)[xdswire.EndpointType]
			if key := (units.Key{Kind: units.ServiceKey, Name: host}); views.Shared.Unit(s, key) != nil {
				t.Errorf("%s of %s: the private service is in the view that all namespaces share", typ, ns)
			}
			view := views.Private
			for how, keys := range map[string]iter.Seq[units.Key]{
				"all":     view.Keys().All(s),
				"touched": view.Keys().Touched(s, &snapshot.Changes{Endpoints: map[string]struct{}{host: {}}}),
			} {
				got := false
				for key := range keys {
					got = got || view.Unit(s, key) != nil
				}
				if got != want {
					t.Errorf("%s of %s, %s units: assignments of %s there: %v, want %v", typ, ns, how, host, got, want)
				}
			}
		}
	}
}
