package outbound

import (
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestUnknownHostsDoNotLoop: a listener that clients connect to directly refuses
// unknown hosts, because the original destination is the listener itself.
func TestUnknownHostsDoNotLoop(t *testing.T) {
	for _, tc := range []struct {
		name     string
		captured bool
		protocol string
		mode     networkingv1alpha3.CaptureMode
		blocked  bool
	}{
		{"redirected HTTP passes through", true, "HTTP", networkingv1alpha3.CaptureMode_DEFAULT, false},
		{"HTTP proxy", true, "HTTP_PROXY", networkingv1alpha3.CaptureMode_DEFAULT, true},
		{"listener that is not captured", true, "HTTP", networkingv1alpha3.CaptureMode_NONE, true},
		{"proxy without redirection", false, "HTTP", networkingv1alpha3.CaptureMode_DEFAULT, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sidecar := &snapshot.Sidecar{Spec: &networkingv1alpha3.Sidecar{Egress: []*networkingv1alpha3.IstioEgressListener{{
				Port: &networkingv1alpha3.SidecarPort{Number: 15080, Protocol: tc.protocol}, CaptureMode: tc.mode, Hosts: []string{"*/*"},
			}}}}
			v := routes.View{Scope: proxy.Scope{Sidecar: sidecar}, Captured: tc.captured}
			u, _ := v.Egress(&snapshot.Snapshot{Mesh: &snapshot.Mesh{}}, 0).(routes.EgressRoutes)
			if got := u.Unknown == mesh.BlackHoleCluster; got != tc.blocked {
				t.Errorf("unknown hosts blocked: %v, want %v", got, tc.blocked)
			}
		})
	}
}

// TestReservedPorts: a service at a port of the proxy does not replace the listener
// there.
func TestReservedPorts(t *testing.T) {
	for _, number := range []uint32{mesh.PortOutbound, mesh.PortInbound, mesh.PortEnvoyReadiness, mesh.PortEnvoyPrometheus} {
		svc := &snapshot.MeshService{Host: "a.b.svc.cluster.local", Ports: []snapshot.ServicePort{{Number: number, Protocol: mesh.HTTP}}}
		s := &snapshot.Snapshot{Mesh: &snapshot.Mesh{OutboundPort: mesh.PortOutbound, InboundPort: mesh.PortInbound}}
		s.Ports = s.Ports.With(map[uint32]*snapshot.PortServices{number: {Number: number, Services: []*snapshot.MeshService{svc}}})
		out, err := View{Captured: true}.Port(s, number).Generate(&xdswire.Encoder{})
		if err != nil || len(out) != 0 {
			t.Errorf("port %d: listeners %v, error %v", number, out, err)
		}
		if u := (routes.View{Captured: true}).Port(s, number); u != nil {
			t.Errorf("port %d: a route configuration for a listener that does not exist", number)
		}
	}
}

// TestSidecarOwnsItsPort: services get no listener at the port of an egress listener.
func TestSidecarOwnsItsPort(t *testing.T) {
	svc := &snapshot.MeshService{Host: "a.b.svc.cluster.local", Ports: []snapshot.ServicePort{{Number: 9080, Protocol: mesh.HTTP}}}
	s := &snapshot.Snapshot{Mesh: &snapshot.Mesh{}}
	s.Ports = s.Ports.With(map[uint32]*snapshot.PortServices{9080: {Number: 9080, Services: []*snapshot.MeshService{svc}}})
	sidecar := &snapshot.Sidecar{Spec: &networkingv1alpha3.Sidecar{Egress: []*networkingv1alpha3.IstioEgressListener{
		{Port: &networkingv1alpha3.SidecarPort{Number: 9080, Protocol: "HTTP"}, Hosts: []string{"*/*"}},
		{Hosts: []string{"*/*"}},
	}}}
	names := make(map[string]units.Key)
	for key, u := range units.Units(View{Scope: proxy.Scope{Sidecar: sidecar}, Captured: true}, s) {
		out, err := u.Generate(&xdswire.Encoder{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range out {
			if other, dup := names[r.Name]; dup {
				t.Errorf("listener %s comes from %v and %v", r.Name, key, other)
			}
			names[r.Name] = key
		}
	}
	if names["0.0.0.0_9080"] != (units.Key{Number: 1}) {
		t.Errorf("listeners %v, want 0.0.0.0_9080 of the Sidecar", names)
	}
}
