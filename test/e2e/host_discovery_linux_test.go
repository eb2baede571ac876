package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Flags of a control plane that sends whole route configurations, or virtual hosts on demand.
const (
	wholeRoutes = "--virtual-host-discovery=false"
	onDemand    = "--virtual-hosts-on-demand"
)

// sentHosts waits until the Envoy of a pod has, or has not, virtual hosts that came one by one.
func sentHosts(t *testing.T, want bool) {
	t.Helper()
	eventually(t, "the form of virtual hosts", func() error {
		dump := adminGet(t, "localhost:15000", "/config_dump?resource=dynamic_route_configs")
		if got := strings.Contains(dump, `"vhds"`); got != want {
			return fmt.Errorf("they come one by one: %v, want %v", got, want)
		}
		return nil
	})
}

// TestVirtualHostDiscovery runs all scenarios of HTTP routes with virtual hosts that come one by
// one. The commands show the proxy as they show others.
func TestVirtualHostDiscovery(t *testing.T) {
	if inPod(t) {
		discoverHosts(t, "", "api.shop.svc.cluster.local:80")
	}
}

// TestVirtualHostsOnDemand does the same in a mesh in which the proxy requests virtual hosts.
func TestVirtualHostsOnDemand(t *testing.T) {
	if inPod(t) {
		discoverHosts(t, manyHosts(), "api.shop", onDemand)
	}
}

// discoverHosts runs the scenarios in a mesh with more objects. The proxy gets the virtual host of the
// service api under a name.
func discoverHosts(t *testing.T, more, apiHost string, flags ...string) {
	t.Helper()
	const filter = `---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: routes, namespace: shop}
spec:
  configPatches:
  - applyTo: VIRTUAL_HOST
    match: {context: SIDECAR_OUTBOUND, routeConfiguration: {vhost: {name: "api.shop.svc.cluster.local:80"}}}
    patch: {operation: MERGE, value: {response_headers_to_add: [{header: {key: x-patched, value: "yes"}}]}}
  - applyTo: HTTP_ROUTE
    match: {context: SIDECAR_OUTBOUND, routeConfiguration: {vhost: {name: "api.shop.svc.cluster.local:80"}}}
    patch: {operation: INSERT_FIRST, value: {name: added, match: {path: /added}, direct_response: {status: 299}}}
  - applyTo: VIRTUAL_HOST
    match: {context: SIDECAR_OUTBOUND, routeConfiguration: {name: "80"}}
    patch: {operation: ADD, value: {name: added, domains: [added.example], routes: [{match: {prefix: /}, direct_response: {status: 298}}]}}
`
	p := preparePod(t, routeScenarioObjects()+filter+more, "10.11.0.77")
	_, secure := controlPlane(t, p.dir, p.mesh, flags...)
	p.startProxy(t, secure)
	serveRouteScenarios(t, p)
	sentHosts(t, true)
	runRouteScenarios(t)
	for _, c := range []struct{ url, host, want string }{
		{"/added", "api.shop", "299"}, {"/", "added.example", "298"}, {"/", "api.shop", "200"},
	} {
		if got := requested(t, "http://10.97.0.1"+c.url, c.host); fmt.Sprint(got.status) != c.want || c.want == "200" && got.header.Get("X-Patched") != "yes" {
			t.Errorf("patched %s%s: %+v, want %s", c.host, c.url, got, c.want)
		}
	}
	refusedNothing(t, "localhost:15000")
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"ps", "client.shop", "--server", "127.3.0.2:8080", "--admin", "localhost:15000"}, []string{"Routes Match"}},
		{[]string{"pc", "routes", "--admin", "localhost:15000", "--name", "80", "-o", "wide"}, []string{"\n80 ", " " + apiHost + " ", " added.example "}},
		{[]string{"ps", "--server", "127.3.0.2:8080"}, []string{"SYNCED"}},
	} {
		eventually(t, strings.Join(c.args, " "), func() error {
			command := exec.Command(meshctl, c.args...)
			command.Env = append(os.Environ(), "HOME="+p.dir) // where serve has left its token
			out, err := command.CombinedOutput()
			for _, want := range c.want {
				if !strings.Contains(string(out), want) {
					err = errors.Join(err, fmt.Errorf("no %q in:\n%s", want, out))
				}
			}
			return err
		})
	}
}

// TestHostDiscoveryWithoutErrors changes subsets while virtual hosts come one by one, and the
// control plane restarts meanwhile, with and without virtual host discovery. No request fails.
func TestHostDiscoveryWithoutErrors(t *testing.T) {
	if !inPod(t) {
		return
	}
	p := preparePod(t, changedSubsets("s0"), "10.11.0.77")
	makeAuthorities(t, p.dir)
	stop := serveMesh(t, p.dir, p.mesh)
	defer func() { stop() }()
	p.startProxy(t, secureXDS)
	sentHosts(t, true)
	restart := func(flags ...string) {
		stop()
		stop = serveMesh(t, p.dir, p.mesh, flags...)
	}
	changeSubsets(t, p, 100, func(n int) {
		switch n {
		case 20, 40:
			restart()
			sentHosts(t, true)
		case 60:
			restart(wholeRoutes)
			sentHosts(t, false)
		case 80:
			restart()
			sentHosts(t, false) // until the proxy starts again
		}
	})
	refusedNothing(t, "localhost:15000")
}

// TestHostDiscoveryOfNewPort: virtual hosts of a port whose listener comes later reach the proxy,
// and those of a port that is gone leave nothing.
func TestHostDiscoveryOfNewPort(t *testing.T) {
	if !inPod(t) {
		return
	}
	service := func(port int) string {
		return changedSubsets("s0") + testService{name: "more", vip: "10.96.1.2", protocol: "http", port: port, target: 9001, endpoints: "{addresses: [10.11.0.1]}"}.objects()
	}
	p := preparePod(t, service(8080), "10.11.0.77")
	_, secure := controlPlane(t, p.dir, p.mesh)
	p.startProxy(t, secure)
	for _, ip := range []string{"10.11.0.1", "10.96.1.2"} {
		p.address(t, ip)
	}
	answers(t, "10.11.0.1:9001", "more")
	for _, port := range []int{8080, 8081, 8080, 8082, 8080} {
		replace(t, filepath.Join(p.mesh, "cluster1", "mesh.yaml"), service(port))
		eventually(t, fmt.Sprint("requests to port ", port), func() error {
			got, server, err := get(fmt.Sprintf("http://10.96.1.2:%d/", port))
			if err == nil && (got != "more" || server != outboundHTTP) {
				err = fmt.Errorf("%q from %q", got, server)
			}
			return err
		})
	}
	refusedNothing(t, "localhost:15000")
}
