package facts

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// foundGateways holds the east-west gateways of all networks, and what is wrong with
// others.
type foundGateways struct {
	usable  map[mesh.NetworkID][]snapshot.NetworkGateway // sorted by address and port
	Refused map[mesh.ClusterID]RefusedGateways
	faults  map[mesh.NetworkID]*gatewayFaults
	// named holds the host names of gateways by cluster and namespace.
	named     map[mesh.ClusterID]map[string]Set[string]
	Warnings  []Warning
	Described []*Gateway // sorted
}

// Warning is a line to log.
type Warning struct {
	Message string
	Attrs   []any
}

func (f *foundGateways) warn(message string, attrs ...any) {
	f.Warnings = append(f.Warnings, Warning{message, attrs})
}

func equalGateways(a, b *snapshot.Gateways) bool {
	return maps.EqualFunc(a.ByNetwork, b.ByNetwork, slices.Equal[[]snapshot.NetworkGateway])
}

// gatewaySearch collects gateways.
type gatewaySearch struct {
	*Tables
	*foundGateways
	r *derive.Reads
	// all holds the gateways with their descriptions.
	all map[snapshot.NetworkGateway][]*Gateway
}

// findGateways finds all east-west gateways: labelled Services and Kubernetes Gateways of
// all clusters, and the gateways in meshNetworks.
func (t *Tables) findGateways(r *derive.Reads) *foundGateways {
	s := &gatewaySearch{Tables: t, r: r, all: make(map[snapshot.NetworkGateway][]*Gateway), foundGateways: &foundGateways{
		usable: make(map[mesh.NetworkID][]snapshot.NetworkGateway), Refused: make(map[mesh.ClusterID]RefusedGateways),
		faults: make(map[mesh.NetworkID]*gatewayFaults), named: make(map[mesh.ClusterID]map[string]Set[string]),
	}}
	for _, svc := range t.labelled.Lookup(r, struct{}{}) {
		s.service(mesh.NetworkID(svc.Labels[mesh.LabelNetwork]), svc, 0)
	}
	s.kubeGateways()
	s.settingsGateways()
	for _, g := range s.choose() {
		s.usable[g.Network] = append(s.usable[g.Network], g)
	}
	s.sortDescribed()
	return s.foundGateways
}

func compareGateways(x, y snapshot.NetworkGateway) int {
	return cmp.Or(cmp.Compare(x.Network, y.Network), x.Address.Compare(y.Address),
		cmp.Compare(x.Port, y.Port), cmp.Compare(x.Cluster, y.Cluster), cmp.Compare(x.Namespace, y.Namespace))
}

func sameAddress(x, y snapshot.NetworkGateway) bool {
	x.Namespace = y.Namespace
	return x == y
}

// service adds the external addresses of a Service. Port 0 stands for the port in the
// Service's label, or for 15443, which the Service must expose.
func (s *gatewaySearch) service(network mesh.NetworkID, svc *snapshot.Service, port uint32) {
	source := "Service " + svc.Namespace + "/" + svc.Name
	if port == 0 {
		port = mesh.PortEastWest
		if label := svc.Labels[mesh.LabelGatewayPort]; label != "" {
			n, err := strconv.ParseUint(label, 10, 16)
			if err != nil || n == 0 {
				reason := fmt.Sprintf("its label %s: %q is not a port", mesh.LabelGatewayPort, label)
				s.warnUnusable(svc, reason)
				s.gateway(network, svc.Cluster, source, "").Problem = reason
				s.fault(network, source, svc.Cluster, reason)
				return
			}
			port = uint32(n)
		}
		if !slices.ContainsFunc(svc.Ports, func(p snapshot.ServicePort) bool { return p.Number == port }) {
			s.warnUnusable(svc, fmt.Sprintf("it is labelled as the gateway of network %s but does not expose port %d", network, port))
			addresses := svc.External
			if len(addresses) == 0 {
				addresses = []string{""}
			}
			for _, address := range addresses {
				s.refuse(s.gateway(network, svc.Cluster, source, address), fmt.Sprintf("%s does not expose port %d", source, port))
			}
			return
		}
	}
	if svc.NodePorts != nil {
		s.nodes(network, svc, source, port)
		return
	}
	if len(svc.External) == 0 {
		s.refuse(s.gateway(network, svc.Cluster, source, ""), RefusedServiceAddress)
	}
	for _, address := range svc.External {
		s.add(s.gateway(network, svc.Cluster, source, address), svc.Cluster, svc.Namespace, port)
	}
}

// add adds the addresses of a gateway, which is in a cluster and a namespace, with ports.
func (s *gatewaySearch) add(g *Gateway, c mesh.ClusterID, namespace string, ports ...uint32) {
	for _, addr := range s.addressesOf(g, namespace) {
		for _, port := range ports {
			at := snapshot.NetworkGateway{Network: g.Network, Cluster: c, Namespace: namespace, Address: addr, Port: port}
			s.all[at] = append(s.all[at], g)
		}
	}
}

// nodes adds the external addresses of the nodes that a Service selects.
func (s *gatewaySearch) nodes(network mesh.NetworkID, svc *snapshot.Service, source string, port uint32) {
	var addresses []netip.Addr
	for _, n := range s.nodesIn.Lookup(s.r, svc.Cluster) {
		if snapshot.Selects(svc.NodePorts.Selector, n.Labels) {
			addresses = append(addresses, n.External...)
		}
	}
	nodePort, ok := svc.NodePorts.Ports[port]
	switch {
	case len(addresses) == 0:
		s.refuse(s.gateway(network, svc.Cluster, source, ""), RefusedNodes)
	case !ok:
		s.refuse(s.gateway(network, svc.Cluster, source, ""), fmt.Sprintf("port %d has no nodePort", port))
	default:
		for _, addr := range addresses {
			s.add(s.gateway(network, svc.Cluster, source, addr.String()), svc.Cluster, svc.Namespace, nodePort)
		}
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
		if g.Remote && k.Cluster != s.Cfg.Local {
			continue
		}
		source := "Gateway " + g.Namespace + "/" + g.Name
		if len(g.Addresses) == 0 {
			s.refuse(s.gateway(g.Network, k.Cluster, source, ""), refusedGatewayAddress)
		}
		for _, address := range g.Addresses {
			s.add(s.gateway(g.Network, k.Cluster, source, address), k.Cluster, g.Namespace, g.Ports...)
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
				s.add(s.gateway(id, s.Cfg.Local, sourceSettings, g.GetAddress()), "", "", g.GetPort())
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
				reason := "meshNetworks names the Service " + host + ", which no cluster of the network has"
				s.gateway(id, s.Cfg.Local, sourceSettings, host).Problem = reason
				s.faultsOf(id).texts.Add(reason)
			}
		}
	}
}

// sourceSettings is the source of gateways in meshNetworks.
const sourceSettings = "meshNetworks"

// MaxGateways is the number of gateway addresses that a remote cluster may have.
const MaxGateways = 64

// choose returns the usable gateways in order. It refuses gateways of remote clusters that
// have the address of a local service or exceed maxGateways.
func (s *gatewaySearch) choose() []snapshot.NetworkGateway {
	var usable []snapshot.NetworkGateway
	described := make(map[snapshot.NetworkGateway][]*Gateway)
	remote := make(map[mesh.ClusterID]map[string]Set[snapshot.NetworkGateway]) // by namespace
	sorted := slices.SortedFunc(maps.Keys(s.all), compareGateways)
	for i := 0; i < len(sorted); {
		g := sorted[i]
		of, namespaces := s.all[g], []string{g.Namespace}
		// A Service and a Gateway in two namespaces may have one address.
		for i++; i < len(sorted) && sameAddress(g, sorted[i]); i++ {
			of, namespaces = append(of, s.all[sorted[i]]...), append(namespaces, sorted[i].Namespace)
		}
		isRemote := g.Cluster != "" && g.Cluster != s.Cfg.Local
		if isRemote && s.isLocalVIP(s.r, g.Address) {
			s.warn("gateway of a remote cluster has the address of a local service: it is not used",
				"cluster", g.Cluster, "network", g.Network, "address", g.Address.String())
			s.refuseAt(addressOf(g), of, refusedLocalService)
			continue
		}
		usable, described[g] = append(usable, g), of
		if !isRemote {
			continue
		}
		if remote[g.Cluster] == nil {
			remote[g.Cluster] = make(map[string]Set[snapshot.NetworkGateway])
		}
		for _, namespace := range namespaces {
			if namespace = s.ofOperators(namespace); remote[g.Cluster][namespace] == nil {
				remote[g.Cluster][namespace] = Set[snapshot.NetworkGateway]{}
			}
			remote[g.Cluster][namespace].Add(g)
		}
	}
	return s.limit(usable, described, remote)
}

func addressOf(g snapshot.NetworkGateway) netip.AddrPort {
	return netip.AddrPortFrom(g.Address, uint16(g.Port))
}

// limit returns the gateways without those of remote clusters beyond maxGateways, and describes both.
func (s *gatewaySearch) limit(usable []snapshot.NetworkGateway, described map[snapshot.NetworkGateway][]*Gateway, remote map[mesh.ClusterID]map[string]Set[snapshot.NetworkGateway]) []snapshot.NetworkGateway {
	chosen, number := Set[snapshot.NetworkGateway]{}, make(map[mesh.ClusterID]int)
	for _, of := range remote {
		for _, g := range inTurns(of, MaxGateways, compareGateways) {
			chosen.Add(g)
		}
	}
	var out []snapshot.NetworkGateway
	for _, g := range usable {
		number[g.Cluster]++
		if _, ok := chosen[g]; !ok && remote[g.Cluster] != nil {
			s.refuseAt(addressOf(g), described[g], refusedTooMany())
			continue
		}
		for _, d := range described[g] {
			d.Used = append(d.Used, addressOf(g))
		}
		out = append(out, g)
	}
	for _, id := range slices.Sorted(maps.Keys(remote)) {
		if n := number[id]; n > MaxGateways {
			s.warn("cluster has too many gateway addresses: those of the system namespace are used, then those of the other namespaces in turn",
				"cluster", id, "addresses", n, "used", MaxGateways)
		}
	}
	return out
}
