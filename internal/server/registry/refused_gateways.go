package registry

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// RefusedGateways holds the gateway addresses of one cluster that are not used.
type RefusedGateways struct {
	Number int
	First  []RefusedGateway // at most maxRefused
}

// RefusedGateway is a gateway address that is not used.
type RefusedGateway struct {
	Network mesh.NetworkID
	// Address is ip:port, or the text or object in its place.
	Address string
	Reason  string
}

// Reasons of refused gateways. Reasons that depend on values are functions.
const (
	refusedServiceAddress = "it has no address: neither its load balancer nor its externalIPs have one"
	refusedNodes          = "none of the nodes that its annotation " + mesh.AnnotationNodeSelector + " selects has an address of type ExternalIP"
	refusedGatewayAddress = "it has no address in spec.addresses"
	refusedNotHost        = "it is neither an IP address nor a host name"
	refusedNotResolved    = "it is a host name, and host names are not resolved"
	refusedUnknownHost    = "no address of this host name is known"
	refusedLocalService   = "it is the address of a service of the local cluster"
)

func refusedAddressKind(addr netip.Addr, kind mesh.AddressKind) string {
	return "it resolves to " + addr.String() + ", which is a " + string(kind) + " address"
}

func refusedTooMany() string {
	return fmt.Sprintf("the cluster has more than %d gateway addresses", maxGateways)
}

// maxRefused is the number of refused gateways of a cluster that are listed.
const maxRefused = 16

// RefusedGateways returns the refused gateways of each cluster that has any. The caller
// must not change the result.
func (r *Registry) RefusedGateways() map[mesh.ClusterID]RefusedGateways {
	return r.report.Load().refused
}

// refuse notes that a gateway address of a cluster is not used.
func (f *foundGateways) refuse(id mesh.ClusterID, g RefusedGateway) {
	all := f.refused[id]
	if all.Number++; len(all.First) < maxRefused {
		all.First = append(all.First, g)
	}
	f.refused[id] = all
	f.fault(g.Network, g.Address, id, g.Reason)
}

func (f *foundGateways) refuseFound(g snapshot.NetworkGateway, reason string) {
	f.refuse(g.Cluster, RefusedGateway{g.Network, netip.AddrPortFrom(g.Address, uint16(g.Port)).String(), reason})
}

// noPort refuses all addresses of a Service that does not expose the gateway port.
func (f *foundGateways) noPort(svc *snapshot.Service, network mesh.NetworkID, port uint32) {
	for _, address := range svc.External {
		f.refuse(svc.Cluster, RefusedGateway{
			network, address, "service " + svc.Namespace + "/" + svc.Name + " does not expose port " + strconv.Itoa(int(port)),
		})
	}
}
