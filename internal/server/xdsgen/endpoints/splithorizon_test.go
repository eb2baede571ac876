package endpoints

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// public is a service that all namespaces see.
var public = &snapshot.MeshService{}

// TestSplitHorizonKeepsShares: in random meshes each reachable endpoint has the same
// share of its priority's load, no matter where it runs and how many gateways lead to
// it.
func TestSplitHorizonKeepsShares(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 3))
		u := Assignments{
			Service: public, gateways: randomGateways(r), network: mesh.NetworkID([]string{"", "n0", "n1"}[r.IntN(3)]),
			families: []proxy.Families{proxy.V4, proxy.V4, proxy.V6, proxy.V4 | proxy.V6}[r.IntN(4)],
		}
		var list []snapshot.Endpoint
		direct := make(map[string]bool)           // addresses that must appear as they are
		reached := make(map[bool]uint64)          // how many endpoints can be reached, by whether they are demoted
		total := make(map[bool]uint64)            // their weight
		unit, gateways := uint64(0), uint64(0)    // weight of one endpoint, of all gateways
		far, seen := uint64(0), map[string]bool{} // endpoints behind gateways, gateways by priority
		for i := range r.IntN(12) {
			e := snapshot.Endpoint{
				Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Port: 80,
				Network: mesh.NetworkID([]string{"", "n0", "n1", "n2"}[r.IntN(4)]),
				Cluster: mesh.ClusterID(fmt.Sprint("c", r.IntN(3))),
				MTLS:    r.IntN(4) > 0, Health: snapshot.Health(r.IntN(4) / 3),
				Locality: mesh.Locality{Region: fmt.Sprint("r", r.IntN(2))}, Demoted: r.IntN(4) == 0,
			}
			list = append(list, e)
			all := snapshot.GatewaysFor(u.gateways.All, e.Network, e.Cluster)
			usable := slices.ContainsFunc(all, func(g snapshot.NetworkGateway) bool { return proxy.FamilyOf(g.Address)&u.families != 0 })
			switch {
			case e.Network == u.network, len(all) == 0 && (e.Network == "" || u.network == ""):
				if proxy.FamilyOf(e.Address)&u.families == 0 {
					continue
				}
				direct[e.Address.String()] = true
			case usable && e.MTLS && e.Health == snapshot.Healthy:
				far++
			default:
				continue
			}
			reached[e.Demoted]++
		}
		for _, group := range u.Localities(list, false, localityPolicy{}) {
			// Demoted endpoints have priority 0 if there are no others.
			demoted := group.GetPriority() == 1 || reached[false] == 0
			var sum uint64
			for _, lb := range group.GetLbEndpoints() {
				weight := uint64(lb.GetLoadBalancingWeight().GetValue())
				sum += weight
				addr := lb.GetEndpoint().GetAddress().GetSocketAddress()
				if addr.GetPortValue() == mesh.PortEastWest {
					gateways += weight
					if at := fmt.Sprint(demoted, addr.GetAddress()); seen[at] {
						t.Fatalf("seed %d: gateway %s stands twice in one priority; Envoy would use one", seed, addr.GetAddress())
					} else {
						seen[at] = true
					}
					continue
				}
				unit = max(unit, weight)
				if !direct[addr.GetAddress()] || weight != unit {
					t.Fatalf("seed %d: endpoint %s with weight %d, want direct ones with %d: %v", seed, addr.GetAddress(), weight, unit, direct)
				}
				delete(direct, addr.GetAddress())
			}
			if sum != uint64(group.GetLoadBalancingWeight().GetValue()) || len(group.GetLbEndpoints()) == 0 {
				t.Fatalf("seed %d: weight %d, endpoints sum up to %d", seed, group.GetLoadBalancingWeight().GetValue(), sum)
			}
			total[demoted] += sum
		}
		if len(direct) > 0 {
			t.Fatalf("seed %d: endpoints lost: %v", seed, direct)
		}
		if unit == 0 && far > 0 {
			unit = gateways / far
		}
		for _, demoted := range []bool{false, true} {
			if total[demoted] != unit*reached[demoted] {
				t.Fatalf("seed %d: demoted %v: weight %d, want %d for each of %d endpoints", seed, demoted, total[demoted], unit, reached[demoted])
			}
		}
	}
}

func randomGateways(r *rand.Rand) wire.List[snapshot.NetworkGateway] {
	var out []snapshot.NetworkGateway
	for n := range 3 {
		for i := range r.IntN(4) {
			id := mesh.NetworkID(fmt.Sprint("n", n))
			address := netip.AddrFrom4([4]byte{192, 0, byte(n), byte(i)})
			if r.IntN(4) == 0 {
				address = netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 14: byte(n), 15: byte(i)})
			}
			out = append(out, snapshot.NetworkGateway{
				Network: id, Cluster: mesh.ClusterID(fmt.Sprint("c", r.IntN(3))),
				Address: address, Port: mesh.PortEastWest,
			})
		}
	}
	return wire.ListOf(out)
}

func TestNetworkViewAndMTLSOnly(t *testing.T) {
	list := []snapshot.Endpoint{
		{Address: netip.MustParseAddr("10.0.0.1"), Network: "n1", MTLS: true},
		{Address: netip.MustParseAddr("10.0.0.2"), Network: "n1"},
		{Address: netip.MustParseAddr("10.0.0.3"), Network: "n2", MTLS: true},
		{Address: netip.MustParseAddr("10.0.0.4"), MTLS: true},
	}
	gateways := wire.ListOf([]snapshot.NetworkGateway{{Network: "n2", Address: netip.MustParseAddr("192.0.2.1"), Port: 15443}})
	for _, tc := range []struct {
		name     string
		view     string
		mtlsOnly bool
		want     int
	}{
		{"all", "", false, 4},
		{"one network and the unknown one", "n1", false, 3},
		{"two networks", "n1,n2", false, 4},
		{"by server name only mTLS", "n1", true, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := Assignments{Service: public, gateways: gateways, network: "n1", view: tc.view, families: proxy.V4}
			n := 0
			for _, g := range u.Localities(list, tc.mtlsOnly, localityPolicy{}) {
				n += len(g.GetLbEndpoints())
			}
			if n != tc.want {
				t.Errorf("%d endpoints, want %d", n, tc.want)
			}
		})
	}
}

// TestNetworkWithoutGateways: if both networks are known, a proxy never gets an
// endpoint of another network at its own address.
func TestNetworkWithoutGateways(t *testing.T) {
	of := func(network mesh.NetworkID) wire.List[snapshot.NetworkGateway] {
		return wire.ListOf([]snapshot.NetworkGateway{{Network: network, Address: netip.MustParseAddr("192.0.2.1"), Port: 15443}})
	}
	for _, tc := range []struct {
		name            string
		gateways        wire.List[snapshot.NetworkGateway]
		proxy, endpoint mesh.NetworkID
		want            []string
	}{
		{"one network", of("n2"), "n1", "n1", []string{"10.0.0.3 1"}},
		{"no gateways in the mesh", wire.List[snapshot.NetworkGateway]{}, "n1", "n2", nil},
		{"gateways of the proxy's network alone", of("n1"), "n1", "n2", nil},
		{"gateways of a third network alone", of("n3"), "n1", "n2", nil},
		{"a gateway", of("n2"), "n1", "n2", []string{"192.0.2.1 1"}},
		{"the endpoint's network is not known", of("n2"), "n1", "", []string{"10.0.0.3 1"}},
		{"the proxy's network is not known", of("n1"), "", "n2", []string{"10.0.0.3 1"}},
		{"the proxy's network is not known, and there is a gateway", of("n2"), "", "n2", []string{"192.0.2.1 1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := Assignments{Service: public, gateways: tc.gateways, network: tc.proxy, families: proxy.V4}
			list := []snapshot.Endpoint{{Address: netip.MustParseAddr("10.0.0.3"), Network: tc.endpoint, MTLS: true}}
			if got := balance(u.Localities(list, false, localityPolicy{})); !slices.Equal(got, tc.want) {
				t.Errorf("the proxy is given %q, want %q", got, tc.want)
			}
			if reach := u.reach(list, false); (reach[0].Obstacle == ObstacleNoGateway) != (tc.want == nil) {
				t.Errorf("the obstacle is %q", reach[0].Obstacle)
			}
		})
	}
}

// TestServiceThatGatewaysDoNotPassOn: no proxy gets the address of a gateway whose
// namespace does not see the service. The Service in the gateway's cluster decides.
func TestServiceThatGatewaysDoNotPassOn(t *testing.T) {
	part := func(c mesh.ClusterID, exportTo ...string) snapshot.ClusterService {
		return snapshot.ClusterService{Cluster: c, ExportTo: exportTo}
	}
	for _, tc := range []struct {
		name  string
		parts []snapshot.ClusterService
		want  []string
	}{
		{"exported to all", []snapshot.ClusterService{part("c1"), part("c2", "*")}, []string{"192.0.2.1 1", "192.0.2.2 1"}},
		{"private to its namespace", []snapshot.ClusterService{part("c1", "."), part("c2", ".")}, nil},
		{"private in the client's cluster", []snapshot.ClusterService{part("c1", "."), part("c2")}, []string{"192.0.2.1 1", "192.0.2.2 1"}},
		{"private in the gateway's cluster", []snapshot.ClusterService{part("c1"), part("c2", ".")}, nil},
		{"exported to the namespace of one gateway", []snapshot.ClusterService{part("c2", ".", "istio-system")}, []string{"192.0.2.1 1"}},
		{"not exported", []snapshot.ClusterService{part("c2", "~")}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := Assignments{
				Service: &snapshot.MeshService{Namespace: "ns", ExportTo: tc.parts[0].ExportTo, Clusters: tc.parts}, network: "n1", families: proxy.V4,
				gateways: wire.ListOf([]snapshot.NetworkGateway{
					{Network: "n2", Cluster: "c2", Namespace: "istio-system", Address: netip.MustParseAddr("192.0.2.1"), Port: 15443},
					{Network: "n2", Cluster: "c2", Namespace: "gateways", Address: netip.MustParseAddr("192.0.2.2"), Port: 15443},
				}),
			}
			list := []snapshot.Endpoint{{Address: netip.MustParseAddr("10.0.0.3"), Network: "n2", Cluster: "c2", MTLS: true}}
			got := balance(u.Localities(list, false, localityPolicy{}))
			if len(got) == 1 {
				got[0] = strings.Replace(got[0], " 2", " 1", 1) // its share is the same
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("the proxy is given %q, want %q", got, tc.want)
			}
		})
	}
}

func TestGatewayOfAnotherFamily(t *testing.T) {
	gateways := wire.ListOf([]snapshot.NetworkGateway{{Network: "n2", Address: netip.MustParseAddr("2001:db8::1"), Port: 15443}})
	list := []snapshot.Endpoint{{Address: netip.MustParseAddr("10.0.0.3"), Network: "n2", MTLS: true}}
	if got := (Assignments{Service: public, gateways: gateways, network: "n1", families: proxy.V4}).Localities(list, false, localityPolicy{}); len(got) != 0 {
		t.Errorf("an IPv4 proxy was given %v", got)
	}
	if got := (Assignments{Service: public, gateways: gateways, network: "n1", families: proxy.V4 | proxy.V6}).Localities(list, false, localityPolicy{}); len(got) != 1 {
		t.Errorf("a dual-stack proxy was given %v", got)
	}
}

func TestSidecarHosts(t *testing.T) {
	svc := &snapshot.MeshService{Host: "a.ns1.svc.cluster.local", Namespace: "ns1"}
	for _, tc := range []struct {
		hosts []string
		own   string
		want  bool
	}{
		{[]string{"*/*"}, "x", true},
		{[]string{"./*"}, "ns1", true},
		{[]string{"./*"}, "x", false},
		{[]string{"~/*"}, "ns1", false},
		{[]string{"ns1/a.ns1.svc.cluster.local"}, "x", true},
		{[]string{"ns1/*.svc.cluster.local"}, "x", true},
		{[]string{"ns2/*", "ns1/b.ns1.svc.cluster.local"}, "x", false},
		{[]string{"*.local"}, "x", true},
		{[]string{"*/*", "~ns1/*"}, "x", false},
		{[]string{"~ns1/*", "*/*"}, "x", false},
		{[]string{"*/*", "~ns2/*"}, "x", true},
		{[]string{"*/*", "~ns1/a.ns1.svc.cluster.local"}, "x", false},
		{[]string{"*/*", "~ns1/b.ns1.svc.cluster.local"}, "x", true},
		{[]string{"*/*", "~/a.ns1.svc.cluster.local"}, "x", false},
		{[]string{"*/*", "~/*.ns1.svc.cluster.local"}, "x", false},
		{[]string{"*/*", "~*/a.ns1.svc.cluster.local"}, "x", false},
		{[]string{"*/*", "~./*"}, "ns1", false},
		{[]string{"*/*", "~./*"}, "x", true},
		{[]string{"ns1/*", "~/*"}, "x", false},
		{[]string{"~ns2/*"}, "x", false},
	} {
		if got := (snapshot.EgressHosts{Hosts: tc.hosts, Own: tc.own}).Imports(svc.Namespace, svc.Host); got != tc.want {
			t.Errorf("hosts %v of %s: %v, want %v", tc.hosts, tc.own, got, tc.want)
		}
	}
}

// TestReachMatchesAssignments: ReachOf and assignments have the same endpoints.
func TestReachMatchesAssignments(t *testing.T) {
	obstacles := map[Obstacle]int{}
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 5))
		var list []snapshot.Endpoint
		for i := range r.IntN(12) {
			list = append(list, snapshot.Endpoint{
				Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Port: 80,
				Network: mesh.NetworkID([]string{"", "n0", "n1", "n2"}[r.IntN(4)]),
				Cluster: mesh.ClusterID(fmt.Sprint("c", r.IntN(3))),
				MTLS:    r.IntN(4) > 0, Health: snapshot.Health(r.IntN(4) / 3), Drained: r.IntN(8) == 0,
			})
		}
		if len(list) > 1 && r.IntN(4) == 0 {
			list[1].Address = list[0].Address
		}
		u := Assignments{
			Service: &snapshot.MeshService{Namespace: "ns", ExportTo: [][]string{nil, {"."}}[r.IntN(8)/7]}, gateways: randomGateways(r), network: mesh.NetworkID([]string{"", "n0", "n1"}[r.IntN(3)]),
			families: []proxy.Families{proxy.V4, proxy.V6}[r.IntN(8)/7], view: []string{"", "n0,n1"}[r.IntN(4)/3],
			cluster: mesh.ClusterID([]string{"", "c0"}[r.IntN(8)/7]), proxyless: r.IntN(8) == 0,
		}
		for _, mtlsOnly := range []bool{false, true} {
			want := map[string]bool{}
			for _, group := range u.Localities(list, mtlsOnly, localityPolicy{}) {
				for _, lb := range group.GetLbEndpoints() {
					addr := lb.GetEndpoint().GetAddress().GetSocketAddress()
					want[fmt.Sprint(addr.GetAddress(), ":", addr.GetPortValue())] = true
				}
			}
			got := map[string]bool{}
			for _, reach := range u.reach(list, mtlsOnly) {
				obstacles[reach.Obstacle]++
				if reach.Obstacle != "" {
					continue
				}
				if len(reach.Gateways) == 0 {
					got[fmt.Sprint(reach.Endpoint.Address, ":", reach.Endpoint.Port)] = true
				}
				for _, g := range reach.Gateways {
					got[fmt.Sprint(g.Address, ":", g.Port)] = true
				}
			}
			if !maps.Equal(got, want) {
				t.Fatalf("seed %d, by server name %v: ReachOf gives %v, the assignment %v", seed, mtlsOnly, got, want)
			}
		}
	}
	for _, o := range []Obstacle{
		"", ObstacleCluster, ObstacleView, ObstaclePlaintext, ObstacleHealth, ObstacleNoGateway, ObstaclePrivate, ObstacleFamily, ObstacleProxyless, ObstacleTwin, ObstacleDrained,
	} {
		if obstacles[o] == 0 {
			t.Errorf("no endpoint has obstacle %q", o)
		}
		if o != "" && o.String() == string(o) {
			t.Errorf("obstacle %q has no words", o)
		}
	}
}
