package facts

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/meshctl/meshctl/internal/mesh"
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
	RefusedServiceAddress = "it has no address: neither its load balancer nor its externalIPs have one"
	RefusedNodes          = "none of the nodes that its annotation " + mesh.AnnotationNodeSelector + " selects has an address of type ExternalIP"
	refusedGatewayAddress = "it has no address in spec.addresses"
	refusedNotHost        = "it is neither an IP address nor a host name"
	refusedNotResolved    = "it is a host name, and host names are not resolved"
	RefusedUnknownHost    = "no address of this host name is known"
	refusedLocalService   = "it is the address of a service of the local cluster"
)

func refusedAddressKind(addr netip.Addr, kind mesh.AddressKind) string {
	return "it resolves to " + addr.String() + ", which is a " + string(kind) + " address"
}

func refusedTooMany() string {
	return fmt.Sprintf("the cluster has more than %d gateway addresses", MaxGateways)
}

// MaxRefused is the number of refused gateways of a cluster that are listed.
const MaxRefused = 16

// refuse notes that a gateway is not used, or not at all of its addresses.
func (f *foundGateways) refuse(g *Gateway, reason string) {
	f.refuseText(g, cmp.Or(g.Address, g.Source), reason)
}

// refuseAt notes that an address of gateways is not used.
func (f *foundGateways) refuseAt(at netip.AddrPort, gateways []*Gateway, reason string) {
	f.refuseText(gateways[0], at.String(), reason)
	for _, g := range gateways {
		g.Problem = reason
	}
}

func (f *foundGateways) refuseText(g *Gateway, text, reason string) {
	g.Problem = reason
	all := f.Refused[g.Cluster]
	if all.Number++; len(all.First) < MaxRefused {
		all.First = append(all.First, RefusedGateway{g.Network, text, reason})
	}
	f.Refused[g.Cluster] = all
	f.fault(g.Network, text, g.Cluster, reason)
}
