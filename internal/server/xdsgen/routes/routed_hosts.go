package routes

import (
	"iter"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// RoutedHost is a host at a port with the VirtualService that applies to clients.
type RoutedHost struct {
	host   string
	Number uint32
	// Virtual is nil if requests to the host have the default route. client is the part of
	// the client that its routes read.
	Virtual *snapshot.VirtualService
	Client  snapshot.RouteClient
	// unserved stands for the host if no service has the port, else it is nil.
	unserved *snapshot.MeshService
}

// routesOf returns the route of a host to clients at a port. There is none if list has no
// VirtualService for them.
func routesOf(h *snapshot.HostRoutes, list []*snapshot.VirtualService, client snapshot.RouteClient, number uint32) RoutedHost {
	out := RoutedHost{host: h.Host, Number: number, unserved: h.UnservedAt(number, list)}
	out.choose(list, client)
	return out
}

// choose sets the VirtualService for clients.
func (h *RoutedHost) choose(list []*snapshot.VirtualService, client snapshot.RouteClient) {
	c := RouteContext{Gateway: snapshot.MeshGateway, Port: h.Number, Client: client}
	if h.Virtual = c.choose(list); h.Virtual != nil {
		h.Client = client.Narrow(h.Virtual)
	}
}

// routedHosts holds the hosts of a port by name. A host in own precedes the same host in
// common.
type routedHosts struct {
	number uint32
	own    map[string]RoutedHost
	common *snapshot.PortRoutes // or nil
}

// Of returns the route of a host.
func (r routedHosts) Of(host string) RoutedHost {
	if h, ok := r.own[host]; ok {
		return h
	}
	out := RoutedHost{host: host, Number: r.number}
	if r.common != nil {
		if i, ok := slices.BinarySearchFunc(r.common.HTTP, host, func(h snapshot.RoutedHost, host string) int { return strings.Compare(h.Host, host) }); ok {
			out.choose(r.common.HTTP[i].Services, snapshot.RouteClient{})
		}
	}
	return out
}

// unserved returns the hosts of the port without a service in common.
func (r routedHosts) unserved() []RoutedHost {
	if r.common == nil {
		return nil
	}
	var out []RoutedHost
	for _, h := range r.common.HTTP {
		if _, own := r.own[h.Host]; h.Unserved != nil && !own {
			host := RoutedHost{host: h.Host, Number: r.number, unserved: h.Unserved}
			host.choose(h.Services, snapshot.RouteClient{})
			out = append(out, host)
		}
	}
	return out
}

// byHost returns the hosts by name.
func byHost(list wire.List[RoutedHost]) map[string]RoutedHost {
	out := make(map[string]RoutedHost)
	for h := range list.All {
		out[h.host] = h
	}
	return out
}

// ownRoutes returns the hosts of a port whose routes differ for the clients of the view from
// the routes of most clients, and hosts without a service that have short names for these clients.
func (v View) ownRoutes(s *snapshot.Snapshot, number uint32) []RoutedHost {
	var out []RoutedHost
	ownHosts := map[string]bool{}
	if scope := OwnScope(s, v.Client); scope != nil {
		for _, host := range scope.HTTP {
			ownHosts[host] = true
			if h := s.Routes.Get(host); h != nil && slices.Contains(h.Ports, number) {
				out = append(out, routesOf(h, h.HTTP.For(v.Client.Namespace), v.Client, number))
			}
		}
	}
	common := s.PortRoutes.Get(number)
	if common == nil {
		return out
	}
	differs := func(h *snapshot.RoutedHost) bool {
		return h.ByClient && v.Client.Selected() &&
			slices.ContainsFunc(h.Services, func(vs *snapshot.VirtualService) bool { return v.Client.Narrow(vs).Selected() })
	}
	for i := range common.HTTP {
		h := &common.HTTP[i]
		if isNearHost := h.Unserved != nil && IsNear(h.Unserved, v.Namespace); ownHosts[h.Host] || !isNearHost && !differs(h) {
			continue
		}
		host := RoutedHost{host: h.Host, Number: number, unserved: h.Unserved}
		host.choose(h.Services, v.Client)
		out = append(out, host)
	}
	return out
}

// OwnScope returns the hosts with VirtualServices of their own for the client's namespace,
// or nil.
func OwnScope(s *snapshot.Snapshot, client snapshot.RouteClient) *snapshot.RouteScope {
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
func (v View) importedRoutes(s *snapshot.Snapshot, number uint32, services iter.Seq[*snapshot.MeshService], sc proxy.Scope) []RoutedHost {
	var hosts []string
	for svc := range services {
		hosts = append(hosts, svc.Host)
	}
	if scope := OwnScope(s, v.Client); scope != nil {
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
	var out []RoutedHost
	for _, host := range slices.Compact(hosts) {
		h := s.Routes.Get(host)
		if h == nil || !slices.Contains(h.Ports, number) {
			continue
		}
		list := slices.DeleteFunc(slices.Clone(h.HTTP.For(v.Client.Namespace)), func(vs *snapshot.VirtualService) bool {
			return !sc.ImportsFor(host, vs)
		})
		if routed := routesOf(h, list, v.Client, number); routed.Virtual != nil {
			out = append(out, routed)
		}
	}
	return out
}

// RouteClients returns the clients for requests and for connections of a workload.
func RouteClients(s *snapshot.Snapshot, namespace string, labels map[string]string) (http, streams snapshot.RouteClient) {
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
