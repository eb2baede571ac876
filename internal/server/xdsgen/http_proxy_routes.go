package xdsgen

import (
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// httpProxyRoutesName is the name of the route configuration of the HTTP proxy port.
const httpProxyRoutesName = "http_proxy"

// httpProxyRoutes returns the configuration of the HTTP proxy port. With a Sidecar, clients reach
// what its egress listener without a port has.
func (v routeView) httpProxyRoutes(s *snapshot.Snapshot) Unit {
	out := httpProxyRoutes{routeFacts: v.facts(s).ofProxy()}
	sc := v.scope
	if egress := sc.egress(); len(egress) > 0 {
		i := slices.IndexFunc(egress, hasNoPort)
		if i < 0 {
			return out
		}
		sc = sc.through(i)
	}
	var ports []portRoutes
	for number := range s.Ports.All() {
		if services := sc.at(s, number); services.any(routedForProxy) {
			ports = append(ports, v.routesAt(s, sc, services))
		}
	}
	out.ports = listOf(ports)
	return out
}

// ofProxy returns the facts of routes for clients that connect to the proxy itself. Passing
// requests for unknown hosts on to the original destination would be a loop.
func (u routeFacts) ofProxy() routeFacts {
	if u.unknown == mesh.PassthroughCluster {
		u.unknown = mesh.BlackHoleCluster
	}
	return u
}

// routedForProxy reports whether clients of an HTTP proxy reach a port of a service.
func routedForProxy(_ *snapshot.MeshService, p *snapshot.ServicePort) bool {
	return p.Protocol.IsHTTP() || p.Protocol == mesh.Auto
}

// httpProxyRoutes generates the configuration that routes by host and port to HTTP services.
type httpProxyRoutes struct {
	routeFacts
	ports list[portRoutes]
}

func (u httpProxyRoutes) Type() string { return xdswire.RouteType }

func (u httpProxyRoutes) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var common []commonHosts
	size := 0
	for p := range u.ports.All {
		if p.common != nil {
			common = append(common, p.commonHosts())
		}
		size += p.services.size()
	}
	hosts := newVirtualHosts(enc, size)
	if len(common) > 0 {
		key := commonProxyHosts{listOf(common)}
		base, err := xdswire.Shared(enc, key, func() (*virtualHosts, error) { return key.make(enc) })
		if err != nil {
			return nil, err
		}
		hosts = hosts.on(base)
	}
	for p := range u.ports.All {
		if err := p.add(hosts, byNameAndPort); err != nil {
			return nil, err
		}
	}
	rc := baseRoutes(httpProxyRoutesName)
	rc.IgnorePortInHostMatching = false
	return one(u.encode(rc, hosts))
}

// commonProxyHosts are the virtual hosts of the HTTP proxy port that are the same for all clients.
type commonProxyHosts struct{ ports list[commonHosts] }

func (c commonProxyHosts) make(enc *xdswire.Encoder) (*virtualHosts, error) {
	size := 0
	for p := range c.ports.All {
		size += len(p.services.Services)
	}
	hosts := newVirtualHosts(enc, size)
	for p := range c.ports.All {
		if err := p.add(hosts, byNameAndPort); err != nil {
			return nil, err
		}
	}
	hosts.parts, hosts.changed = hosts.list(), nil
	return hosts, nil
}
