package registry

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

func TestGateways(t *testing.T) {
	b := newTestState(t)
	b.apply(up(gateway("c2", "n2", "192.0.2.1", "192.0.2.2")), up(gateway("c1", "n1", "192.0.2.9")))
	want := []snapshot.NetworkGateway{
		{Network: "n2", Cluster: "c2", Namespace: "istio-system", Address: netip.MustParseAddr("192.0.2.1"), Port: 15443},
		{Network: "n2", Cluster: "c2", Namespace: "istio-system", Address: netip.MustParseAddr("192.0.2.2"), Port: 15443},
	}
	if got := b.snap.Gateways.For("n2", "c2"); !slices.Equal(got, want) {
		t.Errorf("gateways %v, want %v", got, want)
	}
	c := b.apply(up(gateway("c2", "n2"))) // loses every address: no stale gateways
	if got := b.snap.Gateways.For("n2", "c2"); len(got) != 0 || c.Kinds() != snapshot.GatewayFacts || !maps.Equal(c.Gateways, map[mesh.NetworkID]struct{}{"n2": {}}) {
		t.Errorf("gateways %v after all addresses went, changes %+v", got, c)
	}
	noPort := gateway("c2", "n2", "192.0.2.1")
	noPort.Ports = nil
	b.apply(up(noPort))
	if got := b.snap.Gateways.For("n2", "c2"); len(got) != 0 {
		t.Errorf("gateway without the port: %v", got)
	}
}

// TestNodePortGateways: the external addresses of selected nodes, with the port of nodes, are
// the gateways of a Service with a node selector.
func TestNodePortGateways(t *testing.T) {
	b := newTestState(t)
	at := func(name, address, role string) *snapshot.Node {
		n := &snapshot.Node{Meta: meta("c2", "", name, "role", role)}
		if address != "" {
			n.External = []netip.Addr{netip.MustParseAddr(address)}
		}
		return n
	}
	gw := gateway("c2", "n2", "203.0.113.9") // which nodes replace
	gw.NodePorts = &snapshot.NodePorts{Selector: map[string]string{"role": "edge"}, Ports: map[uint32]uint32{15443: 30443}}
	b.apply(up(gw), up(at("a", "192.0.2.1", "edge")), up(at("b", "192.0.2.2", "inner")), up(at("c", "", "edge")))
	want := func(addresses ...string) {
		t.Helper()
		var got []string
		for _, g := range b.snap.Gateways.For("n2", "c2") {
			got = append(got, netip.AddrPortFrom(g.Address, uint16(g.Port)).String())
		}
		if !slices.Equal(got, addresses) {
			t.Errorf("gateways %v, want %v", got, addresses)
		}
	}
	refused := func(reason string) {
		t.Helper()
		if all := b.s.report.refused["c2"]; all.Number != 1 || all.First[0].Reason != reason {
			t.Errorf("refused %+v, want %q", all, reason)
		}
	}
	want("192.0.2.1:30443")
	b.apply(up(at("b", "192.0.2.2", "edge")))
	want("192.0.2.1:30443", "192.0.2.2:30443")
	if c := b.apply(up(at("c", "", "inner"))); !c.Empty() {
		t.Errorf("a node without an external address changed %+v", c)
	}
	b.apply(down(at("a", "", "")), down(at("b", "", "")))
	want()
	refused(facts.RefusedNodes)
	noPort := *gw
	noPort.NodePorts = &snapshot.NodePorts{Selector: gw.NodePorts.Selector}
	b.apply(up(&noPort), up(at("a", "192.0.2.1", "edge")))
	want()
	refused("port 15443 has no nodePort")
}

// TestDescribedGateways: the description of a gateway has its source, the addresses that
// proxies get or a reason, and the time of its last change.
func TestDescribedGateways(t *testing.T) {
	b := newTestState(t)
	now := epoch
	b.s.cfg.Now = func() time.Time { return now }
	b.s.Cfg.ResolvesHosts = true
	named := gateway("c2", "n2", "192.0.2.1", "gw.example.com")
	settings := &snapshot.MeshSettings{
		Meta: meta("c1", "istio-system", "istio"), Mesh: &meshv1alpha1.MeshConfig{},
		Networks: &meshv1alpha1.MeshNetworks{Networks: map[string]*meshv1alpha1.Network{"n3": {Gateways: []*meshv1alpha1.Network_IstioNetworkGateway{
			{Port: 443, Gw: &meshv1alpha1.Network_IstioNetworkGateway_Address{Address: "192.0.2.3"}},
			{Port: 443, Gw: &meshv1alpha1.Network_IstioNetworkGateway_RegistryServiceName{RegistryServiceName: "gone.ns.svc.cluster.local"}},
		}}}},
	}
	b.apply(up(named), up(settings), up(gateway("c1", "n1")))
	used := func(texts ...string) (out []netip.AddrPort) {
		for _, text := range texts {
			out = append(out, netip.MustParseAddrPort(text))
		}
		return out
	}
	const eastwest = "Service istio-system/eastwest"
	want := []facts.Gateway{
		{Network: "n1", Cluster: "c1", Source: eastwest, Problem: facts.RefusedServiceAddress, Changed: epoch},
		{Network: "n2", Cluster: "c2", Source: eastwest, Address: "192.0.2.1", Used: used("192.0.2.1:15443"), Changed: epoch},
		{Network: "n2", Cluster: "c2", Source: eastwest, Address: "gw.example.com", Problem: facts.RefusedUnknownHost, Changed: epoch},
		{Network: "n3", Cluster: "c1", Source: "meshNetworks", Address: "192.0.2.3", Used: used("192.0.2.3:443"), Changed: epoch},
		{Network: "n3", Cluster: "c1", Source: "meshNetworks", Address: "gone.ns.svc.cluster.local", Problem: "meshNetworks names the Service gone.ns.svc.cluster.local, which no cluster of the network has", Changed: epoch},
	}
	check := func() {
		t.Helper()
		if d := cmp.Diff(want, b.s.report.gateways, cmp.Comparer(func(x, y netip.AddrPort) bool { return x == y })); d != "" {
			t.Errorf("gateways differ (-want +got):\n%s", d)
		}
	}
	check()
	now = epoch.Add(time.Minute)
	b.s.setHosts(map[string][]netip.Addr{"gw.example.com": ips("192.0.2.8", "192.0.2.9")})
	b.apply()
	want[2].Used, want[2].Problem, want[2].Changed = used("192.0.2.8:15443", "192.0.2.9:15443"), "", now
	check()
	now = now.Add(time.Minute)
	b.apply(down(gateway("c1", "n1")))
	want = want[1:]
	check()
}

func TestKubernetesGateways(t *testing.T) {
	b := newTestState(t)
	of := func(c mesh.ClusterID, network mesh.NetworkID, remote bool, addresses ...string) *snapshot.KubeGateway {
		return &snapshot.KubeGateway{
			Meta: snapshot.Meta{Cluster: c, Namespace: "istio-system", Name: string(network)}, Network: network,
			Addresses: addresses, Ports: []uint32{15443, 16443}, Remote: remote,
		}
	}
	b.apply(
		up(of("c2", "n2", false, "192.0.2.1", "gw.example.com")), up(gateway("c2", "n2", "192.0.2.1")),
		up(of("c1", "n3", true, "192.0.2.3")), up(of("c2", "n4", true, "192.0.2.4")),
	)
	want := map[mesh.NetworkID][]snapshot.NetworkGateway{
		"n2": {
			{Network: "n2", Cluster: "c2", Namespace: "istio-system", Address: netip.MustParseAddr("192.0.2.1"), Port: 15443},
			{Network: "n2", Cluster: "c2", Namespace: "istio-system", Address: netip.MustParseAddr("192.0.2.1"), Port: 16443},
		},
		"n3": {
			{Network: "n3", Cluster: "c1", Namespace: "istio-system", Address: netip.MustParseAddr("192.0.2.3"), Port: 15443},
			{Network: "n3", Cluster: "c1", Namespace: "istio-system", Address: netip.MustParseAddr("192.0.2.3"), Port: 16443},
		},
	}
	if diff := cmp.Diff(want, b.snap.Gateways.ByNetwork, cmp.Comparer(func(x, y netip.Addr) bool { return x == y })); diff != "" {
		t.Errorf("gateways differ (-want +got):\n%s", diff)
	}
	b.apply(snapshot.Event{Key: of("c2", "n2", false).Key()}, snapshot.Event{Key: gateway("c2", "n2").Key()})
	if got := b.snap.Gateways.ByNetwork["n2"]; len(got) > 0 {
		t.Errorf("gateways %v though their object is gone", got)
	}
}

// TestGatewaysOfOneNamespace: many gateways of one namespace leave out none of the system namespace
// or of another namespace, neither by addresses nor by host names.
func TestGatewaysOfOneNamespace(t *testing.T) {
	b := newTestState(t)
	b.s.Cfg.ResolvesHosts = true
	in := func(namespace string, s *snapshot.Service) *snapshot.Service {
		s.Namespace = namespace
		return s
	}
	hostile := in("tenant", gateway("c2", "n1")) // before the others by each order
	for i := range facts.MaxGateways {
		hostile.External = append(hostile.External, fmt.Sprintf("192.0.2.%d", i), fmt.Sprintf("a%d.example", i))
	}
	b.apply(up(hostile), up(gateway("c2", "n2", "203.0.113.1", "z.example")), up(in("edge", gateway("c2", "n3", "203.0.113.2", "y.example"))))
	for network, want := range map[mesh.NetworkID]string{"n2": "203.0.113.1", "n3": "203.0.113.2"} {
		if got := b.snap.Gateways.ByNetwork[network]; len(got) != 1 || got[0].Address.String() != want {
			t.Errorf("gateways of %s: %v, want %s", network, got, want)
		}
	}
	if n := len(b.snap.Gateways.ByNetwork["n1"]); n != facts.MaxGateways-2 {
		t.Errorf("%d gateways of the namespace, want %d", n, facts.MaxGateways-2)
	}
	got := b.s.Found.Get(nil).HostNames()
	if len(got) != facts.MaxHosts || !slices.Contains(got, "z.example") || !slices.Contains(got, "y.example") {
		t.Errorf("to resolve: %q", got)
	}
}

// TestAliasesOfOneNamespace: many ExternalName services of one namespace leave out none of another.
func TestAliasesOfOneNamespace(t *testing.T) {
	b := newTestState(t)
	named := func(namespace, name, target string) snapshot.Event {
		s := service("c1", name)
		s.Namespace, s.ExternalName = namespace, target
		return up(s)
	}
	events := []snapshot.Event{named("shop", "web", "")}
	for _, namespace := range []string{"other", "shop"} {
		events = append(events, named(namespace, "alias", "web.shop.svc.cluster.local"))
	}
	for n := range facts.MaxAliases {
		events = append(events, named("a", fmt.Sprint("n", n), "web.shop.svc.cluster.local"))
	}
	b.apply(events...)
	svc := b.snap.Services.Get("web.shop.svc.cluster.local")
	if svc == nil || len(svc.Aliases) != facts.MaxAliases {
		t.Fatalf("the service is %+v", svc)
	}
	for _, namespace := range []string{"other", "shop"} {
		if !slices.ContainsFunc(svc.Aliases, func(a snapshot.Alias) bool { return a.Namespace == namespace }) {
			t.Errorf("the alias of %s is left out", namespace)
		}
	}
}
