package xdsgen

import (
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// streamServices returns the VirtualServices with routes for connections to the servers of
// a listener.
func (v gatewayView) streamServices(s *snapshot.Snapshot, facts string) list[boundService] {
	var f gatewayListenerFacts
	decodeFacts(facts, &f)
	var servers serverHosts
	for i := range f.Servers {
		servers.add(f.Servers[i].Gateway, f.Servers[i].Hosts)
	}
	return servers.bound(s, v.namespace, func(vs *snapshot.VirtualService) bool { return len(vs.TCP)+len(vs.TLS) > 0 })
}

// routedChains returns the filter chains of a server that VirtualServices route: by server
// name if the server passes TLS through, else all connections to one place.
func (u gatewayListener) routedChains(g *generator, s *gatewayServerFacts, t *networkingv1alpha3.ServerTLSSettings) []*listenerv3.FilterChain {
	var out []*listenerv3.FilterChain
	for b := range u.bound.all {
		v := b.VirtualService
		if b.gateway != s.Gateway || len(hostsInCommon(s.Hosts, v)) == 0 {
			continue
		}
		if snapshot.PassesTLS(t) {
			for _, r := range v.TLS {
				for _, m := range r.GetMatch() {
					if s.meets(m.GetPort(), m.GetGateways()) {
						chain := g.routedChain(v, r.GetRoute(), s.Port, u.settings, tcpTimeouts{})
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
			chain := g.routedChain(v, v.TCP[i].GetRoute(), s.Port, u.settings, tcpTimeouts{})
			if t != nil {
				chain.FilterChainMatch, chain.TransportSocket = serverNames(s.Hosts), g.serverTLS(t, u.limits)
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
