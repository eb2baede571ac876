package registry

import (
	"bytes"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestUnreachableNetworks: when a network loses its only gateway, the network and the
// cause are logged once.
func TestUnreachableNetworks(t *testing.T) {
	far := pod("c2", "a", "10.2.0.1")
	mesh := []snapshot.Event{
		up(system("c1", "n1")), up(system("c2", "n2")), up(service("c2", "hello")), up(far), up(slice("c2", "hello", "x", far)),
		up(gateway("c2", "n2", "192.0.2.1")),
	}
	noPort := gateway("c2", "n2", "192.0.2.1")
	noPort.Ports = nil
	nodeLocal := service("c2", "hello")
	nodeLocal.NodeLocal = true
	badPort := gateway("c2", "n2", "192.0.2.1")
	badPort.Labels["networking.istio.io/gatewayPort"] = "x"
	named := &snapshot.MeshSettings{Meta: meta("c1", "istio-system", "istio"), Networks: &meshv1alpha1.MeshNetworks{Networks: map[string]*meshv1alpha1.Network{
		"n2": {
			Endpoints: []*meshv1alpha1.Network_NetworkEndpoints{{Ne: &meshv1alpha1.Network_NetworkEndpoints_FromRegistry{FromRegistry: "c2"}}},
			Gateways: []*meshv1alpha1.Network_IstioNetworkGateway{{
				Gw: &meshv1alpha1.Network_IstioNetworkGateway_RegistryServiceName{RegistryServiceName: "gw.istio-system.svc.cluster.local"},
			}},
		},
	}}}
	for _, tc := range []struct {
		name   string
		events []snapshot.Event
		want   string
	}{
		{"a gateway", nil, ""},
		{
			"deleted",
			[]snapshot.Event{down(gateway("c2", "n2"))},
			"no gateway is known: label the Service of its east-west gateway topology.istio.io/network=n2",
		},
		{
			"no address",
			[]snapshot.Event{up(gateway("c2", "n2"))},
			"Service istio-system/eastwest of cluster c2: it has no address: neither its load balancer nor its externalIPs have one",
		},
		{
			"a host name that cannot be resolved",
			[]snapshot.Event{up(gateway("c2", "n2", "gone.example"))},
			"gone.example of cluster c2: no address of this host name is known",
		},
		{"a host name that is being asked for", []snapshot.Event{up(gateway("c2", "n2", "late.example"))}, ""},
		{
			"no port",
			[]snapshot.Event{up(noPort)},
			"192.0.2.1 of cluster c2: Service istio-system/eastwest does not expose port 15443",
		},
		{
			"a port that is none",
			[]snapshot.Event{up(badPort)},
			`Service istio-system/eastwest of cluster c2: its label networking.istio.io/gatewayPort: "x" is not a port`,
		},
		{
			"a Service that meshNetworks names",
			[]snapshot.Event{down(gateway("c2", "n2")), up(named)},
			"meshNetworks names the Service gw.istio-system.svc.cluster.local, which no cluster of the network has",
		},
		{
			"many faults",
			[]snapshot.Event{up(gateway("c2", "n2", "a_", "b_", "c_", "d_", "e_"))},
			"a_ of cluster c2: it is neither an IP address nor a host name; b_ of cluster c2: it is neither an IP address nor a host name; " +
				"c_ of cluster c2: it is neither an IP address nor a host name; and 2 more",
		},
		{"no endpoints", []snapshot.Event{down(gateway("c2", "n2")), down(service("c2", "hello"))}, ""},
		{"endpoints for clients of their node alone", []snapshot.Event{down(gateway("c2", "n2")), up(nodeLocal)}, ""},
		{"one network", []snapshot.Event{down(gateway("c2", "n2")), up(system("c1", "n2"))}, ""},
		{"the other network is not known", []snapshot.Event{down(gateway("c2", "n2")), down(system("c1", "n1"))}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var log bytes.Buffer
			b := newTestState(t)
			b.s.cfg.Log, b.s.Cfg.ResolvesHosts = slog.New(slog.NewTextHandler(&log, nil)), true
			b.apply(mesh...)
			b.s.setHosts(map[string][]netip.Addr{"gone.example": nil})
			b.apply(tc.events...)
			b.apply(up(service("c1", "other"))) // a change of something else
			var want []facts.UnreachableNetwork
			if tc.want != "" {
				want = []facts.UnreachableNetwork{{Network: "n2", Cause: tc.want}}
			}
			if !slices.Equal(b.s.report.unreachable, want) {
				t.Errorf("unreachable are %+v, want %+v", b.s.report.unreachable, want)
			}
			if n := strings.Count(log.String(), `msg="network has no usable gateway`); n != len(want) {
				t.Errorf("%d warnings, want %d:\n%s", n, len(want), &log)
			}
			b.apply(up(gateway("c2", "n2", "192.0.2.1")), down(named))
			if len(b.s.report.unreachable) > 0 {
				t.Errorf("unreachable are %+v with a gateway", b.s.report.unreachable)
			}
			if got := strings.Contains(log.String(), `msg="network has a usable gateway again" network=n2`); got != (want != nil) {
				t.Errorf("the end is logged: %v\n%s", got, &log)
			}
		})
	}
}

// TestOwnNetworkWithoutGateway: a network without any gateway is reported only in other
// networks, because they may have no need to call it.
func TestOwnNetworkWithoutGateway(t *testing.T) {
	b := newTestState(t)
	near := pod("c1", "a", "10.1.0.1")
	b.apply(up(system("c1", "n1")), up(system("c2", "n2")), up(service("c1", "hello")), up(near), up(slice("c1", "hello", "x", near)))
	if len(b.s.report.unreachable) > 0 {
		t.Errorf("unreachable are %+v", b.s.report.unreachable)
	}
	b.apply(up(gateway("c1", "n1")))
	if len(b.s.report.unreachable) != 1 || b.s.report.unreachable[0].Network != "n1" {
		t.Errorf("unreachable are %+v, want n1, whose gateway has no address", b.s.report.unreachable)
	}
}
