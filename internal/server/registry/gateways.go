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

// gateways finds all east-west gateways: labelled Services and Kubernetes Gateways of
// all clusters, and the gateways in meshNetworks.
func (b *builder) gateways() {
	if !b.dirty.gateways && b.next.Gateways != nil {
		return
	}
	b.report.refused = make(map[mesh.ClusterID]RefusedGateways)
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
	for _, g := range b.usableGateways(found) {
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
	for vip := range b.vips { // whether proxies reach a network directly may have changed
		if b.isLocalVIP(vip) {
			b.markRemoteAt(vip)
		}
	}
}

func compareGateways(x, y snapshot.NetworkGateway) int {
	return cmp.Or(cmp.Compare(x.Network, y.Network), x.Address.Compare(y.Address),
		cmp.Compare(x.Port, y.Port), cmp.Compare(x.Cluster, y.Cluster), cmp.Compare(x.Namespace, y.Namespace))
}

// serviceGateways adds the external addresses of a Service. Port 0 stands for the port
// in the Service's label, or for 15443, which the Service must expose.
func (b *builder) serviceGateways(found set[snapshot.NetworkGateway], c mesh.ClusterID, network mesh.NetworkID, svc *snapshot.Service, port uint32) {
	if port == 0 {
		port = mesh.PortEastWest
		if label := svc.Labels[mesh.LabelGatewayPort]; label != "" {
			n, err := strconv.ParseUint(label, 10, 16)
			if err != nil || n == 0 {
				reason := fmt.Sprintf("its label %s: %q is not a port", mesh.LabelGatewayPort, label)
				b.warnUnusable(svc, reason)
				b.fault(network, "Service "+svc.Namespace+"/"+svc.Name, c, reason)
				return
			}
			port = uint32(n)
		}
		if !slices.ContainsFunc(svc.Ports, func(p snapshot.ServicePort) bool { return p.Number == port }) {
			b.warnUnusable(svc, fmt.Sprintf("it is labelled as the gateway of network %s but does not expose port %d", network, port))
			b.noPort(svc, network, port)
			return
		}
	}
	if len(svc.External) == 0 {
		b.refuse(c, RefusedGateway{network, "Service " + svc.Namespace + "/" + svc.Name, refusedServiceAddress})
	}
	for _, ext := range svc.External {
		for _, addr := range b.addressesOf(c, network, ext) {
			found.add(snapshot.NetworkGateway{Network: network, Cluster: c, Namespace: svc.Namespace, Address: addr, Port: port})
		}
	}
}

// kubeGateways adds the addresses of Gateways of the Kubernetes API. A remote Gateway
// counts only in the local cluster, where it is configuration.
func (b *builder) kubeGateways(found set[snapshot.NetworkGateway]) {
	for _, c := range b.clusters {
		for _, g := range c.gateways {
			if g.Remote && c.remote {
				continue
			}
			if len(g.Addresses) == 0 {
				b.refuse(c.id, RefusedGateway{g.Network, "Gateway " + g.Namespace + "/" + g.Name, refusedGatewayAddress})
			}
			for _, address := range g.Addresses {
				for _, addr := range b.addressesOf(c.id, g.Network, address) {
					for _, port := range g.Ports {
						found.add(snapshot.NetworkGateway{Network: g.Network, Cluster: c.id, Namespace: g.Namespace, Address: addr, Port: port})
					}
				}
			}
		}
	}
}

func (b *builder) warnUnusable(svc *snapshot.Service, reason string) {
	b.cfg.Log.Warn("service cannot be a network gateway", "service", svc.Namespace+"/"+svc.Name,
		"cluster", svc.Cluster, "place", svc.Place.String(), "reason", reason)
}

// settingsGateways adds the gateways in meshNetworks: addresses, or Services of the
// clusters of the network.
func (b *builder) settingsGateways(found set[snapshot.NetworkGateway]) {
	for network, settings := range b.networkSettings() {
		id := mesh.NetworkID(network)
		for _, g := range settings.GetGateways() {
			host := g.GetRegistryServiceName()
			if host == "" {
				for _, addr := range b.addressesOf(b.cfg.Local, id, g.GetAddress()) {
					found.add(snapshot.NetworkGateway{Network: id, Address: addr, Port: g.GetPort()})
				}
				continue
			}
			known := false
			for _, e := range settings.GetEndpoints() {
				c := b.clusters[mesh.ClusterID(e.GetFromRegistry())]
				if c == nil {
					continue
				}
				for n, svc := range c.services {
					if mesh.ServiceHost(n.name, n.namespace, b.next.Mesh.Domain) == host {
						b.serviceGateways(found, c.id, id, svc, g.GetPort())
						known = true
					}
				}
			}
			if !known {
				b.faultsOf(id).texts.add("meshNetworks names the Service " + host + ", which no cluster of the network has")
			}
		}
	}
}

// namedGateway reports whether meshNetworks names a service as a gateway.
func (s *state) namedGateway(n name) bool {
	settings := s.cluster(s.cfg.Local).settings
	if settings == nil {
		return false
	}
	host := mesh.ServiceHost(n.name, n.namespace, mesh.DefaultDomain)
	for _, network := range settings.Networks.GetNetworks() {
		for _, g := range network.GetGateways() {
			if g.GetRegistryServiceName() == host {
				return true
			}
		}
	}
	return false
}

// maxGateways is the number of gateway addresses that a remote cluster may have.
const maxGateways = 64

// usableGateways returns the gateways in order. It refuses gateways of remote clusters
// that have the address of a local service or exceed maxGateways.
func (b *builder) usableGateways(found set[snapshot.NetworkGateway]) []snapshot.NetworkGateway {
	b.gatewayIPs = set[netip.Addr]{}
	number := make(map[mesh.ClusterID]int)
	var out []snapshot.NetworkGateway
	sorted := slices.CompactFunc(slices.SortedFunc(maps.Keys(found), compareGateways), func(x, y snapshot.NetworkGateway) bool {
		x.Namespace = y.Namespace
		return x == y // a Service and a Gateway in two namespaces may have one address
	})
	for _, g := range sorted {
		b.gatewayIPs.add(g.Address)
		remote := g.Cluster != "" && g.Cluster != b.cfg.Local
		if remote && b.isLocalVIP(g.Address) {
			b.cfg.Log.Warn("gateway of a remote cluster has the address of a local service: it is not used",
				"cluster", g.Cluster, "network", g.Network, "address", g.Address.String())
			b.refuseFound(g, refusedLocalService)
			continue
		}
		if number[g.Cluster]++; remote && number[g.Cluster] > maxGateways {
			b.refuseFound(g, refusedTooMany())
			continue
		}
		out = append(out, g)
	}
	for _, id := range slices.Sorted(maps.Keys(number)) {
		if n := number[id]; n > maxGateways && id != "" && id != b.cfg.Local {
			b.cfg.Log.Warn("cluster has too many gateway addresses: the first ones by network and address are used",
				"cluster", id, "addresses", n, "used", maxGateways)
		}
	}
	return out
}
