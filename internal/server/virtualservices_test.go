package server

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/meshctl/meshctl/internal/xdswire"
)

func virtualServiceYAML(namespace, name, spec string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %s, namespace: %s}
spec: {hosts: [svc-7.ns-7.svc.cluster.local], %s}
`, name, namespace, spec)
}

// TestVirtualServiceIsGeneratedOnce: a changed VirtualService generates the routes of a port
// once for each different result, whatever the number of namespaces and proxies, and nothing
// else.
func TestVirtualServiceIsGeneratedOnce(t *testing.T) {
	s, dir, all := connectTwenty(t)
	check := generationCheck(t, s, xdswire.RouteType)
	const route = "route: [{destination: {host: svc-8.ns-8.svc.cluster.local}}]"
	once := map[string]float64{"RDS": 1}
	write(t, dir, "shared.yaml", virtualServiceYAML("ns-7", "shared", "http: [{"+route+"}]"))
	check("a VirtualService for all", all, once, "80")

	write(t, dir, "shared.yaml", virtualServiceYAML("ns-7", "shared", "http: [{timeout: 1s, "+route+"}]"))
	check("a change of it", all, once, "80")

	// Proxy 3 and 13 are in this namespace.
	own := []*testProxy{all[3], all[13]}
	others := slices.DeleteFunc(slices.Clone(all), func(p *testProxy) bool { return slices.Contains(own, p) })
	write(t, dir, "private.yaml", virtualServiceYAML("apps-3", "private", "exportTo: [.], http: [{timeout: 3s, "+route+"}]"))
	check("a private one", own, once, "80")

	write(t, dir, "private.yaml", virtualServiceYAML("apps-3", "private", "exportTo: [.], http: [{timeout: 4s, "+route+"}]"))
	check("a change of the private one", own, once, "80")

	write(t, dir, "shared.yaml", virtualServiceYAML("ns-7", "shared", "http: [{timeout: 2s, "+route+"}]"))
	// The host's routes are private in apps-3, but its list of all hosts changes, too.
	check("a change for the others", others, map[string]float64{"RDS": 2}, "80")

	write(t, dir, "private.yaml", virtualServiceYAML("apps-3", "private", "exportTo: [.], tcp: [{route: [{destination: {host: svc-8.ns-8.svc.cluster.local}}]}]"))
	check("no private routes for requests", own, map[string]float64{"LDS": 1}, "80") // the namespace shares the routes again
}

// TestRoutesForSomeClients: a VirtualService with a condition on clients sends other routes
// only to them.
func TestRoutesForSomeClients(t *testing.T) {
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
		write(t, dir, "service.yaml", serviceYAML(7))
		write(t, dir, "slice.yaml", sliceYAML(7, "10.1.0.1"))
	})
	var all []*testProxy
	for i := range 6 {
		p := connectIn(t, s, fmt.Sprint("proxy-", i), fmt.Sprint("apps-", i%3))
		p.subscribeAll(t)
		all = append(all, p)
	}
	check := generationCheck(t, s, xdswire.RouteType)
	spec := func(timeout string) string {
		return "http: [{match: [{sourceNamespace: apps-1}], timeout: " + timeout + ", route: [{destination: {host: svc-7.ns-7.svc.cluster.local}}]}]"
	}
	some := []*testProxy{all[1], all[4]}
	write(t, dir, "routes.yaml", virtualServiceYAML("ns-7", "some", spec("1s")))
	p := some[0].next(t)
	if q := some[1].next(t); p.TypeUrl != xdswire.RouteType || q.TypeUrl != xdswire.RouteType {
		t.Fatalf("sent %s and %s", p.TypeUrl, q.TypeUrl)
	}
	check("nobody", nil, map[string]float64{"RDS": 2})
	write(t, dir, "routes.yaml", virtualServiceYAML("ns-7", "some", spec("2s")))
	check("a change", some, map[string]float64{"RDS": 2}, "80")
}

// TestSidecarImportsDestinations: a Sidecar that imports a VirtualService gets the clusters of
// the services that it routes to, from any namespace. They are the clusters of all proxies, so
// nothing is generated for it, and only changed destinations send any.
func TestSidecarImportsDestinations(t *testing.T) {
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
		for i := range 10 {
			write(t, dir, fmt.Sprintf("service-%d.yaml", i), serviceYAML(i))
			write(t, dir, fmt.Sprintf("slice-%d.yaml", i), sliceYAML(i, "10.1.0.1"))
		}
		write(t, dir, "sidecar.yaml", `apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: apps}
spec: {egress: [{hosts: [ns-7/*]}]}
`)
	})
	limited := connectIn(t, s, "limited", "apps")
	limited.subscribeAll(t)
	connectIn(t, s, "free", "others").subscribeAll(t)
	before := generated(t, s, nil)
	const route, cluster = "http: [{%s route: [{destination: {host: svc-%d.ns-%d.svc.cluster.local}}]}]", "outbound|80||svc-%d.ns-%d.svc.cluster.local"
	expect := func(typeURL string, names, removed []string) {
		t.Helper()
		r := limited.next(t)
		for typeURL == xdswire.RouteType && r.TypeUrl == xdswire.EndpointType { // of the new cluster
			r = limited.next(t)
		}
		var got []string
		for _, r := range r.Resources {
			got = append(got, r.Name)
		}
		if r.TypeUrl != typeURL || !slices.Equal(got, names) || !slices.Equal(r.RemovedResources, removed) {
			t.Fatalf("sent %s %v without %v, want %s %v without %v", r.TypeUrl, got, r.RemovedResources, typeURL, names, removed)
		}
	}

	write(t, dir, "virtual.yaml", virtualServiceYAML("ns-7", "v", fmt.Sprintf(route, "", 8, 8)))
	expect(xdswire.ClusterType, []string{fmt.Sprintf(cluster, 8, 8)}, nil)
	expect(xdswire.RouteType, []string{"80"}, nil)
	write(t, dir, "virtual.yaml", virtualServiceYAML("ns-7", "v", fmt.Sprintf(route, "timeout: 1s,", 8, 8)))
	expect(xdswire.RouteType, []string{"80"}, nil)
	write(t, dir, "virtual.yaml", virtualServiceYAML("ns-7", "v", fmt.Sprintf(route, "timeout: 1s,", 9, 9)))
	expect(xdswire.ClusterType, []string{fmt.Sprintf(cluster, 9, 9)}, nil)
	expect(xdswire.RouteType, []string{"80"}, nil)
	expect(xdswire.ClusterType, nil, []string{fmt.Sprintf(cluster, 8, 8)}) // no route refers to it now
	// Two views have the routes: of the Sidecar, and of all other proxies.
	if got, want := generated(t, s, before), map[string]float64{"RDS": 6}; !maps.Equal(got, want) {
		t.Errorf("generated %v, want %v", got, want)
	}
}
