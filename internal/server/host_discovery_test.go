package server

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xds"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// discovers makes the node of a proxy that takes virtual hosts one by one.
func discovers(n *corev3.Node) {
	n.UserAgentVersionType = envoyVersion(40)
	n.Metadata.Fields[mesh.MetadataVirtualHosts] = structpb.NewStringValue("true")
}

// envoyVersion is the version of Envoy in a node.
func envoyVersion(minor uint32) *corev3.Node_UserAgentBuildVersion {
	return &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: minor}}}
}

// startDiscovery starts a server with virtual host discovery and some services.
func startDiscovery(t *testing.T, services int) (s *Server, dir string) {
	return startDiscoveryWith(t, services, xds.Limits{})
}

// startDiscoveryWith starts the server with limits.
func startDiscoveryWith(t *testing.T, services int, limits xds.Limits) (s *Server, dir string) {
	t.Helper()
	s = start(t, func(c *Config) {
		c.VirtualHostDiscovery, c.HostsOnDemand, c.Limits, dir = true, limits.PushedHosts > 0, limits, c.ConfigDir
		for i := range services {
			write(t, dir, fmt.Sprintf("service-%d.yaml", i), serviceYAML(i))
			write(t, dir, fmt.Sprintf("slice-%d.yaml", i), sliceYAML(i, "10.1.0.1"))
		}
	})
	return s, dir
}

// discovery subscribes a proxy to all virtual hosts, and returns those that it gets by name.
func (p *testProxy) discovery(t *testing.T, held map[string]string) map[string]*routev3.VirtualHost {
	t.Helper()
	p.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.VirtualHostType, InitialResourceVersions: held})
	return hostsIn(t, p.next(t))
}

// hostsIn returns the virtual hosts of a response by name.
func hostsIn(t *testing.T, r *discoveryv3.DeltaDiscoveryResponse) map[string]*routev3.VirtualHost {
	t.Helper()
	if r.TypeUrl != xdswire.VirtualHostType {
		t.Fatalf("sent %s, want virtual hosts", r.TypeUrl)
	}
	out := make(map[string]*routev3.VirtualHost)
	for _, r := range r.Resources {
		host := new(routev3.VirtualHost)
		if err := r.Resource.UnmarshalTo(host); err != nil {
			t.Fatal(err)
		}
		if host.Name != r.Name {
			t.Errorf("virtual host %s in the resource %s", host.Name, r.Name)
		}
		out[r.Name] = host
	}
	return out
}

// TestVirtualHostIsSentAlone: with virtual host discovery, a changed VirtualService sends and
// generates one virtual host, and a removed Service removes one.
func TestVirtualHostIsSentAlone(t *testing.T) {
	const services = 50
	s, dir := startDiscovery(t, services)
	var all []*testProxy
	for i := range 20 {
		p := connectNode(t, s, "sidecar", fmt.Sprint("proxy-", i), fmt.Sprint("apps-", i%10), discovers)
		p.subscribeAll(t)
		if got := len(p.discovery(t, nil)); got != services {
			t.Fatalf("%d virtual hosts, want %d", got, services)
		}
		all = append(all, p)
	}
	var others []*testProxy
	for name, change := range map[string]func(*corev3.Node){
		"older Envoy":     func(n *corev3.Node) { discovers(n); n.UserAgentVersionType = envoyVersion(39) },
		"agent of others": func(n *corev3.Node) { n.UserAgentVersionType = envoyVersion(40) },
	} {
		p := connectNode(t, s, "sidecar", strings.ReplaceAll(name, " ", "-"), "apps-0", change)
		p.subscribeAll(t)
		others = append(others, p)
	}

	const name = "80/svc-7.ns-7.svc.cluster.local:80"
	before := generated(t, s, nil)
	change := func(timeout string) {
		write(t, dir, "routes.yaml", virtualServiceYAML("ns-7", "v", "http: [{timeout: "+timeout+", route: [{destination: {host: svc-8.ns-8.svc.cluster.local}}]}]"))
	}
	for _, timeout := range []string{"1s", "2s"} {
		change(timeout)
		for _, p := range all {
			hosts := hostsIn(t, p.next(t))
			if got := slices.Collect(maps.Keys(hosts)); !slices.Equal(got, []string{name}) {
				t.Fatalf("sent %v, want %s", got, name)
			}
			if got := hosts[name].Routes[0].GetRoute().GetTimeout().AsDuration().String(); got != timeout {
				t.Errorf("timeout %s, want %s", got, timeout)
			}
		}
		for _, p := range others {
			if r := p.next(t); r.TypeUrl != xdswire.RouteType {
				t.Errorf("an older Envoy or one with another agent gets %s", r.TypeUrl)
			}
		}
		// The proxies of all namespaces share the virtual host.
		if got := generated(t, s, before)["VHDS"]; got != 1 {
			t.Errorf("%v virtual hosts were generated, want 1", got)
		}
		before = generated(t, s, nil)
	}

	if err := os.Remove(filepath.Join(dir, "service-9.yaml")); err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		var gone []string
		for gone == nil {
			if r := p.next(t); r.TypeUrl == xdswire.VirtualHostType {
				gone = r.RemovedResources
			}
		}
		if want := []string{"80/svc-9.ns-9.svc.cluster.local:80"}; !slices.Equal(gone, want) {
			t.Errorf("removed %v, want %v", gone, want)
		}
	}
}

// TestVirtualHostsReturn: a proxy that returns gets the virtual hosts that it lacks, and the removal of
// deleted ones. A proxy that holds whole route configurations keeps getting them.
func TestVirtualHostsReturn(t *testing.T) {
	s, _ := startDiscovery(t, 3)
	routes := func(p *testProxy, held map[string]string) *discoveryv3.Resource {
		p.next(t) // clusters
		p.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.RouteType, ResourceNamesSubscribe: []string{"80"}, InitialResourceVersions: held})
		r := p.next(t)
		if r.TypeUrl != xdswire.RouteType || len(r.Resources) != 1 {
			t.Fatalf("sent %s with %d resources", r.TypeUrl, len(r.Resources))
		}
		return r.Resources[0]
	}
	hosts := func(r *discoveryv3.Resource) int {
		var rc routev3.RouteConfiguration
		if err := r.Resource.UnmarshalTo(&rc); err != nil {
			t.Fatal(err)
		}
		if (rc.Vhds != nil) != strings.HasSuffix(r.Version, "+vhds") {
			t.Errorf("version %s of %v", r.Version, rc.Vhds)
		}
		return len(rc.VirtualHosts)
	}
	first := connectNode(t, s, "sidecar", "first", "apps", discovers)
	if got := hosts(routes(first, nil)); got != 1 {
		t.Errorf("the route configuration has %d virtual hosts, want the one for unknown hosts", got)
	}

	returned := connectNode(t, s, "sidecar", "returned", "apps", discovers)
	held := map[string]string{"80": "older+vhds"}
	newest := routes(returned, held)
	if got := hosts(newest); got != 1 {
		t.Errorf("the returned proxy gets %d virtual hosts in its route configuration", got)
	}
	returned.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.VirtualHostType, InitialResourceVersions: map[string]string{"80/gone:80": "x", "80/svc-0.ns-0.svc.cluster.local:80": "x"}})
	r := returned.next(t)
	clear(held)
	for _, host := range r.Resources {
		held[host.Name] = host.Version
	}
	if got := len(hostsIn(t, r)); got != 3 || !slices.Equal(r.RemovedResources, []string{"80/gone:80"}) {
		t.Errorf("sent %d virtual hosts without %v", got, r.RemovedResources)
	}
	// Envoy dropped the virtual hosts if it had no route configuration for them.
	returned.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.RouteType, ResourceNamesSubscribe: []string{"80"}})
	if r := returned.next(t); r.TypeUrl != xdswire.RouteType {
		t.Fatalf("sent %s", r.TypeUrl)
	}
	if got := len(hostsIn(t, returned.next(t))); got != 3 {
		t.Errorf("%d virtual hosts are sent again with their route configuration", got)
	}

	again := connectNode(t, s, "sidecar", "again", "apps", discovers)
	again.next(t) // clusters
	again.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.RouteType, ResourceNamesSubscribe: []string{"80"}, InitialResourceVersions: map[string]string{"80": newest.Version}})
	if r := again.next(t); r.TypeUrl != xdswire.RouteType || len(r.Resources) != 0 {
		t.Errorf("sent %v", r)
	}
	held["80/svc-1.ns-1.svc.cluster.local:80"] = "" // the agent does not know whether the proxy has it
	again.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.VirtualHostType, InitialResourceVersions: held})
	if got := slices.Collect(maps.Keys(hostsIn(t, again.next(t)))); !slices.Equal(got, []string{"80/svc-1.ns-1.svc.cluster.local:80"}) {
		t.Errorf("a proxy that has the others gets %q", got)
	}

	kept := connectNode(t, s, "sidecar", "kept", "apps", discovers)
	if got := hosts(routes(kept, map[string]string{"80": "older"})); got != 4 {
		t.Errorf("a proxy with whole route configurations gets %d virtual hosts", got)
	}
}

// TestVirtualHostsOnDemand: a proxy that sees many services gets the virtual hosts that it requests
// by name, and their changes only.
func TestVirtualHostsOnDemand(t *testing.T) {
	s, dir := startDiscoveryWith(t, 9, xds.Limits{PushedHosts: 5, RequestedHosts: 10})
	p := connectNode(t, s, "sidecar", "proxy", "apps", discovers)
	p.subscribeAll(t)
	sent := func(before map[string]float64) float64 {
		return metrics(t, s)[`meshctl_xds_sent_resources_total{type="VHDS"}`] - before[`meshctl_xds_sent_resources_total{type="VHDS"}`]
	}
	names := func(hosts map[string]*routev3.VirtualHost) []string { return slices.Sorted(maps.Keys(hosts)) }
	if got := names(p.discovery(t, nil)); !slices.Equal(got, []string{"80/on demand"}) {
		t.Fatalf("sent %q before a request", got)
	}
	ask := func(names ...string) *discoveryv3.DeltaDiscoveryResponse {
		t.Helper()
		p.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.VirtualHostType, ResourceNamesSubscribe: names})
		for {
			if r := p.next(t); r.TypeUrl == xdswire.VirtualHostType {
				return r
			}
		}
	}
	for name, cluster := range map[string]string{
		"80/svc-7.ns-7": "outbound|80||svc-7.ns-7.svc.cluster.local", "80/unknown.example": "PassthroughCluster",
	} {
		for range 2 { // also if it is requested again
			hosts := hostsIn(t, ask(name))
			host := hosts[name]
			if len(hosts) != 1 || host == nil || !slices.Equal(host.Domains, []string{strings.TrimPrefix(name, "80/")}) || host.Routes[0].GetRoute().GetCluster() != cluster {
				t.Errorf("requested %s, sent %v", name, hosts)
			}
		}
	}
	// The virtual host is there under the name without the port, and no other route configuration.
	if r := ask("80/svc-7.ns-7:80"); len(r.Resources) != 1 || !slices.Equal(r.Resources[0].Aliases, []string{"80/svc-7.ns-7:80"}) || hostsIn(t, r)["80/no virtual host"] == nil {
		t.Errorf("sent %v", r)
	}
	if r := ask("81/svc-7.ns-7"); len(r.Resources) != 1 || !slices.Equal(r.Resources[0].Aliases, []string{"81/svc-7.ns-7"}) {
		t.Errorf("sent %v", r)
	}

	before := metrics(t, s)
	for i, timeout := range []string{"1s", "2s"} {
		text := virtualServiceYAML("ns-7", "v", "http: [{timeout: "+timeout+", route: [{destination: {host: svc-7.ns-7.svc.cluster.local}}]}]")
		write(t, dir, "other.yaml", strings.ReplaceAll(text, "-7", "-8"))
		write(t, dir, "routes.yaml", text)
		hosts := hostsIn(t, p.next(t))
		if got := names(hosts); !slices.Equal(got, []string{"80/svc-7.ns-7"}) || hosts[got[0]].Routes[0].GetRoute().GetTimeout().AsDuration().String() != timeout {
			t.Errorf("sent %v", hosts)
		}
		if got := sent(before); got != float64(i+1) {
			t.Errorf("%v virtual hosts were sent after %d changes", got, i+1)
		}
	}
	// A new service takes its name from the unknown hosts, and a removed one gives it back.
	write(t, dir, "known.yaml", `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: known, namespace: apps}
spec: {hosts: [unknown.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.1.0.9}]}
`)
	taken := func(cluster string) {
		t.Helper()
		for {
			r := p.next(t)
			if r.TypeUrl != xdswire.VirtualHostType {
				continue
			}
			if host := hostsIn(t, r)["80/unknown.example"]; host == nil || host.Routes[0].GetRoute().GetCluster() != cluster {
				t.Errorf("sent %v", r)
			}
			return
		}
	}
	taken("outbound|80||unknown.example")
	if err := os.Remove(filepath.Join(dir, "known.yaml")); err != nil {
		t.Fatal(err)
	}
	taken("PassthroughCluster")

	// The oldest names leave, and return when they are requested.
	var more []string
	for i := range 9 {
		more = append(more, fmt.Sprintf("80/host-%d.example", i))
	}
	if r := ask(more...); len(r.Resources) != 9 || !slices.Contains(r.RemovedResources, "80/svc-7.ns-7") {
		t.Errorf("sent %d resources, removed %v", len(r.Resources), r.RemovedResources)
	}
	if hosts := hostsIn(t, ask("80/svc-7.ns-7")); hosts["80/svc-7.ns-7"] == nil {
		t.Errorf("sent %v", hosts)
	}
}
