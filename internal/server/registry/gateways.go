package registry

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// gateways finds the east-west gateways of every network anew: from labelled
// services and Kubernetes Gateways of all clusters and from meshNetworks.
func (b *builder) gateways() {
	if !b.dirty.gateways && b.next.Gateways != nil {
		return
	}
	b.refused = make(map[mesh.ClusterID]RefusedGateways)
	b.named = make(map[mesh.ClusterID]set[string])
	b.faults = make(map[mesh.NetworkID]*gatewayFaults)
	found := set[snapshot.NetworkGateway]{}
	for _, c := range b.clusters {
		for _, svc := range c.services {
			if network := svc.Labels[mesh.LabelNetwork]; network != "" {
				b.serviceGateways(found, c.id, mesh.NetworkID(network), svc, 0)
			}
		}
	}
	b.kubeGateways(found)
	b.settingsGateways(found)
	next := &snapshot.Gateways{ByNetwork: make(map[mesh.NetworkID][]snapshot.NetworkGateway)}
	for _, g := range b.withoutHostile(found) {
		next.ByNetwork[g.Network] = append(next.ByNetwork[g.Network], g)
	}
	if b.next.Gateways != nil && maps.EqualFunc(b.next.Gateways.ByNetwork, next.ByNetwork, slices.Equal[[]snapshot.NetworkGateway]) {
		return
	}
	if b.next.Gateways != nil {
		b.cfg.Log.Info("gateways changed, triggering push", "gateways", len(found))
	}
	b.next.Gateways = next
	b.changes.Everywhere = true
	for vip := range b.vips { // which networks are reached directly may have changed
		if b.isLocalVIP(vip) {
			b.touchRemoteAt(vip)
		}
	}
}

func compareGateways(x, y snapshot.NetworkGateway) int {
	return cmp.Or(cmp.Compare(x.Network, y.Network), x.Address.Compare(y.Address),
		cmp.Compare(x.Port, y.Port), cmp.Compare(x.Cluster, y.Cluster), cmp.Compare(x.Namespace, y.Namespace))
}

// serviceGateways adds the external addresses of a service. port 0 means the
// port that the service's label names, or 15443, which the service must
// expose.
func (b *builder) serviceGateways(found set[snapshot.NetworkGateway], c mesh.ClusterID, network mesh.NetworkID, svc *snapshot.Service, port uint32) {
	if port == 0 {
		port = mesh.PortEastWest
		if label := svc.Labels[mesh.LabelGatewayPort]; label != "" {
			n, err := strconv.ParseUint(label, 10, 16)
			if err != nil || n == 0 {
				b.report(svc, "label %s: %q is not a port", mesh.LabelGatewayPort, label)
				b.fault(network, "Service "+svc.Namespace+"/"+svc.Name, c, fmt.Sprintf("its label %s: %q is not a port", mesh.LabelGatewayPort, label))
				return
			}
			port = uint32(n)
		}
		if !slices.ContainsFunc(svc.Ports, func(p snapshot.ServicePort) bool { return p.Number == port }) {
			b.report(svc, "is labelled as the gateway of network %s but does not expose port %d", network, port)
			b.noPort(svc, network, port)
			return
		}
	}
	if len(svc.External) == 0 {
		b.refuse(c, RefusedGateway{network, "Service " + svc.Namespace + "/" + svc.Name, noAddress})
	}
	for _, ext := range svc.External {
		for _, addr := range b.standsFor(c, network, ext) {
			found.add(snapshot.NetworkGateway{Network: network, Cluster: c, Namespace: svc.Namespace, Address: addr, Port: port})
		}
	}
}

// noAddress is the fault of a Service that nobody outside its cluster can call.
const noAddress = "it has no address: neither its load balancer nor its externalIPs give it one"

// kubeGateways adds the addresses that Gateways of the Kubernetes API name. One
// that stands for a gateway of another cluster counts in the own one only, as
// the configuration that it is.
func (b *builder) kubeGateways(found set[snapshot.NetworkGateway]) {
	for _, c := range b.clusters {
		for _, g := range c.gateways {
			if g.Remote && c.id != b.cfg.Local {
				continue
			}
			if len(g.Addresses) == 0 {
				b.refuse(c.id, RefusedGateway{g.Network, "Gateway " + g.Namespace + "/" + g.Name, "it has no address in spec.addresses"})
			}
			for _, address := range g.Addresses {
				for _, addr := range b.standsFor(c.id, g.Network, address) {
					for _, port := range g.Ports {
						found.add(snapshot.NetworkGateway{Network: g.Network, Cluster: c.id, Namespace: g.Namespace, Address: addr, Port: port})
					}
				}
			}
		}
	}
}

func (b *builder) report(svc *snapshot.Service, format string, args ...any) {
	b.cfg.Log.Warn("service cannot be a network gateway", "service", svc.Namespace+"/"+svc.Name,
		"cluster", svc.Cluster, "place", svc.Place.String(), "reason", fmt.Sprintf(format, args...))
}

// settingsGateways adds the gateways that meshNetworks names: literal
// addresses, or services of the clusters of that network.
func (b *builder) settingsGateways(found set[snapshot.NetworkGateway]) {
	for network, settings := range b.networkSettings() {
		id := mesh.NetworkID(network)
		for _, g := range settings.GetGateways() {
			if g.GetRegistryServiceName() != "" {
				known := false
				for _, e := range settings.GetEndpoints() {
					c := b.clusters[mesh.ClusterID(e.GetFromRegistry())]
					if c == nil {
						continue
					}
					for n, svc := range c.services {
						if mesh.ServiceHost(n.name, n.namespace, b.next.Mesh.Domain) == g.GetRegistryServiceName() {
							b.serviceGateways(found, c.id, id, svc, g.GetPort())
							known = true
						}
					}
				}
				if !known {
					b.faultsOf(id).texts.add("meshNetworks names the Service " + g.GetRegistryServiceName() + ", which no cluster of the network has")
				}
				continue
			}
			for _, addr := range b.standsFor(b.cfg.Local, id, g.GetAddress()) {
				found.add(snapshot.NetworkGateway{Network: id, Address: addr, Port: g.GetPort()})
			}
		}
	}
}

// namedGateway reports whether meshNetworks names the service as a gateway.
func (s *state) namedGateway(n name) bool {
	local := s.cluster(s.cfg.Local)
	if local.settings == nil {
		return false
	}
	host := mesh.ServiceHost(n.name, n.namespace, mesh.DefaultDomain)
	for _, network := range local.settings.Networks.GetNetworks() {
		for _, g := range network.GetGateways() {
			if g.GetRegistryServiceName() == host {
				return true
			}
		}
	}
	return false
}

// maxGateways is how many addresses of gateways one cluster may have.
const maxGateways = 64

// withoutHostile leaves out the gateways of other clusters that have addresses
// of local services, and those that are more than a cluster may have.
func (b *builder) withoutHostile(found set[snapshot.NetworkGateway]) []snapshot.NetworkGateway {
	b.heldGateways = set[netip.Addr]{}
	number := make(map[mesh.ClusterID]int)
	var out []snapshot.NetworkGateway
	sorted := slices.CompactFunc(slices.SortedFunc(maps.Keys(found), compareGateways), func(x, y snapshot.NetworkGateway) bool {
		x.Namespace = y.Namespace
		return x == y // a Service and a Gateway of two namespaces may give one address
	})
	for _, g := range sorted {
		b.heldGateways.add(g.Address)
		remote := g.Cluster != "" && g.Cluster != b.cfg.Local
		if remote && b.isLocalVIP(g.Address) {
			b.cfg.Log.Warn("gateway of another cluster has the address of a service of this one: it is not used",
				"cluster", g.Cluster, "network", g.Network, "address", g.Address.String())
			b.refuseFound(g, "it is the address of a service of the own cluster")
			continue
		}
		if number[g.Cluster]++; remote && number[g.Cluster] > maxGateways {
			b.refuseFound(g, fmt.Sprintf("the cluster has more than %d addresses of gateways", maxGateways))
			continue
		}
		out = append(out, g)
	}
	for _, id := range slices.Sorted(maps.Keys(number)) {
		if n := number[id]; n > maxGateways && id != "" && id != b.cfg.Local {
			b.cfg.Log.Warn("cluster has too many addresses of gateways: the first by network and address are used",
				"cluster", id, "addresses", n, "used", maxGateways)
		}
	}
	return out
}
