package snapshot

import (
	"net/netip"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Gateways are the east-west gateways of the mesh. The zero value means that
// there is one network.
type Gateways struct {
	ByNetwork map[mesh.NetworkID][]NetworkGateway
}

// For returns the gateways of the network, those of the cluster if it has
// its own. The list is sorted by address and port. g may be nil.
func (g *Gateways) For(n mesh.NetworkID, c mesh.ClusterID) []NetworkGateway {
	if g == nil {
		return nil
	}
	all := g.ByNetwork[n]
	var own []NetworkGateway
	for _, gw := range all {
		if gw.Cluster == c {
			own = append(own, gw)
		}
	}
	if len(own) > 0 {
		return own
	}
	return all
}

// NetworkGateway is one address under which a network is reached.
type NetworkGateway struct {
	Network mesh.NetworkID
	Cluster mesh.ClusterID // empty for gateways of meshNetworks
	// Namespace is that of the gateway's Service or Gateway, empty where it is not
	// known: for addresses in meshNetworks.
	Namespace string
	Address   netip.Addr
	Port      uint32
}
