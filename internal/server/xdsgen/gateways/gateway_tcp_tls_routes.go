package gateways

import (
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/filters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/outbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/server/xdsgen/tlsconfig"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// streamServices returns the VirtualServices with routes for connections to the servers of
// a listener.
func (v View) streamServices(s *snapshot.Snapshot, f *gatewayListenerFacts) wire.List[boundService] {
	var servers serverHosts
	for server := range f.Servers.All {
		servers.Add(server.Gateway, server.Hosts)
	}
	return servers.bound(s, v.Namespace, func(vs *snapshot.VirtualService) bool { return len(vs.TCP)+len(vs.TLS) > 0 })
}

// destinationTimeouts returns the timeouts of the destinations of VirtualServices and, for a
// listener that passes TLS on to services, of all services.
func (v View) destinationTimeouts(s *snapshot.Snapshot, f *gatewayListenerFacts, bound wire.List[boundService]) (none filters.TimeoutList) {
	if !v.Timeouts.Used {
		return none
	}
	out, services := make(filters.PortTimeouts), byGateway(bound)
	for server := range f.Servers.All {
		add := func(to []*networkingv1alpha3.RouteDestination) {
			d := filters.Decisive(to)
			out.Add(s, v.Timeouts, d.GetHost(), routes.DestinationPort(d, server.Port))
		}
		for _, vs := range services[server.Gateway] {
			for _, r := range vs.TCP {
				add(r.GetRoute())
			}
			for _, r := range vs.TLS {
				add(r.GetRoute())
			}
		}
	}
	if f.Kind == passingListener {
		for key, svc := range s.Services.All() {
			for i := range svc.Ports {
				out.Add(s, v.Timeouts, key, svc.Ports[i].Number)
			}
		}
	}
	return out.List()
}

// destinationTunnels returns the tunnels of the destinations of VirtualServices.
func (v View) destinationTunnels(bound wire.List[boundService]) wire.List[filters.Tunnel] {
	var out []filters.Tunnel
	for t := range v.Tunnels.All {
		for b := range bound.All {
			if !filters.TunnelsFor(wire.ListOf([]filters.Tunnel{t}), b.VirtualService).Empty() {
				out = append(out, t)
				break
			}
		}
	}
	return wire.ListOf(out)
}

// streamRoutes holds what decides where the connections to the servers of a listener go.
type streamRoutes struct {
	services map[string][]*snapshot.VirtualService // by Gateway object
	timeouts filters.PortTimeouts                  // of destinations
}

// routedChains returns the filter chains of a server that VirtualServices route: by server
// name if the server passes TLS through, else all connections to one place.
func (u gatewayListener) routedChains(g *wire.Generator, s *gatewayServerFacts, t *networkingv1alpha3.ServerTLSSettings, stream streamRoutes) []*listenerv3.FilterChain {
	var out []*listenerv3.FilterChain
	routed := func(v *snapshot.VirtualService, to []*networkingv1alpha3.RouteDestination) *listenerv3.FilterChain {
		d := filters.Decisive(to)
		return outbound.RoutedChain(g, v, to, s.Port, u.settings, stream.timeouts[filters.ServicePort{Service: d.GetHost(), Number: routes.DestinationPort(d, s.Port)}], u.tunnels)
	}
	for _, v := range stream.services[s.Gateway] {
		if len(hostsInCommon(s.Hosts.Slice(), v)) == 0 {
			continue
		}
		if snapshot.PassesTLS(t) {
			for _, r := range v.TLS {
				for _, m := range r.GetMatch() {
					if s.meets(m.GetPort(), m.GetGateways()) {
						chain := routed(v, r.GetRoute())
						chain.FilterChainMatch = serverNames(m.GetSniHosts())
						out = append(out, chain)
					}
				}
			}
			continue
		}
		i := slices.IndexFunc(v.TCP, func(r *networkingv1alpha3.TCPRoute) bool {
			return len(r.GetMatch()) == 0 || slices.ContainsFunc(r.GetMatch(), func(m *networkingv1alpha3.L4MatchAttributes) bool { return s.meets(m.GetPort(), m.GetGateways()) })
		})
		if i >= 0 {
			chain := routed(v, v.TCP[i].GetRoute())
			if t != nil {
				chain.FilterChainMatch, chain.TransportSocket = serverNames(s.Hosts.Slice()), tlsconfig.ServerTLS(g, t, u.limits)
			}
			return []*listenerv3.FilterChain{chain}
		}
	}
	return out
}

// meets reports whether connections to the server meet a condition. As with Istio, the
// other conditions on connections do not matter at gateways.
func (f *gatewayServerFacts) meets(port uint32, gateways []string) bool {
	return (port == 0 || port == f.Port) && (len(gateways) == 0 || slices.Contains(gateways, f.Gateway))
}
