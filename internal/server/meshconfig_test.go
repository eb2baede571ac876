package server

import (
	"fmt"
	"maps"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestMeshConfigGeneratesWhatReadsIt: a changed field of MeshConfig generates only the
// resources that depend on it.
func TestMeshConfigGeneratesWhatReadsIt(t *testing.T) {
	const services = 20
	meshConfig := func(fields string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: %q}\n", fields)
	}
	const entry = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: dns, namespace: shop}
spec: {hosts: [api.example.com], resolution: DNS, location: MESH_EXTERNAL, ports: [{number: 443, name: tls, protocol: TLS}]}
`
	for name, tt := range map[string]struct {
		fields string
		want   map[string]float64
	}{
		"dnsRefreshRate":           {"dnsRefreshRate: 5s", map[string]float64{"CDS": 1}},
		"disableEnvoyListenerLog":  {"{accessLogFile: /dev/stdout, disableEnvoyListenerLog: true}", map[string]float64{"LDS": 4}},
		"pathNormalization":        {"pathNormalization: {normalization: MERGE_SLASHES}", map[string]float64{"LDS": 4}},
		"defaultHttpRetryPolicy":   {"defaultHttpRetryPolicy: {attempts: 7}", map[string]float64{"RDS": 1}},
		"protocolDetectionTimeout": {"protocolDetectionTimeout: 3s", map[string]float64{"LDS": 4}},
		"no effect":                {"enablePrometheusMerge: false", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var dir string
			s := start(t, func(c *Config) {
				dir = c.ConfigDir
				for i := range services {
					write(t, dir, fmt.Sprintf("service-%d.yaml", i), serviceYAML(i))
				}
				write(t, dir, "entry.yaml", entry)
				write(t, dir, "mesh.yaml", meshConfig(""))
			})
			p := connect(t, s, "p")
			p.next(t)
			for typ, names := range map[string][]string{xdswire.ListenerType: nil, xdswire.RouteType: {"80"}} {
				p.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResourceNamesSubscribe: names})
				p.next(t)
			}
			before := generated(t, s, nil)
			got := func() map[string]float64 { return generated(t, s, before) }
			write(t, dir, "mesh.yaml", meshConfig(tt.fields))
			if tt.want != nil {
				waitFor(t, "generation", func() bool { return len(got()) > 0 })
			}
			if g := got(); !maps.Equal(g, tt.want) {
				t.Errorf("generated %v, want %v", g, tt.want)
			}
		})
	}
}
