package xdsgen

import (
	"iter"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// routedHost is a host at a port with the VirtualService that applies to clients.
type routedHost struct {
	host   string
	number uint32
	// virtual is nil if requests to the host have the default route. client is the part of
	// the client that its routes read.
	virtual *snapshot.VirtualService
	client  snapshot.RouteClient
	// unserved stands for the host if no service has the port, else it is nil.
	unserved *snapshot.MeshService
}

// routesOf returns the route of a host to clients at a port. There is none if list has no
// VirtualService for them.
func routesOf(h *snapshot.HostRoutes, list []*snapshot.VirtualService, client snapshot.RouteClient, number uint32) routedHost {
	out := routedHost{host: h.Host, number: number, unserved: h.UnservedAt(number, list)}
	out.choose(list, client)
	return out
}

// choose sets the VirtualService for clients.
func (h *routedHost) choose(list []*snapshot.VirtualService, client snapshot.RouteClient) {
	c := routeContext{gateway: snapshot.MeshGateway, port: h.number, client: client}
	if h.virtual = c.choose(list); h.virtual != nil {
		h.client = client.Narrow(h.virtual)
	}
}

// routedHosts holds the hosts of a port by name. A host in own precedes the same host in
// common.
type routedHosts struct {
	number uint32
	own    map[string]routedHost
	common *snapshot.PortRoutes // or nil
}

// of returns the route of a host.
func (r routedHosts) of(host string) routedHost {
	if h, ok := r.own[host]; ok {
		return h
	}
	out := routedHost{host: host, number: r.number}
	if r.common != nil {
		if i, ok := slices.BinarySearchFunc(r.common.HTTP, host, func(h snapshot.RoutedHost, host string) int { return strings.Compare(h.Host, host) }); ok {
			out.choose(r.common.HTTP[i].Services, snapshot.RouteClient{})
		}
	}
	return out
}

// unserved returns the hosts of the port without a service in common.
func (r routedHosts) unserved() []routedHost {
	if r.common == nil {
		return nil
	}
	var out []routedHost
	for _, h := range r.common.HTTP {
		if _, own := r.own[h.Host]; h.Unserved != nil && !own {
			host := routedHost{host: h.Host, number: r.number, unserved: h.Unserved}
			host.choose(h.Services, snapshot.RouteClient{})
			out = append(out, host)
		}
	}
	return out
}

// byHost returns the hosts by name.
func byHost(list list[routedHost]) map[string]routedHost {
	out := make(map[string]routedHost)
	for h := range list.All {
		out[h.host] = h
	}
	return out
}

// ownRoutes returns the hosts of a port whose routes differ for the clients of the view from
// the routes of most clients, and hosts without a service that have short names for these clients.
func (v routeView) ownRoutes(s *snapshot.Snapshot, number uint32) []routedHost {
	var out []routedHost
	ownHosts := map[string]bool{}
	if scope := ownScope(s, v.client); scope != nil {
		for _, host := range scope.HTTP {
			ownHosts[host] = true
			if h := s.Routes.Get(host); h != nil && slices.Contains(h.Ports, number) {
				out = append(out, routesOf(h, h.HTTP.For(v.client.Namespace), v.client, number))
			}
		}
	}
	common := s.PortRoutes.Get(number)
	if common == nil {
		return out
	}
	differs := func(h *snapshot.RoutedHost) bool {
		return h.ByClient && v.client.Selected() &&
			slices.ContainsFunc(h.Services, func(vs *snapshot.VirtualService) bool { return v.client.Narrow(vs).Selected() })
	}
	for i := range common.HTTP {
		h := &common.HTTP[i]
		if isNearHost := h.Unserved != nil && isNear(h.Unserved, v.namespace); ownHosts[h.Host] || !isNearHost && !differs(h) {
			continue
		}
		host := routedHost{host: h.Host, number: number, unserved: h.Unserved}
		host.choose(h.Services, v.client)
		out = append(out, host)
	}
	return out
}

// ownScope returns the hosts with VirtualServices of their own for the client's namespace,
// or nil.
func ownScope(s *snapshot.Snapshot, client snapshot.RouteClient) *snapshot.RouteScope {
	if client.Namespace == "" {
		return nil
	}
	if ns := s.Namespaces.Get(client.Namespace); ns != nil {
		return ns.Routes
	}
	return nil
}

// importedRoutes returns the routes at a port of services, and of hosts without a service,
// to the clients of the view, which import VirtualServices by the egress listeners of a scope.
func (v routeView) importedRoutes(s *snapshot.Snapshot, number uint32, services iter.Seq[*snapshot.MeshService], sc scope) []routedHost {
	var hosts []string
	for svc := range services {
		hosts = append(hosts, svc.Host)
	}
	if scope := ownScope(s, v.client); scope != nil {
		hosts = append(hosts, scope.HTTP...)
	}
	if common := s.PortRoutes.Get(number); common != nil {
		for _, h := range common.HTTP {
			if h.Unserved != nil {
				hosts = append(hosts, h.Host)
			}
		}
	}
	slices.Sort(hosts)
	var out []routedHost
	for _, host := range slices.Compact(hosts) {
		h := s.Routes.Get(host)
		if h == nil || !slices.Contains(h.Ports, number) {
			continue
		}
		list := slices.DeleteFunc(slices.Clone(h.HTTP.For(v.client.Namespace)), func(vs *snapshot.VirtualService) bool {
			return !sc.importsFor(host, vs)
		})
		if routed := routesOf(h, list, v.client, number); routed.virtual != nil {
			out = append(out, routed)
		}
	}
	return out
}

// routeClients returns the clients for requests and for connections of a workload.
func routeClients(s *snapshot.Snapshot, namespace string, labels map[string]string) (http, streams snapshot.RouteClient) {
	var own snapshot.RouteScope
	if ns := s.Namespaces.Get(namespace); ns != nil && ns.Routes != nil {
		own = *ns.Routes
	}
	if s.RouteClients == nil {
		return http, streams
	}
	return snapshot.RouteClientOf(namespace, labels, len(own.HTTP) > 0, s.RouteClients.HTTP),
		snapshot.RouteClientOf(namespace, labels, len(own.Streams) > 0, s.RouteClients.Streams)
}
