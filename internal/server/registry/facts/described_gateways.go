package facts

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Gateway is a gateway of a network as an object describes it, with the addresses that
// proxies get for it.
type Gateway struct {
	Network mesh.NetworkID `json:"network"`
	Cluster mesh.ClusterID `json:"cluster"`
	// Source is the object, such as "Service istio-system/eastwest", or "meshNetworks".
	Source string `json:"source"`
	// Address is an IP address or a host name. It is empty if the source has none.
	Address string `json:"address,omitempty"`
	// Used holds the addresses and ports that proxies get.
	Used []netip.AddrPort `json:"used,omitempty"`
	// Problem is the reason why proxies do not get the gateway, or not all of its addresses.
	Problem string `json:"problem,omitempty"`
	// Changed is when Used or Problem changed, or when the control plane first found the
	// gateway.
	Changed time.Time `json:"changed,omitzero"`
	// NextLookup is when the host name in Address is resolved again. Only the status page
	// sets it.
	NextLookup time.Time `json:"nextLookup,omitzero"`
}

func (g *Gateway) compare(other *Gateway) int {
	return cmp.Or(cmp.Compare(g.Network, other.Network), cmp.Compare(g.Cluster, other.Cluster),
		strings.Compare(g.Source, other.Source), strings.Compare(g.Address, other.Address))
}

// DescribeGateways returns the gateways with the times of their last changes. before is
// sorted.
func DescribeGateways(before []Gateway, found []*Gateway, now time.Time) []Gateway {
	out := make([]Gateway, len(found))
	for i, g := range found {
		out[i] = *g
		out[i].Changed = now
		at, known := slices.BinarySearchFunc(before, g, func(old Gateway, g *Gateway) int { return old.compare(g) })
		if !known {
			continue
		}
		if old := before[at]; old.Problem == g.Problem && slices.Equal(old.Used, g.Used) {
			out[i].Changed = old.Changed
		}
	}
	return out
}

// gateway starts the description of a gateway.
func (f *foundGateways) gateway(network mesh.NetworkID, c mesh.ClusterID, source, address string) *Gateway {
	g := &Gateway{Network: network, Cluster: c, Source: source, Address: address}
	f.Described = append(f.Described, g)
	return g
}

// sortDescribed sorts the descriptions, and joins those of one gateway: an object may have an
// address twice.
func (f *foundGateways) sortDescribed() {
	slices.SortStableFunc(f.Described, func(a, b *Gateway) int { return a.compare(b) })
	f.Described = slices.CompactFunc(f.Described, func(a, b *Gateway) bool { return a.compare(b) == 0 })
	for _, g := range f.Described {
		slices.SortFunc(g.Used, netip.AddrPort.Compare)
		g.Used = slices.Compact(g.Used)
	}
}

func (f *foundGateways) equal(other *foundGateways) bool { return reflect.DeepEqual(f, other) }
