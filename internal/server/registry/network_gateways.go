package registry

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/order"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// foundGateways holds the east-west gateways of all networks, and what is wrong with
// others.
type foundGateways struct {
	usable  map[mesh.NetworkID][]snapshot.NetworkGateway // sorted by address and port
	refused map[mesh.ClusterID]RefusedGateways
	faults  map[mesh.NetworkID]*gatewayFaults
	// named holds the host names of gateways by cluster.
	named    map[mesh.ClusterID]set[string]
	warnings []warning
}

// warning is a line to log.
type warning struct {
	message string
	attrs   []any
}

func (f *foundGateways) warn(message string, attrs ...any) {
	f.warnings = append(f.warnings, warning{message, attrs})
}

func (f *foundGateways) equal(other *foundGateways) bool { return reflect.DeepEqual(f, other) }

func equalGateways(a, b *snapshot.Gateways) bool {
	return maps.EqualFunc(a.ByNetwork, b.ByNetwork, slices.Equal[[]snapshot.NetworkGateway])
}

// gatewaySearch collects gateways.
type gatewaySearch struct {
	*tables
	*foundGateways
	r   *derive.Reads
	all set[snapshot.NetworkGateway]
}

// findGateways finds all east-west gateways: labelled Services and Kubernetes Gateways of
// all clusters, and the gateways in meshNetworks.
func (t *tables) findGateways(r *derive.Reads) *foundGateways {
	s := &gatewaySearch{tables: t, r: r, all: set[snapshot.NetworkGateway]{}, foundGateways: &foundGateways{
		usable: make(map[mesh.NetworkID][]snapshot.NetworkGateway), refused: make(map[mesh.ClusterID]RefusedGateways),
		faults: make(map[mesh.NetworkID]*gatewayFaults), named: make(map[mesh.ClusterID]set[string]),
	}}
	for _, svc := range t.labelled.Lookup(r, struct{}{}) {
		s.service(mesh.NetworkID(svc.Labels[mesh.LabelNetwork]), svc, 0)
	}
	s.kubeGateways()
	s.settingsGateways()
	for _, g := range s.choose() {
		s.usable[g.Network] = append(s.usable[g.Network], g)
	}
	return s.foundGateways
}

func compareGateways(x, y snapshot.NetworkGateway) int {
	return cmp.Or(cmp.Compare(x.Network, y.Network), x.Address.Compare(y.Address),
		cmp.Compare(x.Port, y.Port), cmp.Compare(x.Cluster, y.Cluster), cmp.Compare(x.Namespace, y.Namespace))
}

// service adds the external addresses of a Service. Port 0 stands for the port in the
// Service's label, or for 15443, which the Service must expose.
func (s *gatewaySearch) service(network mesh.NetworkID, svc *snapshot.Service, port uint32) {
	c := svc.Cluster
	if port == 0 {
		port = mesh.PortEastWest
		if label := svc.Labels[mesh.LabelGatewayPort]; label != "" {
			n, err := strconv.ParseUint(label, 10, 16)
			if err != nil || n == 0 {
				reason := fmt.Sprintf("its label %s: %q is not a port", mesh.LabelGatewayPort, label)
				s.warnUnusable(svc, reason)
				s.fault(network, "Service "+svc.Namespace+"/"+svc.Name, c, reason)
				return
			}
			port = uint32(n)
		}
		if !slices.ContainsFunc(svc.Ports, func(p snapshot.ServicePort) bool { return p.Number == port }) {
			s.warnUnusable(svc, fmt.Sprintf("it is labelled as the gateway of network %s but does not expose port %d", network, port))
			s.noPort(svc, network, port)
			return
		}
	}
	if svc.NodePorts != nil {
		s.nodes(network, svc, port)
		return
	}
	if len(svc.External) == 0 {
		s.refuse(c, RefusedGateway{network, "Service " + svc.Namespace + "/" + svc.Name, refusedServiceAddress})
	}
	for _, ext := range svc.External {
		for _, addr := range s.addressesOf(c, network, ext) {
			s.all.add(snapshot.NetworkGateway{Network: network, Cluster: c, Namespace: svc.Namespace, Address: addr, Port: port})
		}
	}
}

// nodes adds the external addresses of the nodes that a Service selects.
func (s *gatewaySearch) nodes(network mesh.NetworkID, svc *snapshot.Service, port uint32) {
	var addresses []netip.Addr
	for _, n := range s.nodesIn.Lookup(s.r, svc.Cluster) {
		if snapshot.Selects(svc.NodePorts.Selector, n.Labels) {
			addresses = append(addresses, n.External...)
		}
	}
	nodePort, reason := svc.NodePorts.Ports[port], ""
	switch {
	case len(addresses) == 0:
		reason = refusedNodes
	case nodePort == 0:
		reason = fmt.Sprintf("port %d has no nodePort", port)
	}
	if reason != "" {
		s.refuse(svc.Cluster, RefusedGateway{network, "Service " + svc.Namespace + "/" + svc.Name, reason})
		return
	}
	for _, addr := range addresses {
		s.all.add(snapshot.NetworkGateway{Network: network, Cluster: svc.Cluster, Namespace: svc.Namespace, Address: addr, Port: nodePort})
	}
}

func (s *gatewaySearch) warnUnusable(svc *snapshot.Service, reason string) {
	s.warn("service cannot be a network gateway", "service", svc.Namespace+"/"+svc.Name,
		"cluster", svc.Cluster, "place", svc.Place.String(), "reason", reason)
}

// kubeGateways adds the addresses of Gateways of the Kubernetes API. A remote Gateway
// counts only in the local cluster, where it is configuration.
func (s *gatewaySearch) kubeGateways() {
	for k, g := range s.allKubeGW.Lookup(s.r, struct{}{}) {
		if g.Remote && k.cluster != s.cfg.Local {
			continue
		}
		if len(g.Addresses) == 0 {
			s.refuse(k.cluster, RefusedGateway{g.Network, "Gateway " + g.Namespace + "/" + g.Name, refusedGatewayAddress})
		}
		for _, address := range g.Addresses {
			for _, addr := range s.addressesOf(k.cluster, g.Network, address) {
				for _, port := range g.Ports {
					s.all.add(snapshot.NetworkGateway{Network: g.Network, Cluster: k.cluster, Namespace: g.Namespace, Address: addr, Port: port})
				}
			}
		}
	}
}

// settingsGateways adds the gateways in meshNetworks: addresses, or Services of the
// clusters of the network.
func (s *gatewaySearch) settingsGateways() {
	for network, settings := range s.networkSettings(s.r) {
		id := mesh.NetworkID(network)
		for _, g := range settings.GetGateways() {
			host := g.GetRegistryServiceName()
			if host == "" {
				for _, addr := range s.addressesOf(s.cfg.Local, id, g.GetAddress()) {
					s.all.add(snapshot.NetworkGateway{Network: id, Address: addr, Port: g.GetPort()})
				}
				continue
			}
			known := false
			for _, svc := range s.servicesOf.Lookup(s.r, host) {
				for _, e := range settings.GetEndpoints() {
					if mesh.ClusterID(e.GetFromRegistry()) == svc.Cluster {
						s.service(id, svc, g.GetPort())
						known = true
					}
				}
			}
			if !known {
				s.faultsOf(id).texts.add("meshNetworks names the Service " + host + ", which no cluster of the network has")
			}
		}
	}
}

// maxGateways is the number of gateway addresses that a remote cluster may have.
const maxGateways = 64

// choose returns the usable gateways in order. It refuses gateways of remote clusters that
// have the address of a local service or exceed maxGateways.
func (s *gatewaySearch) choose() []snapshot.NetworkGateway {
	number := make(map[mesh.ClusterID]int)
	var out []snapshot.NetworkGateway
	sorted := slices.CompactFunc(order.Collect(maps.Keys(s.all), compareGateways), func(x, y snapshot.NetworkGateway) bool {
		x.Namespace = y.Namespace
		return x == y // a Service and a Gateway in two namespaces may have one address
	})
	for _, g := range sorted {
		remote := g.Cluster != "" && g.Cluster != s.cfg.Local
		if remote && s.isLocalVIP(s.r, g.Address) {
			s.warn("gateway of a remote cluster has the address of a local service: it is not used",
				"cluster", g.Cluster, "network", g.Network, "address", g.Address.String())
			s.refuseFound(g, refusedLocalService)
			continue
		}
		if number[g.Cluster]++; remote && number[g.Cluster] > maxGateways {
			s.refuseFound(g, refusedTooMany())
			continue
		}
		out = append(out, g)
	}
	for _, id := range slices.Sorted(maps.Keys(number)) {
		if n := number[id]; n > maxGateways && id != "" && id != s.cfg.Local {
			s.warn("cluster has too many gateway addresses: the first ones by network and address are used",
				"cluster", id, "addresses", n, "used", maxGateways)
		}
	}
	return out
}

// isLocalVIP reports whether a Service of the local cluster has the address.
func (t *tables) isLocalVIP(r *derive.Reads, addr netip.Addr) bool {
	for k := range t.servicesAt.Lookup(r, addr) {
		if k.cluster == t.cfg.Local {
			return true
		}
	}
	return false
}

// takesLocalAddress reports whether an endpoint of a remote cluster has the cluster IP
// of a local Service, and proxies would call it directly: the calls would reach the
// local Service. Proxies of an unknown network also call a network without gateways
// directly.
func (t *tables) takesLocalAddress(r *derive.Reads, c mesh.ClusterID, addr netip.Addr, network mesh.NetworkID) bool {
	if c == t.cfg.Local || !t.isLocalVIP(r, addr) {
		return false
	}
	local, _ := t.networks.Get(r, t.cfg.Local)
	return network == local || len(t.meshGateways.Get(r).For(network, c)) == 0
}
