package facts

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// addRoutes adds the tables of VirtualServices for sidecars.
func (t *Tables) addRoutes() {
	g := t.Graph
	t.destinations = derive.New(g, "destinations", strings.Compare, destination.equal, t.destination, t.MeshServices)
	t.destinationsBelow = derive.NewIndex(t.destinations, func(into []string, host string, _ destination) []string {
		patterns(host, func(pattern string) bool {
			if pattern != host {
				into = append(into, pattern)
			}
			return true
		})
		return into
	})
	t.usedVirtual = t.limitedVirtual()
	t.portsOfHosts = derive.New(g, "ports of hosts", ObjectKey.Compare, slices.Equal[[]uint32], t.httpPorts, t.virtual.Table)
	t.routed = derive.New(g, "routed virtual services", ObjectKey.Compare, routedService.equal, t.routedService, t.usedVirtual)
	t.allRouted = list(t.routed)
	t.routedTo = derive.NewIndex(t.routed, func(into []string, _ ObjectKey, v routedService) []string {
		if !slices.Contains(v.Gateways, snapshot.MeshGateway) {
			return into
		}
		hosts := Set[string]{}
		for _, host := range v.Hosts {
			hosts.Add(host)
			hosts.Add(patternOf(host))
		}
		return slices.AppendSeq(into, maps.Keys(hosts))
	})
	t.streamsBelow = derive.NewIndex(t.routed, func(into []string, _ ObjectKey, v routedService) []string {
		if !slices.Contains(v.Gateways, snapshot.MeshGateway) || len(v.TLS)+len(v.TCP) == 0 {
			return into
		}
		wildcards := Set[string]{}
		for _, host := range v.Hosts {
			patterns(host, func(pattern string) bool {
				if pattern != host && pattern != "*" {
					wildcards.Add(pattern)
				}
				return true
			})
		}
		return slices.AppendSeq(into, maps.Keys(wildcards))
	})
	t.Eldest = derive.New(g, "oldest virtual services of hosts", strings.Compare, equalEldest, t.findEldest, t.routedTo)
	t.Crowded = derive.NewIndex(t.Eldest, func(into []struct{}, _ string, _ eldestServices) []struct{} { return append(into, struct{}{}) })
	t.wildcardServices = derive.NewIndex(t.destinations, func(into []string, host string, _ destination) []string {
		if strings.HasPrefix(host, "*") {
			into = append(into, host)
		}
		return into
	})
	t.expanded = derive.New(g, "hosts of wildcards", strings.Compare, slices.Equal[[]string], t.expand, t.routedTo)
	t.expandedTo = derive.NewIndex(t.expanded, func(into []string, _ string, hosts []string) []string { return append(into, hosts...) })
	t.HostRoutes = derive.New(g, "routes", strings.Compare, equalRoutes, t.routesTo, t.routedTo, t.expandedTo, t.wildcardServices)
	t.routesAt = derive.NewIndex(t.HostRoutes, func(into []uint32, _ string, h *snapshot.HostRoutes) []uint32 { return append(into, h.Ports...) })
	t.PortRoutes = derive.New(g, "routes of ports", cmp.Compare[uint32], equalPortRoutes, t.routesOfPort, t.routesAt)
	t.routedHosts = derive.NewIndex(t.HostRoutes, func(into []string, _ string, h *snapshot.HostRoutes) []string {
		into = slices.AppendSeq(into, maps.Keys(h.HTTP.Own))
		for ns := range h.Streams.Own {
			if _, known := h.HTTP.Own[ns]; !known {
				into = append(into, ns)
			}
		}
		return into
	})
	t.routeScopes = derive.New(g, "namespaces with own routes", strings.Compare, equalRouteScope, t.routeScope, t.routedHosts)
	t.RouteClients = derive.Single(g, "clients of routes", equalClients, t.findRouteClients)
	t.referrersOf = derive.NewIndex(t.routed, destinationsOf)
	t.Referrers = derive.New(g, "referrers", strings.Compare, equalReferrers, t.findReferrers, t.referrersOf)
	t.RouteProblems = derive.Single(g, "problems of routes", slices.Equal[[]RouteProblem], t.findRouteProblems)
}

// destination holds the facts about a service that the routes to it read.
type destination struct {
	// alias is the host of the service that an ExternalName service stands for, directly or
	// through others. If no service has it, alias is the external name.
	alias string
	// tcp holds the numbers of its TCP ports, http those whose requests may be routed, and
	// hashed those at which most clients choose an endpoint by a hash.
	tcp, http, hashed []uint32
}

func (d destination) equal(other destination) bool {
	return d.alias == other.alias && slices.Equal(d.tcp, other.tcp) && slices.Equal(d.http, other.http) && slices.Equal(d.hashed, other.hashed)
}

func (t *Tables) destination(r *derive.Reads, key string) (destination, bool) {
	svc, ok := t.MeshServices.Get(r, key)
	if !ok || key != svc.Host {
		return destination{}, false
	}
	out := destination{alias: t.aliased(r, svc), hashed: svc.Hashed}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if p.Protocol == mesh.UDP {
			continue
		}
		out.tcp = append(out.tcp, p.Number)
		if p.Protocol.IsHTTP() || p.Protocol == mesh.Auto {
			out.http = append(out.http, p.Number)
		}
	}
	return out, true
}

// aliased returns the host that an ExternalName service stands for in the end. It returns "" for
// other services.
func (t *Tables) aliased(r *derive.Reads, svc *snapshot.MeshService) string {
	host := strings.ToLower(svc.ExternalName)
	for range MaxAliases {
		next, ok := t.MeshServices.Get(r, host)
		if !ok || next.ExternalName == "" {
			break
		}
		host = strings.ToLower(next.ExternalName)
	}
	return host
}

// routedService is a VirtualService with its routes complete: routes of delegates are
// included, and destinations have the host that they stand for and, if that has only one
// port, its number.
type routedService struct {
	*snapshot.VirtualService
	hosts    *hostIndex
	exports  exports
	problems []routeFault
}

func (v routedService) equal(other routedService) bool {
	return slices.Equal(v.problems, other.problems) && slices.Equal(v.exports, other.exports) && v.SameAs(other.VirtualService)
}

func byAge(a, b routedService) int { return compareAge(a, b) }

// routedService returns the VirtualService with a key, or false if it has no hosts.
func (t *Tables) routedService(r *derive.Reads, key ObjectKey) (routedService, bool) {
	v, ok := t.usedVirtual.Get(r, key)
	if !ok || len(v.Hosts) == 0 {
		return routedService{}, false
	}
	out := *v
	var problems []routeFault
	out.HTTP, problems = t.delegated(r, v)
	unknown := Set[string]{}
	out.TLS, out.TCP = cloneAll(out.TLS), cloneAll(out.TCP)
	for d := range out.Destinations {
		if !t.completeDestination(r, d) {
			unknown.Add(d.GetHost())
		}
	}
	for _, route := range out.HTTP {
		if t.isHashed(r, route) {
			t.retrySameHosts(r, route)
		}
	}
	for _, host := range slices.Sorted(maps.Keys(unknown)) {
		problems = append(problems, routeFault{kind: MissingReference, refers: host, text: "destination " + host + " is no service: requests to it fail"})
	}
	return routedService{&out, newHostIndex(out.Hosts), t.virtualExports(r, v), problems}, true
}

func cloneAll[M proto.Message](list []M) []M {
	out := make([]M, len(list))
	for i, m := range list {
		out[i], _ = proto.Clone(m).(M)
	}
	return out
}

// completeDestination completes a destination. It returns false if no service has the host.
func (t *Tables) completeDestination(r *derive.Reads, d *networkingv1alpha3.Destination) bool {
	to, ok := t.destinations.Get(r, d.GetHost())
	if ok && to.alias != "" {
		d.Host = to.alias
		to, ok = t.destinations.Get(r, d.GetHost())
	}
	if ok && d.GetPort() == nil && len(to.tcp) == 1 {
		d.Port = &networkingv1alpha3.PortSelector{Number: to.tcp[0]}
	}
	if !ok { // a service may stand for all names of a domain
		patterns(d.GetHost(), func(pattern string) bool {
			_, ok = t.destinations.Get(r, pattern)
			return !ok
		})
	}
	return ok
}

// isHashed reports whether a hash chooses the endpoint at all destinations of a route, which
// are complete.
func (t *Tables) isHashed(r *derive.Reads, route *networkingv1alpha3.HTTPRoute) bool {
	return len(route.GetRoute()) > 0 && !slices.ContainsFunc(route.GetRoute(), func(d *networkingv1alpha3.HTTPRouteDestination) bool {
		to, _ := t.destinations.Get(r, d.GetDestination().GetHost())
		if p := d.GetDestination().GetPort(); p != nil {
			return !slices.Contains(to.hashed, p.GetNumber())
		}
		return len(to.hashed) == 0 || len(to.hashed) < len(to.tcp) // the port of the listener
	})
}

// retrySameHosts lets retries of a route go to hosts that have failed, unless its retries
// say otherwise.
func (t *Tables) retrySameHosts(r *derive.Reads, route *networkingv1alpha3.HTTPRoute) {
	if route.Retries == nil {
		route.Retries = &networkingv1alpha3.HTTPRetry{Attempts: 2} // Istio's default
		if byDefault := meshConfig(t.MeshSettings.Get(r)).GetDefaultHttpRetryPolicy(); byDefault != nil {
			route.Retries, _ = proto.Clone(byDefault).(*networkingv1alpha3.HTTPRetry)
		}
	}
	if route.Retries.RetryIgnorePreviousHosts == nil {
		route.Retries.RetryIgnorePreviousHosts = wrapperspb.Bool(false)
	}
}

// virtualExports returns the exports of a VirtualService.
func (t *Tables) virtualExports(r *derive.Reads, v *snapshot.VirtualService) exports {
	return newExports(v.ExportTo, meshConfig(t.MeshSettings.Get(r)).GetDefaultVirtualServiceExportTo(), v.Namespace)
}

// expand returns the hosts of services that a wildcard matches.
func (t *Tables) expand(r *derive.Reads, wildcard string) ([]string, bool) {
	if !strings.HasPrefix(wildcard, "*") {
		return nil, false
	}
	var out []string
	for host := range t.covered(r, wildcard) {
		out = append(out, host)
	}
	slices.Sort(out)
	return out, len(out) > 0
}

// covered iterates over the hosts of services that a wildcard matches.
func (t *Tables) covered(r *derive.Reads, wildcard string) iter.Seq2[string, destination] {
	return func(yield func(string, destination) bool) {
		for host, d := range t.destinationsBelow.Lookup(r, patternOf(wildcard)) {
			if snapshot.Covers(wildcard, host) && !yield(host, d) {
				return
			}
		}
	}
}

// MaxSameHost bounds the VirtualServices of a namespace for sidecars with one host.
const MaxSameHost = 50

// eldestServices holds the VirtualServices with a host of which some namespace has too many: in each
// namespace the oldest ones.
type eldestServices struct {
	used   []routedService
	Beyond []ObjectKey
}

func equalEldest(a, b eldestServices) bool {
	return slices.EqualFunc(a.used, b.used, routedService.equal) && slices.Equal(a.Beyond, b.Beyond)
}

// findEldest returns false for a host that no namespace has too often.
func (t *Tables) findEldest(r *derive.Reads, host string) (eldestServices, bool) {
	if t.routedTo.Len(r, host) <= MaxSameHost {
		return eldestServices{}, false
	}
	all := values(t.routedTo.Lookup(r, host))
	slices.SortStableFunc(all, byAge)
	var out eldestServices
	root, of := t.operators(r), make(map[string]int)
	for _, v := range all {
		if of[v.Namespace]++; of[v.Namespace] <= MaxSameHost || v.Namespace == root {
			out.used = append(out.used, v)
		} else {
			out.Beyond = append(out.Beyond, ObjectKey{v.Cluster, v.Namespace, v.Name})
		}
	}
	return out, len(out.Beyond) > 0
}

// servicesWith iterates over the VirtualServices with a host, or with a part of a wildcard.
func (t *Tables) servicesWith(r *derive.Reads, host string) iter.Seq[routedService] {
	if eldest, ok := t.Eldest.Get(r, host); ok {
		return slices.Values(eldest.used)
	}
	return routedServices(t.routedTo.Lookup(r, host))
}

// routedServices iterates over the values.
func routedServices(entries iter.Seq2[ObjectKey, routedService]) iter.Seq[routedService] {
	return func(yield func(routedService) bool) {
		for _, v := range entries {
			if !yield(v) {
				return
			}
		}
	}
}

// servicesFor returns the VirtualServices for sidecars whose hosts overlap a host.
func (t *Tables) servicesFor(r *derive.Reads, host string) []routedService {
	var all []routedService
	known, n := Set[*snapshot.VirtualService]{}, 0 // the first n of all, which further lists may have, too
	look := func(list iter.Seq[routedService], matches func(routedService) bool) {
		before := len(all)
		for v := range list {
			for ; n < before; n++ {
				known.Add(all[n].VirtualService)
			}
			if !known.Has(v.VirtualService) && matches(v) {
				all = append(all, v)
			}
		}
	}
	patterns(host, func(pattern string) bool {
		look(t.servicesWith(r, pattern), func(v routedService) bool {
			return pattern == host || v.hosts.names.Has(pattern) || v.hosts.overlaps(host)
		})
		return true
	})
	if strings.HasPrefix(host, "*") { // a service may stand for all names of a domain
		look(routedServices(t.streamsBelow.Lookup(r, patternOf(host))), func(v routedService) bool { return v.hosts.overlaps(host) })
	}
	return all
}

// routesTo returns the VirtualServices of a host for sidecars.
func (t *Tables) routesTo(r *derive.Reads, host string) (*snapshot.HostRoutes, bool) {
	all := t.servicesFor(r, host)
	if !slices.IsSortedFunc(all, byAge) {
		slices.SortFunc(all, byAge)
	}
	out := &snapshot.HostRoutes{
		Host:    host,
		HTTP:    clientRoutes(all, func(list []routedService) []*snapshot.VirtualService { return mostSpecific(list, host) }),
		Streams: clientRoutes(all, withStreams),
	}
	if !anyRoutes(out.HTTP) && !anyRoutes(out.Streams) {
		return nil, false
	}
	to, served := t.destinations.Get(r, host)
	out.Ports = slices.Clone(to.tcp)
	if slices.ContainsFunc(all, func(v routedService) bool { return v.hosts.names.Has(host) }) {
		served, http := to.tcp, []uint32(nil)
		if to.alias != "" { // the name of another service, which has the ports
			target, _ := t.destinations.Get(r, to.alias)
			served, http = nil, slices.Concat(to.http, target.http)
		}
		out.Unserved = t.unserved(r, host, all, served, http)
	}
	if !served && out.Unserved == nil {
		return nil, false
	}
	if out.Unserved != nil {
		for i := range out.Unserved.Ports {
			out.Ports = append(out.Ports, out.Unserved.Ports[i].Number)
		}
	}
	slices.Sort(out.Ports)
	out.Ports = slices.Compact(out.Ports)
	return out, true
}

// unserved returns what stands for a host of VirtualServices at the ports where no service
// has it: 80, the ports in http, and the ports of services that the VirtualServices name as other
// hosts.
func (t *Tables) unserved(r *derive.Reads, host string, all []routedService, served, http []uint32) *snapshot.MeshService {
	const always = 80
	ports := Set[uint32]{}
	for _, number := range append(http, always) {
		ports.Add(number)
	}
	var oldest *snapshot.VirtualService
	for _, v := range all {
		if !v.hosts.names.Has(host) {
			continue
		}
		if oldest == nil {
			oldest = v.VirtualService
		}
		of, _ := t.portsOfHosts.Get(r, ObjectKey{v.Cluster, v.Namespace, v.Name})
		for _, number := range of { // the ports of the host itself are served
			ports.Add(number)
		}
	}
	below, _ := t.expanded.Get(r, host)
	for _, h := range below {
		d, _ := t.destinations.Get(r, h)
		served = append(slices.Clip(served), d.tcp...)
	}
	for _, number := range served {
		delete(ports, number)
	}
	if len(ports) == 0 {
		return nil
	}
	out := &snapshot.MeshService{Key: host, Host: host, Name: host, Namespace: oldest.Namespace, Created: oldest.Created, Entry: true}
	for _, number := range slices.Sorted(maps.Keys(ports)) {
		out.Ports = append(out.Ports, snapshot.ServicePort{Number: number, Protocol: mesh.HTTP})
	}
	return out
}

// httpPorts returns the ports of the services of a VirtualService's hosts that route requests.
func (t *Tables) httpPorts(r *derive.Reads, k ObjectKey) ([]uint32, bool) {
	v, ok := t.virtual.Get(r, k)
	if !ok {
		return nil, false
	}
	ports := Set[uint32]{}
	for _, host := range v.Hosts {
		d, _ := t.destinations.Get(r, host)
		for _, number := range d.http {
			ports.Add(number)
		}
	}
	return slices.Sorted(maps.Keys(ports)), len(ports) > 0
}

func anyRoutes(c snapshot.ClientRoutes) bool { return len(c.Default)+len(c.Own) > 0 }

// clientRoutes returns the VirtualServices by the namespaces of clients. all are ordered by
// age; choose returns the ones in a list that count.
func clientRoutes(all []routedService, choose func([]routedService) []*snapshot.VirtualService) snapshot.ClientRoutes {
	out := snapshot.ClientRoutes{Default: choose(visibleTo("", all))}
	clients := Set[string]{}
	for _, v := range all {
		for _, to := range v.exports {
			if to == "." {
				to = v.Namespace
			}
			clients.Add(to)
		}
	}
	for client := range clients {
		if !mesh.IsDNSLabel(client) {
			continue
		}
		if list := choose(visibleTo(client, all)); !slices.Equal(list, out.Default) {
			if out.Own == nil {
				out.Own = make(map[string][]*snapshot.VirtualService)
			}
			out.Own[client] = list
		}
	}
	return out
}

// visibleTo returns the VirtualServices that clients in a namespace see: first those that
// only their own namespace exports to itself, then those exported to it by name, then those
// for all.
func visibleTo(client string, all []routedService) []routedService {
	if !slices.ContainsFunc(all, func(v routedService) bool { return !slices.Contains(v.exports, "*") }) {
		return all // as most are
	}
	var own, named, public []routedService
	for _, v := range all {
		switch {
		case slices.Contains(v.exports, "*"):
			public = append(public, v)
		case client == v.Namespace && slices.Contains(v.exports, "."):
			own = append(own, v)
		case slices.Contains(v.exports, client):
			named = append(named, v)
		}
	}
	return slices.Concat(own, named, public)
}

// mostSpecific returns the VirtualServices with HTTP routes for a host: all that name it,
// else the first with the longest wildcard that matches it.
func mostSpecific(list []routedService, host string) []*snapshot.VirtualService {
	var exact []routedService
	for _, v := range list {
		if v.hosts.names.Has(host) {
			exact = append(exact, v)
		}
	}
	if exact == nil {
		longest := 0
		for _, v := range list {
			if n := len(v.hosts.longestWildcard(host)); n > longest {
				exact, longest = []routedService{v}, n
			}
		}
	}
	return slices.DeleteFunc(servicesOf(exact), func(v *snapshot.VirtualService) bool { return len(v.HTTP) == 0 })
}

func withStreams(list []routedService) []*snapshot.VirtualService {
	var out []*snapshot.VirtualService
	for _, v := range list {
		if len(v.TLS)+len(v.TCP) > 0 {
			out = append(out, v.VirtualService)
		}
	}
	return out
}

func servicesOf(list []routedService) []*snapshot.VirtualService {
	out := make([]*snapshot.VirtualService, len(list))
	for i, v := range list {
		out[i] = v.VirtualService
	}
	return out
}

func equalRoutes(a, b *snapshot.HostRoutes) bool {
	return slices.Equal(a.Ports, b.Ports) && a.HTTP.Same(b.HTTP) && a.Streams.Same(b.Streams) &&
		(a.Unserved == nil) == (b.Unserved == nil) && (a.Unserved == nil || equalService(a.Unserved, b.Unserved))
}

// routesOfPort returns the VirtualServices at a port number for most clients.
func (t *Tables) routesOfPort(r *derive.Reads, number uint32) (*snapshot.PortRoutes, bool) {
	out := &snapshot.PortRoutes{Number: number}
	for _, h := range values(t.routesAt.Lookup(r, number)) {
		host := snapshot.RoutedHost{
			Host: h.Host, Services: h.HTTP.Default, Unserved: h.UnservedAt(number, h.HTTP.Default),
			ByClient: slices.ContainsFunc(h.HTTP.Default, (*snapshot.VirtualService).ByClient),
		}
		if len(host.Services) > 0 {
			out.HTTP = append(out.HTTP, host)
		}
		if len(h.Streams.Default) > 0 {
			out.Streams = append(out.Streams, snapshot.RoutedHost{Host: h.Host, Services: h.Streams.Default})
		}
	}
	slices.SortFunc(out.HTTP, compareHosts)
	slices.SortFunc(out.Streams, compareHosts)
	return out, len(out.HTTP)+len(out.Streams) > 0
}

func compareHosts(a, b snapshot.RoutedHost) int { return strings.Compare(a.Host, b.Host) }

func equalPortRoutes(a, b *snapshot.PortRoutes) bool {
	return slices.EqualFunc(a.HTTP, b.HTTP, snapshot.RoutedHost.Same) && slices.EqualFunc(a.Streams, b.Streams, snapshot.RoutedHost.Same)
}

// routeScope returns the hosts with VirtualServices of their own for clients in a namespace.
func (t *Tables) routeScope(r *derive.Reads, ns string) (*snapshot.RouteScope, bool) {
	out := &snapshot.RouteScope{}
	for host, h := range t.routedHosts.Lookup(r, ns) {
		if _, own := h.HTTP.Own[ns]; own {
			out.HTTP = append(out.HTTP, host)
		}
		if _, own := h.Streams.Own[ns]; own {
			out.Streams = append(out.Streams, host)
		}
	}
	slices.Sort(out.HTTP)
	slices.Sort(out.Streams)
	return out, true
}

func equalRouteScope(a, b *snapshot.RouteScope) bool {
	return slices.Equal(a.HTTP, b.HTTP) && slices.Equal(a.Streams, b.Streams)
}

// findRouteClients returns the conditions on clients in VirtualServices.
func (t *Tables) findRouteClients(r *derive.Reads) *snapshot.ClientMatches {
	http, streams, gateways := map[string]snapshot.ClientMatch{}, map[string]snapshot.ClientMatch{}, map[string]snapshot.ClientMatch{}
	for _, v := range t.allRouted.Lookup(r, struct{}{}) {
		sidecars := slices.Contains(v.Gateways, snapshot.MeshGateway)
		if !sidecars || len(v.Gateways) > 1 {
			for m := range v.RequestMatches {
				gateways[m.Key()] = m
			}
		}
		if !sidecars {
			continue
		}
		for m := range v.ClientMatches {
			http[m.Key()] = m
		}
		for m := range v.StreamMatches {
			streams[m.Key()] = m
		}
	}
	sorted := func(of map[string]snapshot.ClientMatch) (out []snapshot.ClientMatch) {
		delete(of, "")
		for _, key := range slices.Sorted(maps.Keys(of)) {
			out = append(out, of[key])
		}
		return out
	}
	return &snapshot.ClientMatches{HTTP: sorted(http), Streams: sorted(streams), Gateways: sorted(gateways)}
}

func equalClients(a, b *snapshot.ClientMatches) bool {
	same := func(x, y snapshot.ClientMatch) bool { return x.Key() == y.Key() }
	return slices.EqualFunc(a.HTTP, b.HTTP, same) && slices.EqualFunc(a.Streams, b.Streams, same) && slices.EqualFunc(a.Gateways, b.Gateways, same)
}
