package server

import (
	"fmt"
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// edgePod is the pod of a gateway.
const edgePod = `apiVersion: v1
kind: Pod
metadata: {name: edge, namespace: edge, labels: {istio: edge}}
spec: {serviceAccountName: edge, containers: [{name: proxy}]}
status: {podIP: 10.0.0.1, phase: Running}
`

func edgeGateway(name, server string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: %s, namespace: edge}
spec: {selector: {istio: edge}, servers: [%s]}
`, name, server)
}

// TestGatewayIsGeneratedOnce: a changed Gateway generates only the listener and the route
// configuration of its server, and only gateways get them.
func TestGatewayIsGeneratedOnce(t *testing.T) {
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
		write(t, dir, "pod.yaml", edgePod)
		for i := range 20 {
			write(t, dir, fmt.Sprintf("gateway-%d.yaml", i), edgeGateway(fmt.Sprint("plain-", i), fmt.Sprintf("{port: {number: %d, name: http, protocol: HTTP}, hosts: ['*']}", 8000+i)))
			write(t, dir, fmt.Sprintf("secure-%d.yaml", i), edgeGateway(fmt.Sprint("secure-", i), secureServer(i, "s")))
		}
		write(t, dir, "passing.yaml", edgeGateway("passing", "{port: {number: 15443, name: tls, protocol: TLS}, hosts: ['*.local'], tls: {mode: AUTO_PASSTHROUGH}}"))
		for i := range 5 {
			write(t, dir, fmt.Sprintf("service-%d.yaml", i), serviceYAML(i))
			write(t, dir, fmt.Sprintf("slice-%d.yaml", i), sliceYAML(i, "10.1.0.1"))
		}
	})
	connect(t, s, "web").subscribeAll(t)
	gateway := connectTyped(t, s, "router", "edge", "edge")
	gateway.subscribeAll(t)
	gateway.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.RouteType, ResourceNamesSubscribe: []string{"http.8007", "http.8107"}})
	gateway.next(t)
	before := metrics(t, s)
	check := func(when string, typ string, names []string, generated map[string]float64) {
		t.Helper()
		r := gateway.next(t)
		for r.TypeUrl != typ {
			r = gateway.next(t)
		}
		var got []string
		for _, r := range r.Resources {
			got = append(got, r.Name)
		}
		if slices.Sort(got); !slices.Equal(got, names) {
			t.Errorf("%s: sent %s %v, want %v", when, r.TypeUrl, got, names)
		}
		after := metrics(t, s)
		for _, typ := range []string{"CDS", "EDS", "LDS", "RDS", "NDS"} {
			name := fmt.Sprintf("meshctl_xds_generated_total{type=%q}", typ)
			if got := after[name] - before[name]; got != generated[typ] {
				t.Errorf("%s: generated %v of %s, want %v", when, got, typ, generated[typ])
			}
		}
		if name := "meshctl_xds_assignments_total"; after[name]-before[name] > 1 {
			t.Errorf("%s: views were chosen %v times, want once at most", when, after[name]-before[name])
		}
		before = after
	}
	write(t, dir, "secure-3.yaml", edgeGateway("secure-3", secureServer(3, "other")))
	check("the certificate of one of many servers of a port", xdswire.ListenerType, []string{"0.0.0.0_443"}, map[string]float64{"LDS": 1})

	write(t, dir, "gateway-7.yaml", edgeGateway("plain-7", "{port: {number: 8007, name: http, protocol: HTTP}, hosts: [a.edge.svc.cluster.local], tls: {httpsRedirect: true}}"))
	check("the hosts of a server of HTTP", xdswire.RouteType, []string{"http.8007"}, map[string]float64{"RDS": 1})

	write(t, dir, "route.yaml", edgeRoute("plain-7", "http: [{redirect: {uri: /b}}]"))
	check("a VirtualService of one Gateway", xdswire.RouteType, []string{"http.8007"}, map[string]float64{"RDS": 1})

	write(t, dir, "route.yaml", edgeRoute("passing", "tls: [{match: [{sniHosts: [a]}], route: [{destination: {host: svc-1.ns-1.svc.cluster.local}}]}]"))
	check("another Gateway of it", xdswire.RouteType, []string{"http.8007"}, map[string]float64{"RDS": 1})

	write(t, dir, "gateway-7.yaml", edgeGateway("plain-7", "{port: {number: 8107, name: http, protocol: HTTP}, hosts: [a.edge.svc.cluster.local]}"))
	check("the port of a server of HTTP", xdswire.ListenerType, []string{"0.0.0.0_8107"}, map[string]float64{"LDS": 1, "RDS": 1})
}

func edgeRoute(gateway, routes string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: route, namespace: edge}
spec: {hosts: [a], gateways: [%s], %s}
`, gateway, routes)
}

func secureServer(i int, credential string) string {
	return fmt.Sprintf("{port: {number: 443, name: https, protocol: HTTPS}, hosts: [h%[1]d.example.com], tls: {mode: SIMPLE, credentialName: %[2]s}}", i, credential)
}
