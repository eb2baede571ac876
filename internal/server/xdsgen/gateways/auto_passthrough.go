package gateways

import (
	"cmp"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/endpoints"
	"github.com/meshctl/meshctl/internal/server/xdsgen/filters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/outbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/tlsconfig"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// serviceChains returns a filter chain for each port of each service that a server with
// mode AUTO_PASSTHROUGH exposes, and for each of their subsets. The server name of a
// connection selects the chain, which forwards the connection without terminating its TLS.
func (u gatewayListener) serviceChains(g *wire.Generator, hosts []string, timeouts filters.PortTimeouts) []*listenerv3.FilterChain {
	subsets := make(map[string][]string)
	for subset := range u.subsets.All {
		subsets[subset.service] = append(subsets[subset.service], subset.name)
	}
	var out []*listenerv3.FilterChain
	for _, svc := range u.services.All() {
		if svc.ExternalName != "" || !endpoints.Passable(svc) || !u.scope.Sees(svc) || !(snapshot.EgressHosts{Hosts: hosts}).Imports(svc.Namespace, svc.Host) {
			continue
		}
		for i := range svc.Ports {
			port := &svc.Ports[i]
			if port.Protocol == mesh.UDP {
				continue
			}
			for _, subset := range append([]string{""}, subsets[svc.Key]...) {
				name := mesh.ClusterName{Direction: mesh.Outbound, Port: port.Number, Subset: subset, Host: svc.Host}.SNI()
				chain := outbound.FilterChain(filters.NamedTCPProxy(g, name, cmp.Or(wire.StatName(u.settings.Stats, svc, port, subset, 0), name), u.settings, timeouts.Of(svc, port.Number)))
				chain.FilterChainMatch = &listenerv3.FilterChainMatch{ServerNames: []string{name}, ApplicationProtocols: tlsconfig.AlpnAll}
				out = append(out, chain)
			}
		}
	}
	return out
}
