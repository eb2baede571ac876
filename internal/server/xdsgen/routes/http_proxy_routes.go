package routes

import (
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// HTTPProxyRoutesName is the name of the route configuration of the HTTP proxy port.
const HTTPProxyRoutesName = "http_proxy"

// httpProxyRoutes returns the configuration of the HTTP proxy port. With a Sidecar, clients reach
// what its egress listener without a port has.
func (v View) httpProxyRoutes(s *snapshot.Snapshot) units.Unit {
	out := httpProxyRoutes{routeFacts: v.facts(s).ofProxy()}
	sc := v.Scope
	if egress := sc.Egress(); len(egress) > 0 {
		i := slices.IndexFunc(egress, proxy.HasNoPort)
		if i < 0 {
			return out
		}
		sc = sc.Through(i)
	}
	var ports []PortRoutes
	for number := range s.Ports.All() {
		if services := sc.At(s, number); services.Any(routedForProxy) {
			ports = append(ports, v.routesAt(s, sc, services))
		}
	}
	out.ports = wire.ListOf(ports)
	return out
}

// ofProxy returns the facts of routes for clients that connect to the proxy itself. Passing
// requests for unknown hosts on to the original destination would be a loop.
func (u routeFacts) ofProxy() routeFacts {
	if u.Unknown == mesh.PassthroughCluster {
		u.Unknown = mesh.BlackHoleCluster
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
	ports wire.List[PortRoutes]
}

func (u httpProxyRoutes) Type() string { return xdswire.RouteType }

func (u httpProxyRoutes) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var common []commonHosts
	size := 0
	for p := range u.ports.All {
		if p.common != nil {
			common = append(common, p.commonHosts())
		}
		size += p.Services.Size()
	}
	hosts := newVirtualHosts(enc, size)
	if len(common) > 0 {
		key := commonProxyHosts{wire.ListOf(common)}
		base, err := xdswire.Shared(enc, key, func() (*virtualHosts, error) { return key.make(enc) })
		if err != nil {
			return nil, err
		}
		hosts = hosts.on(base)
	}
	for p := range u.ports.All {
		if err := p.Add(hosts, byNameAndPort); err != nil {
			return nil, err
		}
	}
	rc := BaseRoutes(HTTPProxyRoutesName)
	rc.IgnorePortInHostMatching = false
	return wire.One(u.encode(rc, hosts))
}

// commonProxyHosts are the virtual hosts of the HTTP proxy port that are the same for all clients.
type commonProxyHosts struct{ ports wire.List[commonHosts] }

func (c commonProxyHosts) make(enc *xdswire.Encoder) (*virtualHosts, error) {
	size := 0
	for p := range c.ports.All {
		size += len(p.services.Services)
	}
	hosts := newVirtualHosts(enc, size)
	for p := range c.ports.All {
		if err := p.Add(hosts, byNameAndPort); err != nil {
			return nil, err
		}
	}
	hosts.parts, hosts.changed = hosts.List(), nil
	return hosts, nil
}
