package gateways

import (
	"net/http"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// RouteView is the view of the route configurations of gateways with the same servers
// and VirtualServices.
type RouteView struct {
	Facts     wire.List[gatewayRouteFacts]
	Namespace string // of the gateway
	Client    snapshot.RouteClient
}

// Type implements units.View.
func (v RouteView) Type() string { return xdswire.RouteType }

// Keys implements units.View.
func (v RouteView) Keys() units.Keys {
	return units.Keys{Fixed: v.Facts.Len(), FixedFacts: snapshot.GatewayRouteFacts | snapshot.MeshFacts}
}

// Unit implements units.View.
func (v RouteView) Unit(s *snapshot.Snapshot, k units.Key) units.Unit {
	f := v.Facts.At(int(k.Number))
	var servers serverHosts
	for server := range f.Servers.All {
		servers.Add(server.Gateway, server.Hosts)
	}
	bound := servers.bound(s, v.Namespace, func(vs *snapshot.VirtualService) bool { return len(vs.HTTP) > 0 })
	var client snapshot.RouteClient
	for b := range bound.All {
		if v.Client.Narrow(b.VirtualService).Selected() {
			client = v.Client
		}
	}
	return GatewayRoutes{Facts: f, bound: bound, client: client, retries: s.Mesh.Retries}
}

// boundService is a VirtualService that a Gateway object uses.
type boundService struct {
	gateway string
	*snapshot.VirtualService
}

// serverHosts holds the hosts of the servers of Gateway objects.
type serverHosts []gatewayHosts

type gatewayHosts struct {
	gateway string
	hosts   []string
}

// Add adds the hosts of a server. The servers of a Gateway come one after the other.
func (h *serverHosts) Add(gateway string, hosts wire.List[string]) {
	if n := len(*h); n == 0 || (*h)[n-1].gateway != gateway {
		*h = append(*h, gatewayHosts{gateway: gateway})
	}
	last := &(*h)[len(*h)-1]
	last.hosts = append(last.hosts, hosts.Slice()...)
}

// bound returns the VirtualServices with certain routes that gateways in a namespace use for
// the servers. Those of each Gateway are in the order of precedence.
func (h serverHosts) bound(s *snapshot.Snapshot, namespace string, routes func(*snapshot.VirtualService) bool) wire.List[boundService] {
	var out []boundService
	for _, of := range h {
		all := s.GatewayRoutes.Get(of.gateway)
		if all == nil {
			continue
		}
		for _, v := range all.For(namespace) {
			if routes(v) && len(hostsInCommon(of.hosts, v)) > 0 {
				out = append(out, boundService{of.gateway, v})
			}
		}
	}
	return wire.ListOf(out)
}

// byGateway returns the VirtualServices that each Gateway object uses, in the order of the list.
func byGateway(bound wire.List[boundService]) map[string][]*snapshot.VirtualService {
	out := make(map[string][]*snapshot.VirtualService)
	for b := range bound.All {
		out[b.gateway] = append(out[b.gateway], b.VirtualService)
	}
	return out
}

// hostsInCommon returns the hosts that a server and a VirtualService have in common: of two
// hosts that overlap the more specific one. The hosts of a server may be only for the
// VirtualServices of a namespace.
func hostsInCommon(server []string, vs *snapshot.VirtualService) []string {
	var out []string
	for _, h := range server {
		namespace, host, two := strings.Cut(h, "/")
		if !two {
			host = h
		} else if namespace != vs.Namespace {
			continue
		}
		for _, other := range vs.Hosts {
			if !snapshot.HostsOverlap(host, other) {
				continue
			}
			common := host
			if isWild(host) && (!isWild(other) || len(other) > len(host)) {
				common = other
			}
			if !slices.Contains(out, common) {
				out = append(out, common)
			}
		}
	}
	return out
}

func isWild(host string) bool { return strings.HasPrefix(host, "*") }

// GatewayRoutes generates a route configuration of a gateway.
type GatewayRoutes struct {
	Facts   gatewayRouteFacts
	bound   wire.List[boundService]
	client  snapshot.RouteClient // the gateway itself
	retries snapshot.RetryPolicy
}

// Type implements units.Unit.
func (u GatewayRoutes) Type() string { return xdswire.RouteType }

// gatewayHost is a virtual host of a gateway.
type gatewayHost struct {
	domains  []string
	port     uint32 // of the first server
	routes   []*boundRoutes
	redirect bool // to HTTPS
	// misdirected is set for hosts of other servers. Clients should use another connection.
	misdirected bool
}

// boundRoutes are the routes of a VirtualService for a server.
type boundRoutes struct {
	*snapshot.VirtualService
	context routes.RouteContext
	made    []*routev3.Route // nil before the first use
}

func (b *boundRoutes) equal(other *boundRoutes) bool {
	return b == other || b.VirtualService == other.VirtualService && b.context == other.context
}

// Generate implements units.Unit.
func (u GatewayRoutes) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := wire.Generator{Enc: enc}
	rc := routes.BaseRoutes(u.Facts.Name)
	if u.Facts.HTTP3 != 0 {
		rc.ResponseHeadersToAdd = []*corev3.HeaderValueOption{altSvc(u.Facts.HTTP3)}
	}
	for _, h := range u.hosts() {
		vh := &routev3.VirtualHost{Name: h.domains[0] + ":" + wire.PortString(h.port), Domains: h.domains, IncludeRequestAttemptCount: true}
		if h.redirect {
			vh.RequireTls = routev3.VirtualHost_ALL
		}
		for _, b := range h.routes {
			if b.made == nil {
				b.made = routes.VirtualServiceRoutes(&g, b.VirtualService, b.context)
			}
			vh.Routes = append(vh.Routes, b.made...)
		}
		catchAllsLast(vh.Routes)
		if h.misdirected {
			vh.Routes = []*routev3.Route{{Match: wire.EveryPath, Action: &routev3.Route_DirectResponse{
				DirectResponse: &routev3.DirectResponseAction{Status: http.StatusMisdirectedRequest},
			}}}
		}
		rc.VirtualHosts = append(rc.VirtualHosts, vh)
	}
	if len(rc.VirtualHosts) == 0 {
		rc.VirtualHosts = []*routev3.VirtualHost{{Name: "blackhole:" + wire.PortString(u.Facts.Servers.At(0).Port), Domains: []string{"*"}}}
	}
	g.Add(xdswire.RouteType, rc.Name, rc)
	return g.Resources()
}

// hosts returns the virtual hosts. Hosts with the same routes share one. The order of
// servers and VirtualServices is the order of the routes of a host.
func (u GatewayRoutes) hosts() []*gatewayHost {
	var out []*gatewayHost
	byName := make(map[string]*gatewayHost)
	at := func(host string, port uint32) *gatewayHost {
		if byName[host] == nil {
			byName[host] = &gatewayHost{domains: []string{host}, port: port}
			out = append(out, byName[host])
		}
		return byName[host]
	}
	services := byGateway(u.bound)
	for s := range u.Facts.Servers.All {
		hosts := s.Hosts.Slice()
		c := routes.RouteContext{Gateway: s.Gateway, Port: s.Port, TLS: s.TLS, Client: u.client, Retries: u.retries}
		for _, v := range services[s.Gateway] {
			if !c.Routes(v) {
				continue
			}
			b := &boundRoutes{VirtualService: v, context: c}
			for _, host := range hostsInCommon(hosts, v) {
				h := at(host, s.Port)
				if !slices.ContainsFunc(h.routes, b.equal) {
					h.routes = append(h.routes, b)
				}
				h.redirect = h.redirect || s.Redirect
			}
		}
		if s.Redirect {
			for _, host := range hosts {
				at(withoutNamespace(host), s.Port).redirect = true
			}
		}
	}
	return joinHosts(u.withoutMisdirected(out))
}

// withoutMisdirected replaces the virtual hosts whose connections come to other servers.
func (u GatewayRoutes) withoutMisdirected(hosts []*gatewayHost) []*gatewayHost {
	if u.Facts.Elsewhere.Empty() {
		return hosts
	}
	elsewhere, own := slices.Collect(u.Facts.Elsewhere.All), hostsOf(u.Facts.Servers.All)
	hosts = slices.DeleteFunc(hosts, func(h *gatewayHost) bool {
		return specificity(elsewhere, h.domains[0]) > specificity(own, h.domains[0])
	})
	return append(hosts, &gatewayHost{domains: elsewhere, port: u.Facts.Servers.At(0).Port, misdirected: true})
}

// joinHosts joins the hosts with the same routes and sorts them.
func joinHosts(hosts []*gatewayHost) []*gatewayHost {
	slices.SortFunc(hosts, func(a, b *gatewayHost) int { return strings.Compare(a.domains[0], b.domains[0]) })
	type key struct {
		first                 *snapshot.VirtualService
		redirect, misdirected bool
	}
	known := make(map[key][]*gatewayHost)
	out := hosts[:0]
	for _, h := range hosts {
		k := key{redirect: h.redirect, misdirected: h.misdirected}
		if len(h.routes) > 0 {
			k.first = h.routes[0].VirtualService
		}
		i := slices.IndexFunc(known[k], func(other *gatewayHost) bool { return slices.EqualFunc(other.routes, h.routes, (*boundRoutes).equal) })
		if i >= 0 {
			known[k][i].domains = append(known[k][i].domains, h.domains...)
			continue
		}
		known[k] = append(known[k], h)
		out = append(out, h)
	}
	return out
}

// catchAllsLast moves the routes that every request meets behind the others. Each of several
// VirtualServices of a host may have one.
func catchAllsLast(list []*routev3.Route) {
	place := func(r *routev3.Route) int {
		if routes.IsCatchAll(r.GetMatch()) {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(list, func(a, b *routev3.Route) int { return place(a) - place(b) })
}
