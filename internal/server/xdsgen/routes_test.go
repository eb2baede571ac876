package xdsgen

import (
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestUnknownHostsDoNotLoop: a listener that clients connect to directly has
// no other destination to pass an unknown host on to than itself.
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
			v := routeView{scope: scope{sidecar: sidecar}, captured: tc.captured}
			v.egress(&snapshot.Snapshot{Mesh: &snapshot.Mesh{}}, func(_ string, u Unit) {
				if got := u.(egressRoutes).registryOnly; got != tc.blocked {
					t.Errorf("unknown hosts blocked: %v, want %v", got, tc.blocked)
				}
			})
		})
	}
}
