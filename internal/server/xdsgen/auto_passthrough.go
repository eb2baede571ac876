package xdsgen

import (
	"cmp"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// serviceChains returns a filter chain for each port of each service that a server with
// mode AUTO_PASSTHROUGH exposes, and for each of their subsets. The server name of a
// connection selects the chain, which forwards the connection without terminating its TLS.
func (u gatewayListener) serviceChains(g *generator, hosts []string, timeouts portTimeouts) []*listenerv3.FilterChain {
	subsets := make(map[string][]string)
	for subset := range u.subsets.All {
		subsets[subset.service] = append(subsets[subset.service], subset.name)
	}
	var out []*listenerv3.FilterChain
	for _, svc := range u.services.All() {
		if svc.ExternalName != "" || !passable(svc) || !u.scope.sees(svc) || !(snapshot.EgressHosts{Hosts: hosts}).Imports(svc.Namespace, svc.Host) {
			continue
		}
		for i := range svc.Ports {
			port := &svc.Ports[i]
			if port.Protocol == mesh.UDP {
				continue
			}
			for _, subset := range append([]string{""}, subsets[svc.Key]...) {
				name := mesh.ClusterName{Direction: mesh.Outbound, Port: port.Number, Subset: subset, Host: svc.Host}.SNI()
				chain := filterChain(g.namedTCPProxy(name, cmp.Or(statName(u.settings.Stats, svc, port, subset, 0), name), u.settings, timeouts.of(svc, port.Number)))
				chain.FilterChainMatch = &listenerv3.FilterChainMatch{ServerNames: []string{name}, ApplicationProtocols: alpnAll}
				out = append(out, chain)
			}
		}
	}
	return out
}
