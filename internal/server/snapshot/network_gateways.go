package snapshot

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Gateways holds the east-west gateways of the mesh. A mesh with one network has
// none.
type Gateways struct {
	// ByNetwork holds the gateways of each network, sorted by address and port.
	ByNetwork map[mesh.NetworkID][]NetworkGateway
}

// NetworkGateway is an address through which other networks reach a network.
type NetworkGateway struct {
	Network mesh.NetworkID
	Cluster mesh.ClusterID // empty for an address of meshNetworks
	// Namespace is the namespace of the gateway's Service or Gateway object. It is
	// empty for an address of meshNetworks.
	Namespace string
	Address   netip.Addr
	Port      uint32
}

// For returns the gateways that lead to an endpoint in network n and cluster c. g may be
// nil.
func (g *Gateways) For(n mesh.NetworkID, c mesh.ClusterID) []NetworkGateway {
	if g == nil {
		return nil
	}
	return GatewaysFor(slices.Values(g.ByNetwork[n]), n, c)
}

// GatewaysFor returns the gateways that lead to an endpoint in network n and cluster c:
// the gateways of its cluster, or all gateways of the network if the cluster has none.
func GatewaysFor(all iter.Seq[NetworkGateway], n mesh.NetworkID, c mesh.ClusterID) []NetworkGateway {
	var out []NetworkGateway
	own := false
	for g := range all {
		if g.Network != n || own && g.Cluster != c {
			continue
		}
		if !own && g.Cluster == c {
			own, out = true, out[:0]
		}
		out = append(out, g)
	}
	return out
}
