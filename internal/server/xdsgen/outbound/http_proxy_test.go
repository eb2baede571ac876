package outbound

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
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
			fields := map[string]*structpb.Value{}
			if tt.own != "" {
				fields["HTTP_PROXY_PORT"] = structpb.NewStringValue(tt.own)
			}
			node := &corev3.Node{Id: "sidecar~10.0.0.1~web.apps~apps.svc.cluster.local", Metadata: &structpb.Struct{Fields: fields}}
			n, err := proxy.ParseNode(node, 1<<10)
			if err != nil {
				t.Fatal(err)
			}
			s := &snapshot.Snapshot{Mesh: &snapshot.Mesh{OutboundPort: 15001, InboundPort: 15006, HTTPProxyPort: tt.mesh}}
			if got := HTTPProxyPort(s, n, proxy.Scope{Sidecar: tt.sidecar}); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}
