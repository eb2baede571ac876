package registry

import (
	"net/netip"
	"strconv"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// RefusedGateways are the addresses of gateways of one cluster that are not used.
type RefusedGateways struct {
	Number int
	// First are as many of them as are shown.
	First []RefusedGateway
}

// RefusedGateway is one of them.
type RefusedGateway struct {
	Network mesh.NetworkID
	// Address is ip:port, or what stands in its place.
	Address string
	Reason  string
}

// maxRefused is how many refused gateways of one cluster are shown.
const maxRefused = 16

// RefusedGateways are those of each cluster that has any. The result must not be
// changed.
func (r *Registry) RefusedGateways() map[mesh.ClusterID]RefusedGateways {
	if refused := r.refused.Load(); refused != nil {
		return *refused
	}
	return nil
}

// refuse notes that an address is not used.
func (b *builder) refuse(id mesh.ClusterID, g RefusedGateway) {
	all := b.refused[id]
	if all.Number++; len(all.First) < maxRefused {
		all.First = append(all.First, g)
	}
	b.refused[id] = all
	b.fault(g.Network, g.Address, id, g.Reason)
}

func (b *builder) refuseFound(g snapshot.NetworkGateway, reason string) {
	b.refuse(g.Cluster, RefusedGateway{g.Network, netip.AddrPortFrom(g.Address, uint16(g.Port)).String(), reason})
}

// noPort refuses all addresses of a service that lacks the port of gateways.
func (b *builder) noPort(svc *snapshot.Service, network mesh.NetworkID, port uint32) {
	for _, address := range svc.External {
		b.refuse(svc.Cluster, RefusedGateway{
			network, address, "service " + svc.Namespace + "/" + svc.Name + " does not expose port " + strconv.Itoa(int(port)),
		})
	}
}
