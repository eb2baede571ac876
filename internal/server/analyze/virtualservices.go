package analyze

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// virtualServices checks the VirtualServices.
func (m *checker) virtualServices() {
	for _, v := range until(m, m.virtual) {
		m.destinationsOf(v)
		m.unreachableRules(v)
		m.unusedGateways(v)
		m.routesWithoutPort(v)
		m.hostsWithoutService(v)
		m.claims(v)
	}
	m.subsetsOfSidecars()
	m.sharedMeshHosts()
	m.sharedWildcards()
	m.shadowed()
}

// destinationsOf checks the ports and subsets of destinations. The registry reports hosts
// that no service has.
func (m *checker) destinationsOf(v *snapshot.VirtualService) {
	for field, d := range destinations(v) {
		svc := m.service(d.GetHost(), v.Namespace)
		if svc == nil {
			if hidden := m.Snapshot.Services.Get(d.GetHost()); hidden != nil {
				m.find(codes.ReferencedResourceNotFound, v, field+".host", "%s is not exported to namespace %s: requests to it from there fail", hidden.Host, v.Namespace)
			}
			continue
		}
		var ports []string
		for i := range svc.Ports {
			if svc.Ports[i].Protocol != mesh.UDP {
				ports = append(ports, strconv.FormatUint(uint64(svc.Ports[i].Number), 10))
			}
		}
		switch number := d.GetPort().GetNumber(); {
		case d.GetPort() == nil && len(ports) > 1:
			m.find(codes.VirtualServiceDestinationPortSelectorRequired, v, field+".port", "is missing: %s has the ports %s", svc.Host, listed(ports))
		case d.GetPort() != nil && svc.Port(number) == nil:
			fix := ""
			if only := slices.DeleteFunc(slices.Clone(svc.Ports), func(p snapshot.ServicePort) bool { return p.Protocol == mesh.UDP }); len(only) == 1 {
				fix = m.set(v, field+".port.number", only[0].Number)
			}
			m.findFix(codes.ReferencedResourceNotFound, v, fix, field+".port.number", "%d is no port of %s, which has %s", number, svc.Host, listed(ports))
		}
		subset, subsets := d.GetSubset(), m.subsetsOf(svc)
		if subset == "" || slices.Contains(subsets, subset) {
			continue
		}
		if d := m.misnamed(svc.Host, subset); d != nil {
			if name := "VirtualService " + nameOf(v); !slices.Contains(m.lost[d], name) {
				if m.lost == nil {
					m.lost = map[*snapshot.DestinationRule][]string{}
				}
				m.lost[d] = append(m.lost[d], name)
			}
			continue // the rule is at fault
		}
		more := ""
		if len(subsets) > 0 {
			more = "; the service has " + listed(subsets)
		}
		m.findFix(codes.ReferencedResourceNotFound, v, m.correct(v, field+".subset", subset, subsets), field+".subset", "%q is defined by no DestinationRule for %s: requests to it fail%s", subset, svc.Host, more)
	}
}

// subsetsOf returns the names of the subsets of a service that DestinationRules give to some client, sorted.
func (m *checker) subsetsOf(svc *snapshot.MeshService) []string {
	rules := m.Snapshot.Rules.Get(svc.Key)
	if rules == nil {
		return nil
	}
	var out []string
	for _, list := range append(slices.Collect(maps.Values(rules.Own)), rules.Default) {
		for _, r := range list {
			for _, s := range r.Subsets {
				out = append(out, s.GetName())
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// unusedGateways finds the Gateways that have none of the hosts.
func (m *checker) unusedGateways(v *snapshot.VirtualService) {
	for i, name := range v.Gateways {
		gw := m.gatewayNamed(name)
		if gw == nil || len(v.Hosts) == 0 {
			continue
		}
		servers := snapshot.GatewayServers(gw)
		if slices.ContainsFunc(servers, func(s snapshot.GatewayServer) bool { return serves(&s, v) }) {
			continue
		}
		if s := slices.IndexFunc(servers, func(s snapshot.GatewayServer) bool { return hostFor(&s, v) >= 0 }); s >= 0 {
			j := hostFor(&servers[s], v)
			namespace, host, _ := strings.Cut(servers[s].Hosts[j], "/")
			m.findFix(codes.VirtualServiceHostNotFoundInGateway, v, m.set(gw, at(at("spec.servers", s)+".hosts", j), v.Namespace+"/"+host), at("spec.gateways", i),
				"Gateway %s has the host %s only for VirtualServices of namespace %s (%s): clients get %s", name, host, namespace, servers[s].GetHosts()[j], answerOf(&servers[s]))
			continue
		}
		fix := ""
		if len(v.Gateways) > 1 {
			fix = m.remove(v, at("spec.gateways", i))
		}
		m.findFix(codes.VirtualServiceHostNotFoundInGateway, v, fix, at("spec.gateways", i), "no server of Gateway %s has %s", name, hostsText(v.Hosts))
	}
}

// hostFor returns the index of the host of a server that is a host of the VirtualService, but for those of
// another namespace, or -1.
func hostFor(s *snapshot.GatewayServer, v *snapshot.VirtualService) int {
	if len(s.Hosts) != len(s.GetHosts()) {
		return -1
	}
	return slices.IndexFunc(s.Hosts, func(h string) bool {
		namespace, host, two := strings.Cut(h, "/")
		return two && namespace != v.Namespace && host != "*" && v.HostMatches(host)
	})
}

func hostsText(hosts []string) string {
	if len(hosts) == 1 {
		return "the host " + hosts[0]
	}
	return "any of the hosts " + listed(hosts)
}

// gatewayNamed returns the Gateway with the name that VirtualServices use, or nil.
func (m *checker) gatewayNamed(name string) *snapshot.Gateway {
	namespace, name, _ := strings.Cut(name, "/")
	gw, _ := m.objects[snapshot.Key{Kind: snapshot.KindGateway, Cluster: m.Snapshot.Mesh.LocalCluster, Namespace: namespace, Name: name}].(*snapshot.Gateway)
	return gw
}

// serves reports whether a server has a host of the VirtualService.
func serves(s *snapshot.GatewayServer, v *snapshot.VirtualService) bool {
	return slices.ContainsFunc(s.Hosts, func(h string) bool {
		namespace, host, two := strings.Cut(h, "/")
		if !two {
			namespace, host = v.Namespace, h
		}
		return namespace == v.Namespace && v.HostMatches(host)
	})
}

// hostsWithoutService finds the hosts for sidecars that no service has. Proxies serve them
// only over HTTP, at port 80 and at ports of other hosts of the VirtualService.
func (m *checker) hostsWithoutService(v *snapshot.VirtualService) {
	if !slices.Contains(v.Gateways, snapshot.MeshGateway) || len(v.Gateways) > 1 {
		return // a gateway serves the host
	}
	for i, host := range v.Hosts {
		if strings.HasPrefix(host, "*") {
			continue
		}
		if m.served(host) {
			continue
		}
		effect := "proxies route requests to it only at port 80, and resolve no name"
		if len(v.HTTP) == 0 {
			effect = "proxies open no port for its TCP and TLS routes, and resolve no name"
		}
		near, level := m.nearestHost(host), codes.Level("")
		if near != "" {
			level = codes.Warning
		}
		m.findIn(level, codes.HostWithoutService, v, m.correctTo(v, at("spec.hosts", i), near), at("spec.hosts", i), "no service has the host %s: %s%s", host, effect, didYouMean(near))
	}
}

// sharedMeshHosts finds the VirtualServices for sidecars that name the host of an earlier
// one. Only the first one with a route for the port and the client applies, so the earlier
// one must have routes for all of them.
func (m *checker) sharedMeshHosts() {
	type pair struct{ first, second *snapshot.VirtualService }
	known := map[pair]bool{}
	for host, routes := range m.Snapshot.Routes.All() {
		lists := append([][]*snapshot.VirtualService{routes.HTTP.Default}, sortedValues(routes.HTTP.Own)...)
		for _, all := range lists {
			var first *snapshot.VirtualService
			for _, v := range all {
				if !slices.Contains(v.Hosts, host) {
					continue
				}
				if first == nil {
					if hasMatch(v, snapshot.MeshGateway, forAllClients) {
						first = v
					}
					continue
				}
				p := pair{first, v}
				if known[p] {
					continue
				}
				known[p] = true
				m.sharedHost(first, v, host)
			}
		}
	}
}

func (m *checker) sharedHost(first, second *snapshot.VirtualService, host string) {
	m.find(codes.ConflictingMeshGatewayVirtualServiceHosts, second, at("spec.hosts", slices.Index(second.Hosts, host)),
		"VirtualService %s has the host %s, too, and comes before this one: proxies use only its routes", nameOf(first), host)
}

// sharedWildcards finds the VirtualServices for sidecars with HTTP routes for a wildcard that an
// earlier one has. A service below the wildcard has only the routes of the first one.
func (m *checker) sharedWildcards() {
	uses := map[string][]*snapshot.VirtualService{}
	for _, v := range m.virtual {
		if len(v.HTTP) == 0 || !slices.Contains(v.Gateways, snapshot.MeshGateway) {
			continue
		}
		for _, host := range v.Hosts {
			if strings.HasPrefix(host, "*") && !slices.Contains(uses[host], v) {
				uses[host] = append(uses[host], v)
			}
		}
	}
	for _, host := range slices.Sorted(maps.Keys(uses)) {
		all := uses[host]
		if len(all) < 2 || !m.served(host) {
			continue
		}
		slices.SortStableFunc(all, func(a, b *snapshot.VirtualService) int {
			return cmp.Or(cmp.Compare(m.exports(a).width(), m.exports(b).width()), a.Created.Compare(b.Created), cmp.Compare(nameOf(a), nameOf(b)))
		})
		for i, v := range all {
			earlier := slices.IndexFunc(all[:i], func(o *snapshot.VirtualService) bool { return m.exports(o).overlap(m.exports(v)) })
			if earlier >= 0 {
				m.sharedHost(all[earlier], v, host)
			}
		}
	}
}

// exports returns the exports of a VirtualService.
func (m *checker) exports(v *snapshot.VirtualService) exports {
	to := v.ExportTo
	if len(to) == 0 && m.Settings != nil {
		to = m.Settings.Mesh.GetDefaultVirtualServiceExportTo()
	}
	return exports{v.Namespace, to}
}

func sortedValues[V any](of map[string]V) []V {
	var out []V
	for _, k := range slices.Sorted(maps.Keys(of)) {
		out = append(out, of[k])
	}
	return out
}

// shadowed finds the VirtualServices of Gateways whose route for all requests to a host is
// never used, because an earlier one has such a route, too. Gateways join the routes of a
// host, and these routes come last.
func (m *checker) shadowed() {
	for name, routes := range m.Snapshot.GatewayRoutes.All() {
		for j, second := range routes.Default {
			if !hasMatch(second, name, forAllRequests) {
				continue
			}
			for _, first := range routes.Default[:j] {
				i := slices.IndexFunc(second.Hosts, func(h string) bool { return slices.Contains(first.Hosts, h) })
				if i < 0 || !hasMatch(first, name, forAllRequests) || first.Namespace != second.Namespace && m.hasHostsFor(name, second.Namespace) {
					continue
				}
				m.find(codes.ShadowedVirtualService, second, at("spec.hosts", i),
					"VirtualService %s has a route for all requests to %s at Gateway %s, too, and comes before this one: the gateway uses only its route", nameOf(first), second.Hosts[i], name)
				break
			}
		}
	}
}

// hasHostsFor reports whether a Gateway has hosts only for the VirtualServices of a namespace.
func (m *checker) hasHostsFor(gateway, namespace string) bool {
	gw := m.gatewayNamed(gateway)
	return gw != nil && slices.ContainsFunc(snapshot.GatewayServers(gw), func(s snapshot.GatewayServer) bool {
		return slices.ContainsFunc(s.Hosts, func(h string) bool { return strings.HasPrefix(h, namespace+"/") })
	})
}

// hasMatch reports whether a VirtualService has an HTTP match at a gateway that fits. A route
// without matches has the match of any request.
func hasMatch(v *snapshot.VirtualService, gateway string, fits func(*networkingv1alpha3.HTTPMatchRequest) bool) bool {
	return slices.ContainsFunc(v.HTTP, func(r *networkingv1alpha3.HTTPRoute) bool {
		return len(r.GetMatch()) == 0 || slices.ContainsFunc(r.GetMatch(), func(m *networkingv1alpha3.HTTPMatchRequest) bool {
			return (len(m.GetGateways()) == 0 || slices.Contains(m.GetGateways(), gateway)) && fits(m)
		})
	})
}

// forAllRequests reports whether every request at a gateway of the match meets it.
func forAllRequests(m *networkingv1alpha3.HTTPMatchRequest) bool {
	return coversRequest(withoutGateways(m), anyRequest)
}

// forAllClients reports whether a match applies at all ports and to all clients.
func forAllClients(m *networkingv1alpha3.HTTPMatchRequest) bool {
	return m.GetPort() == 0 && len(m.GetSourceLabels()) == 0 && m.GetSourceNamespace() == ""
}
