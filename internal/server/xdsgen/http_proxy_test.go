package xdsgen

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestHTTPProxyPort: the metadata of a proxy overrides the port of the mesh, and listeners that the
// proxy has anyway keep their ports.
func TestHTTPProxyPort(t *testing.T) {
	sidecar := &snapshot.Sidecar{Spec: &networkingv1alpha3.Sidecar{Egress: []*networkingv1alpha3.IstioEgressListener{
		{Port: &networkingv1alpha3.SidecarPort{Number: 15007}}, {},
	}}}
	for name, tt := range map[string]struct {
		mesh    uint32
		own     string
		sidecar *snapshot.Sidecar
		want    uint32
	}{
		"none":                  {},
		"mesh":                  {mesh: 15007, want: 15007},
		"own":                   {own: "15008", want: 15008},
		"own before mesh":       {mesh: 15007, own: "15008", want: 15008},
		"off":                   {mesh: 15007, own: "0"},
		"port of the proxy":     {own: "15090"},
		"port of a Sidecar":     {mesh: 15007, sidecar: sidecar},
		"not port of a Sidecar": {mesh: 15008, sidecar: sidecar, want: 15008},
	} {
		t.Run(name, func(t *testing.T) {
			fields := map[string]any{}
			if tt.own != "" {
				fields["HTTP_PROXY_PORT"] = tt.own
			}
			n, err := ParseNode(&corev3.Node{Id: nodeID, Metadata: metadata(t, fields)}, testMetadata)
			if err != nil {
				t.Fatal(err)
			}
			s := &snapshot.Snapshot{Mesh: &snapshot.Mesh{OutboundPort: 15001, InboundPort: 15006, HTTPProxyPort: tt.mesh}}
			if got := httpProxyPort(s, n, scope{sidecar: tt.sidecar}); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}
