package endpoints

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// TestClusterBalancing compares assignments as lines "address weight", with a priority
// other than 0 in front.
func TestClusterBalancing(t *testing.T) {
	ep := func(n byte, c mesh.ClusterID, change ...func(*snapshot.Endpoint)) snapshot.Endpoint {
		e := snapshot.Endpoint{
			Address: netip.AddrFrom4([4]byte{10, 0, 0, n}), Port: 80, Cluster: c, MTLS: true,
			Locality: mesh.Locality{Region: string(c)},
		}
		for _, f := range change {
			f(&e)
		}
		return e
	}
	drained := func(e *snapshot.Endpoint) { e.Drained = true }
	demoted := func(e *snapshot.Endpoint) { e.Demoted = true }
	unhealthy := func(e *snapshot.Endpoint) { e.Health = snapshot.Unhealthy }
	plaintext := func(e *snapshot.Endpoint) { e.MTLS = false }
	weight := func(w uint32) func(*snapshot.Endpoint) { return func(e *snapshot.Endpoint) { e.Weight = w } }
	on := func(n mesh.NetworkID) func(*snapshot.Endpoint) { return func(e *snapshot.Endpoint) { e.Network = n } }
	two := wire.ListOf([]snapshot.NetworkGateway{
		{Network: "n1", Cluster: "c1", Address: netip.MustParseAddr("192.0.2.1"), Port: 15443},
		{Network: "n2", Cluster: "c2", Address: netip.MustParseAddr("192.0.2.2"), Port: 15443},
	})
	near := Assignments{Service: public, families: proxy.V4}
	n1 := Assignments{Service: public, families: proxy.V4, gateways: two, network: "n1"}
	dual := Assignments{Service: public, families: proxy.V4, network: "n1", gateways: wire.ListOf([]snapshot.NetworkGateway{
		{Network: "n2", Cluster: "c2", Address: netip.MustParseAddr("192.0.2.2"), Port: 15443},
		{Network: "n2", Cluster: "c2", Address: netip.MustParseAddr("192.0.2.3"), Port: 15443},
		{Network: "n2", Cluster: "c2", Address: netip.MustParseAddr("2001:db8::2"), Port: 15443},
	})}
	tests := []struct {
		name string
		from Assignments
		list []snapshot.Endpoint
		want []string
	}{
		{"drained", near, []snapshot.Endpoint{ep(1, "c1"), ep(2, "c2", drained)}, []string{"10.0.0.1 1"}},
		{"drained, no others", near, []snapshot.Endpoint{ep(1, "c2", drained), ep(2, "c2", drained)}, []string{"10.0.0.1 1", "10.0.0.2 1"}},
		{"drained, the others are not healthy", near, []snapshot.Endpoint{ep(1, "c1", unhealthy), ep(2, "c2", drained)}, []string{"10.0.0.1 1", "10.0.0.2 1"}},
		{"drained, the others cannot be reached", n1, []snapshot.Endpoint{ep(1, "c1", on("n1"), drained), ep(2, "c2", on("n2"), plaintext)}, []string{"10.0.0.1 1"}},
		{"drained behind a gateway", n1, []snapshot.Endpoint{ep(1, "c1", on("n1")), ep(2, "c2", on("n2"), drained)}, []string{"10.0.0.1 1"}},
		{"the own cluster is drained", n1, []snapshot.Endpoint{ep(1, "c1", on("n1"), drained), ep(2, "c2", on("n2"))}, []string{"192.0.2.2 1"}},
		{
			"a gateway of the drained cluster",
			Assignments{Service: public, families: proxy.V4, gateways: two, network: "n2", view: "n2", passthrough: true},
			[]snapshot.Endpoint{ep(1, "c1", on("n1")), ep(2, "c2", on("n2"), drained)},
			[]string{"10.0.0.2 1"},
		},
		{"demoted", near, []snapshot.Endpoint{ep(1, "c0", demoted), ep(2, "c1")}, []string{"10.0.0.2 1", "1: 10.0.0.1 1"}},
		{"all demoted", near, []snapshot.Endpoint{ep(1, "c0", demoted), ep(2, "c1", demoted)}, []string{"10.0.0.1 1", "10.0.0.2 1"}},
		{"demoted behind a gateway", n1, []snapshot.Endpoint{ep(1, "c1", on("n1")), ep(2, "c2", on("n2"), demoted)}, []string{"10.0.0.1 1", "1: 192.0.2.2 1"}},
		{
			"a gateway of a cluster and of a demoted one", n1,
			[]snapshot.Endpoint{ep(1, "c1", on("n1")), ep(2, "c2", on("n2")), ep(3, "c3", on("n2"), demoted), ep(4, "c3", on("n2"), demoted)},
			[]string{"10.0.0.1 1", "192.0.2.2 1", "1: 192.0.2.2 2"},
		},
		{
			"some gateways are usable", dual,
			[]snapshot.Endpoint{ep(1, "c1", on("n1")), ep(2, "c2", on("n2"))},
			[]string{"10.0.0.1 2", "192.0.2.2 1", "192.0.2.3 1"},
		},
		{"weights", n1, []snapshot.Endpoint{ep(1, "c1", on("n1"), weight(2)), ep(2, "c2", on("n2"), weight(1)), ep(3, "c2", on("n2"), weight(1))}, []string{"10.0.0.1 2", "192.0.2.2 2"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := balance(tt.from.Localities(tt.list, false, localityPolicy{})); !slices.Equal(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func balance(localities []*endpointv3.LocalityLbEndpoints) []string {
	var out []string
	for _, l := range localities {
		for _, e := range l.GetLbEndpoints() {
			text := fmt.Sprintf("%s %d", e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress(), e.GetLoadBalancingWeight().GetValue())
			if p := l.GetPriority(); p > 0 {
				text = fmt.Sprintf("%d: %s", p, text)
			}
			out = append(out, text)
		}
	}
	return out
}
