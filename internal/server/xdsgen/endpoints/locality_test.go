package endpoints

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// TestLocalityPolicy compares assignments as lines "priority region/zone/subzone weight:
// addresses" for a client in r1/z1/s1.
func TestLocalityPolicy(t *testing.T) {
	client := Place{locality: mesh.ParseLocality("r1/z1/s1"), labels: wire.SortedEntries(map[string]string{
		"version": "v1", mesh.LabelNetwork: "n1", mesh.LabelRegion: "r1", mesh.LabelZone: "z1",
	})}
	ep := func(n byte, at string, change ...func(*snapshot.Endpoint)) snapshot.Endpoint {
		e := snapshot.Endpoint{
			Address: netip.AddrFrom4([4]byte{10, 0, 0, n}), Port: 80, Cluster: "c1", Network: "n1", MTLS: true, Locality: mesh.ParseLocality(at),
		}
		for _, f := range change {
			f(&e)
		}
		return e
	}
	label := func(v string) func(*snapshot.Endpoint) {
		return func(e *snapshot.Endpoint) { e.Labels = map[string]string{"version": v} }
	}
	remote := func(e *snapshot.Endpoint) { e.Network = "n2" }
	demoted := func(e *snapshot.Endpoint) { e.Demoted = true }
	weight := func(w uint32) func(*snapshot.Endpoint) { return func(e *snapshot.Endpoint) { e.Weight = w } }
	distribute := func(from string, to map[string]uint32) *networkingv1alpha3.LocalityLoadBalancerSetting {
		return &networkingv1alpha3.LocalityLoadBalancerSetting{Distribute: []*networkingv1alpha3.LocalityLoadBalancerSetting_Distribute{{From: from, To: to}}}
	}
	priority := func(labels ...string) *networkingv1alpha3.LocalityLoadBalancerSetting {
		return &networkingv1alpha3.LocalityLoadBalancerSetting{FailoverPriority: labels}
	}
	failover := []*networkingv1alpha3.LocalityLoadBalancerSetting_Failover{{From: "r2", To: "r9"}, {From: "r1", To: "r3"}}
	everywhere := []snapshot.Endpoint{ep(1, "r1/z1/s1"), ep(2, "r1/z1/s2"), ep(3, "r1/z2"), ep(4, "r2"), ep(5, "r3")}
	u := Assignments{Service: public, families: proxy.V4, network: "n1", gateways: wire.ListOf([]snapshot.NetworkGateway{
		{Network: "n2", Cluster: "c2", Address: netip.MustParseAddr("192.0.2.2"), Port: 15443},
	})}
	for _, tt := range []struct {
		name    string
		setting *networkingv1alpha3.LocalityLoadBalancerSetting
		outlier bool
		list    []snapshot.Endpoint
		want    []string
	}{
		{"disabled", nil, true, everywhere[2:4], []string{"0 r1/z2 1: 10.0.0.3", "0 r2 1: 10.0.0.4"}},
		{"no outlier detection", priority("version"), false, everywhere[2:4], []string{"0 r1/z2 1: 10.0.0.3", "0 r2 1: 10.0.0.4"}},
		{
			"nearest first", &networkingv1alpha3.LocalityLoadBalancerSetting{}, true, everywhere,
			[]string{"0 r1/z1/s1 1: 10.0.0.1", "1 r1/z1/s2 1: 10.0.0.2", "2 r1/z2 1: 10.0.0.3", "3 r2 1: 10.0.0.4", "3 r3 1: 10.0.0.5"},
		},
		{
			"no gaps", &networkingv1alpha3.LocalityLoadBalancerSetting{}, true,
			[]snapshot.Endpoint{everywhere[2], everywhere[4]},
			[]string{"0 r1/z2 1: 10.0.0.3", "1 r3 1: 10.0.0.5"},
		},
		{
			"another region first", &networkingv1alpha3.LocalityLoadBalancerSetting{Failover: failover}, true, everywhere[2:],
			[]string{"0 r1/z2 1: 10.0.0.3", "1 r3 1: 10.0.0.5", "2 r2 1: 10.0.0.4"},
		},
		{
			"demoted clusters last", &networkingv1alpha3.LocalityLoadBalancerSetting{}, true,
			[]snapshot.Endpoint{ep(1, "r1/z1/s1", demoted), ep(2, "r2")},
			[]string{"0 r2 1: 10.0.0.2", "1 r1/z1/s1 1: 10.0.0.1"},
		},
		{
			"by labels", priority(mesh.LabelRegion, "version"), true,
			[]snapshot.Endpoint{ep(1, "r1/z1/s1", label("v2")), ep(2, "r1/z1/s1", label("v1")), ep(3, "r2", label("v1"))},
			[]string{"0 r1/z1/s1 1: 10.0.0.2", "1 r1/z1/s1 1: 10.0.0.1", "2 r2 1: 10.0.0.3"},
		},
		{
			"by a fixed value", priority("version=v2"), true,
			[]snapshot.Endpoint{ep(1, "r1", label("v1")), ep(2, "r1", label("v2"))},
			[]string{"0 r1 1: 10.0.0.2", "1 r1 1: 10.0.0.1"},
		},
		{
			"another network after the whole own one", priority(mesh.LabelNetwork, mesh.LabelRegion), true,
			[]snapshot.Endpoint{ep(1, "r2"), ep(2, "r1", remote)},
			[]string{"0 r2 1: 10.0.0.1", "1 r1 1: 192.0.2.2"},
		},
		{
			"labels, then localities",
			&networkingv1alpha3.LocalityLoadBalancerSetting{FailoverPriority: []string{"version"}, Failover: failover}, true,
			[]snapshot.Endpoint{ep(1, "r2", label("v1")), ep(2, "r1", label("v2")), ep(3, "r3", label("v1"))},
			[]string{"0 r3 1: 10.0.0.3", "1 r2 1: 10.0.0.1", "2 r1 1: 10.0.0.2"},
		},
		{
			"distribute", distribute("r1/z1/*", map[string]uint32{"r1/*": 80, "r2": 20}), false, everywhere,
			[]string{"0 r1/z1/s1 27: 10.0.0.1", "0 r1/z1/s2 27: 10.0.0.2", "0 r1/z2 27: 10.0.0.3", "0 r2 20: 10.0.0.4"},
		},
		{
			"distribute by weights", distribute("*", map[string]uint32{"r1/*": 90, "r3": 10}), true,
			[]snapshot.Endpoint{ep(1, "r1/z1", weight(2)), ep(2, "r1/z2"), ep(3, "r3"), ep(4, "r3")},
			[]string{"0 r1/z1 60: 10.0.0.1", "0 r1/z2 30: 10.0.0.2", "0 r3 10: 10.0.0.3 10.0.0.4"},
		},
		{
			"distribute to gateways", distribute("r1", map[string]uint32{"r1": 70, "r2": 20, "r3": 10}), false,
			[]snapshot.Endpoint{ep(1, "r1"), ep(2, "r2", remote), ep(3, "r3", remote), ep(4, "r4", remote)},
			[]string{"0 r1 70: 10.0.0.1", "0 r2 30: 192.0.2.2"},
		},
		{"distribute for other clients", distribute("r2", map[string]uint32{"r3": 100}), true, everywhere[:1], []string{"0 r1/z1/s1 1: 10.0.0.1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, l := range u.Localities(tt.list, false, client.Policy(tt.setting, tt.outlier)) {
				at := l.GetLocality()
				line := fmt.Sprintf("%d %s %d:", l.GetPriority(), mesh.Locality{Region: at.GetRegion(), Zone: at.GetZone(), Subzone: at.GetSubZone()}, l.GetLoadBalancingWeight().GetValue())
				for _, e := range l.GetLbEndpoints() {
					line += " " + e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()
				}
				got = append(got, line)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

// TestPolicyWithoutOwnLabels: a policy with values for all labels reads none of the client.
func TestPolicyWithoutOwnLabels(t *testing.T) {
	setting := &networkingv1alpha3.LocalityLoadBalancerSetting{FailoverPriority: []string{"version=v2"}}
	if got := (Place{}).Policy(setting, true); got.Labels != wire.ListOf([]wire.Entry[string, string]{{Key: "version", Value: "v2"}}) {
		t.Errorf("got %+v", got)
	}
}

// TestPlaceIsShared: clients of all localities share views unless a rule needs localities.
func TestPlaceIsShared(t *testing.T) {
	s := &snapshot.Snapshot{Mesh: &snapshot.Mesh{}, Localities: (*snapshot.Table[string, mesh.Locality])(nil).With(map[string]*mesh.Locality{
		snapshot.NodeKey("c1", "n1"): {Region: "r1"}, snapshot.WorkloadEntryKey("c1", "ns", "vm"): {Region: "r2"},
	})}
	s.Pods = s.Pods.With(map[string]*snapshot.Pod{"c1/ns/a": {Node: "n1"}, snapshot.WorkloadEntryKey("c1", "ns", "vm"): {}})
	node := func(name string) proxy.Node {
		return proxy.Node{ID: mesh.NodeID{Name: name}, Namespace: "ns", Cluster: "c1"}
	}
	labelled, entry, known := node("b"), node("vm"), node("a")
	labelled.Labels = map[string]string{mesh.LabelLocality: "r3.z3"}
	entry.WorkloadEntry = "vm"
	known.Locality = mesh.Locality{Region: "r4"}
	for _, localities := range []bool{false, true} {
		s.RuleTraits.Localities = localities
		for want, n := range map[string]proxy.Node{"r1": node("a"), "r2": entry, "r3/z3": labelled, "r4": known, "": node("c")} {
			if !localities {
				want = ""
			}
			pod, labels := proxy.PodOf(s, n)
			if got := clientPlace(s, n, pod, labels).locality.String(); got != want {
				t.Errorf("the locality of %s is %q, want %q", n.ID.Name, got, want)
			}
		}
	}
}

// TestReachByRules: the TLS mode of a DestinationRule, its minHealthPercent and the
// distribution of load decide which endpoints a proxy reaches.
func TestReachByRules(t *testing.T) {
	gateway := snapshot.NetworkGateway{Network: "n2", Cluster: "c2", Address: netip.MustParseAddr("192.0.2.2"), Port: 15443}
	list := []snapshot.Endpoint{
		{Address: netip.MustParseAddr("10.0.0.1"), Network: "n1", Locality: mesh.Locality{Region: "r1"}, MTLS: true},
		{Address: netip.MustParseAddr("10.0.0.2"), Network: "n1", Locality: mesh.Locality{Region: "r1"}, MTLS: true, Health: snapshot.Unhealthy},
		{Address: netip.MustParseAddr("10.0.0.3"), Network: "n2", Cluster: "c2", Locality: mesh.Locality{Region: "r2"}, MTLS: true},
	}
	for name, tt := range map[string]struct {
		policy *networkingv1alpha3.TrafficPolicy
		want   []Obstacle
	}{
		"no rule": {nil, []Obstacle{"", "", ""}},
		"DISABLE": {
			&networkingv1alpha3.TrafficPolicy{Tls: &networkingv1alpha3.ClientTLSSettings{Mode: networkingv1alpha3.ClientTLSSettings_DISABLE}},
			[]Obstacle{"", "", ObstaclePlaintext},
		},
		"minHealthPercent": {
			&networkingv1alpha3.TrafficPolicy{OutlierDetection: &networkingv1alpha3.OutlierDetection{MinHealthPercent: 10}},
			[]Obstacle{"", ObstacleUnready, ""},
		},
		"distribute": {
			&networkingv1alpha3.TrafficPolicy{LoadBalancer: &networkingv1alpha3.LoadBalancerSettings{LocalityLbSetting: &networkingv1alpha3.LocalityLoadBalancerSetting{
				Distribute: []*networkingv1alpha3.LocalityLoadBalancerSetting_Distribute{{From: "r1", To: map[string]uint32{"r2": 100}}},
			}}},
			[]Obstacle{ObstacleLocality, ObstacleLocality, ""},
		},
	} {
		s := &snapshot.Snapshot{
			Mesh:       &snapshot.Mesh{},
			Gateways:   &snapshot.Gateways{ByNetwork: map[mesh.NetworkID][]snapshot.NetworkGateway{"n2": {gateway}}},
			RuleTraits: snapshot.RuleTraits{Localities: true},
		}
		svc := &snapshot.MeshService{Key: "web", Host: "web", Ports: []snapshot.ServicePort{{Name: "http", Number: 80, Protocol: mesh.HTTP}}}
		s.Endpoints = s.Endpoints.With(map[string]*snapshot.Endpoints{"web": {ByPort: map[string][]snapshot.Endpoint{"http": list}, Networks: []mesh.NetworkID{"n2"}}})
		if tt.policy != nil {
			s.Rules = s.Rules.With(map[string]*snapshot.HostRules{"web": {Default: []*snapshot.HostRule{{Policy: tt.policy}}}})
		}
		n := proxy.Node{ID: mesh.NodeID{Type: mesh.Sidecar}, Network: "n1", Locality: mesh.Locality{Region: "r1"}, IPs: []netip.Addr{netip.MustParseAddr("10.0.0.9")}}
		ports, missing := ReachOf(s, n, svc)
		if missing != "" {
			t.Fatal(missing)
		}
		var got []Obstacle
		for _, r := range ports[0].Endpoints {
			got = append(got, r.Obstacle)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: obstacles %q, want %q", name, got, tt.want)
		}
	}
}
