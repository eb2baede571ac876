package xdsgen

import (
	"iter"
	"net/netip"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// hostNames is the form in which clients name a service.
type hostNames bool

const (
	byName        hostNames = false
	byNameAndPort hostNames = true // clients of an HTTP proxy
)

// hostKey holds everything that the virtual host of a service's port depends on.
type hostKey struct {
	service *snapshot.MeshService
	port    *snapshot.ServicePort
	near    bool   // the client is in the service's namespace
	client  string // the client's namespace, for a service with aliases
	in      *snapshot.ClusterService
	names   hostNames
	retries snapshot.RetryPolicy
	// virtual has the routes, or is nil. routeClient is the part of the client that they read.
	virtual     *snapshot.VirtualService
	routeClient snapshot.RouteClient
}

func (u routeFacts) host(svc *snapshot.MeshService, port *snapshot.ServicePort, names hostNames, routed routedHost) hostKey {
	k := hostKey{
		service: svc, port: port, near: isNear(svc, u.namespace), in: svc.For(u.cluster), names: names, retries: u.retries,
		virtual: routed.virtual, routeClient: routed.client,
	}
	if len(svc.Aliases) > 0 {
		k.client = u.namespace
	}
	if k.virtual == nil && svc.HashedFor(u.namespace, port.Number) {
		k.retries.SameHosts = true // the hash chooses the host of retries too
	}
	return k
}

// isNear reports whether clients in a namespace may call a service by its first label.
func isNear(svc *snapshot.MeshService, client string) bool {
	_, namespace, ok := svc.KubernetesName()
	return ok && namespace == client
}

// namesOf returns the full and the short names of a service.
func namesOf(host, name, namespace string, near bool) []string {
	svc := name + "." + namespace + ".svc"
	short := strings.TrimSuffix(svc, ".svc")
	const room = 8 // for addresses
	if near {
		return append(make([]string, 0, room), host, host+".", name, svc, short)
	}
	return append(make([]string, 0, room), host, host+".", short, svc)
}

// domains returns the names by which clients may call the service, each once: its names,
// its addresses in the proxy's cluster, and the names of its aliases.
func (k *hostKey) domains() []string {
	svc := k.service
	var out []string
	if name, namespace, ok := svc.KubernetesName(); ok {
		out = namesOf(svc.Host, name, namespace, k.near)
	} else if out = []string{svc.Host}; !svc.IsWildcard() {
		out = append(out, svc.Host+".")
	}
	if svc.Headless {
		for _, d := range out {
			out = append(out, "*."+d)
		}
	}
	if k.in != nil {
		out = appendAddresses(out, k.in.VIPs)
	}
	out = appendAddresses(out, svc.Allocated)
	for i := range svc.Aliases {
		if a := &svc.Aliases[i]; a.VisibleTo(k.client) {
			out = append(out, namesOf(a.Host, a.Name, a.Namespace, a.Namespace == k.client)...)
		}
	}
	if k.names == byNameAndPort {
		out = proxyDomains(out, k.port.Number)
	}
	kept := out[:0]
	for _, d := range out {
		if !slices.ContainsFunc(kept, func(other string) bool { return strings.EqualFold(other, d) }) {
			kept = append(kept, d)
		}
	}
	return kept
}

// appendAddresses appends addresses as they are in a Host header.
func appendAddresses(to []string, ips []netip.Addr) []string {
	for _, ip := range ips {
		if ip.Is4() {
			to = append(to, ip.String())
		} else {
			to = append(to, "["+ip.String()+"]")
		}
	}
	return to
}

// proxyDomains returns the names of a service as clients of an HTTP proxy send them: with
// the port, which is optional for port 80.
func proxyDomains(domains []string, number uint32) []string {
	var out []string
	port := ":" + portString(number)
	for _, d := range domains {
		if number == 80 {
			out = append(out, d)
		}
		out = append(out, d+port)
	}
	return out
}

// addresses returns the cluster IPs of a service in one cluster. in may be nil.
func addresses(in *snapshot.ClusterService) []string {
	if in == nil {
		return nil
	}
	return texts(in.VIPs)
}

func texts(ips []netip.Addr) []string {
	out := make([]string, len(ips))
	for i, ip := range ips {
		out[i] = ip.String()
	}
	return out
}

// virtualHost is an encoded virtual host. Route configurations share it, so that after a
// change of one service only its virtual hosts are encoded again.
type virtualHost struct {
	xdswire.Part
	of      hostKey
	domains []string
	lower   []string // domains in lower case, as Envoy compares them; may be domains
}

// virtualHosts is a list of virtual hosts. If several have one domain, the one of the
// first service has it.
type virtualHosts struct {
	enc *xdswire.Encoder
	// base holds the virtual hosts that all clients have, or is nil.
	base    *virtualHosts
	parts   *xdswire.Parts
	changed map[string]*xdswire.Part // of parts, by name
	owners  map[string]*hostKey      // by domain, without the base
}

// newVirtualHosts returns an empty list with room for the domains of some services.
func newVirtualHosts(enc *xdswire.Encoder, services int) *virtualHosts {
	const domains = 5 // per service, usually
	return &virtualHosts{enc: enc, changed: make(map[string]*xdswire.Part), owners: make(map[string]*hostKey, domains*services)}
}

// on returns a list that starts with the virtual hosts of another one.
func (h *virtualHosts) on(base *virtualHosts) *virtualHosts {
	h.base, h.parts = base, base.parts
	return h
}

// add adds the virtual host of a service's port. Services must be added in the order of
// precedence. In a list with a base, it replaces the virtual host of the same port.
func (h *virtualHosts) add(k hostKey) error {
	vh, err := xdswire.Shared(h.enc, k, func() (*virtualHost, error) { return k.encode(k.domains()) })
	if err != nil {
		return err
	}
	var lost []string // domains
	own := &vh.of
	for i, d := range vh.lower {
		got, err := h.take(d, own)
		if err != nil {
			return err
		}
		if !got {
			lost = append(lost, vh.domains[i])
		}
	}
	if len(lost) == len(vh.domains) {
		h.changed[vh.Name] = nil
		return nil
	}
	if len(lost) > 0 {
		free := slices.DeleteFunc(slices.Clone(vh.domains), func(d string) bool { return slices.Contains(lost, d) })
		if vh, err = k.encode(free); err != nil {
			return err
		}
	}
	h.changed[vh.Name] = &vh.Part
	return nil
}

// take gives a domain to a port, and reports whether no port with precedence has it.
func (h *virtualHosts) take(domain string, k *hostKey) (bool, error) {
	if _, taken := h.owners[domain]; taken {
		return false, nil
	}
	owner := h.base.owner(domain)
	taken := owner != nil && owner.service != k.service
	if taken && precedes(owner.service, k.service) {
		return false, nil
	}
	h.owners[domain] = k
	if taken {
		return true, h.shorten(owner)
	}
	return true, nil
}

// precedes reports whether x keeps the domains that it shares with y: a host that only
// VirtualServices define, which may be the short name of a Service, else the older service.
func precedes(x, y *snapshot.MeshService) bool {
	if own := isUnserved(x); own != isUnserved(y) {
		return own
	}
	return snapshot.CompareServices(x, y) < 0
}

// isUnserved reports whether a service stands for a host without a service.
func isUnserved(s *snapshot.MeshService) bool { return s.Entry && len(s.Clusters) == 0 }

// commonHosts are the virtual hosts of a port that are the same for all clients. They are
// encoded once, and the route configurations of all namespaces share their memory.
type commonHosts struct {
	services *snapshot.PortServices
	routes   *snapshot.PortRoutes // or nil
	facts    routeFacts
}

func (c commonHosts) make(enc *xdswire.Encoder) (*virtualHosts, error) {
	hosts := newVirtualHosts(enc, len(c.services.Services))
	err := c.add(hosts, byName)
	hosts.parts, hosts.changed = hosts.list(), nil
	return hosts, err
}

func (c commonHosts) add(hosts *virtualHosts, names hostNames) error {
	routed := routedHosts{number: c.services.Number, common: c.routes}
	if err := hosts.addUnserved(c.facts, routed.unserved(), names); err != nil {
		return err
	}
	return hosts.addPort(c.facts, routed, func(yield func(*snapshot.MeshService) bool) {
		for _, svc := range c.services.Services {
			if svc.ExternalName == "" && !svc.DiffersByClient() && !yield(svc) {
				return
			}
		}
	}, names)
}

// addPort adds the virtual hosts of services at a port number.
func (h *virtualHosts) addPort(facts routeFacts, routed routedHosts, services iter.Seq[*snapshot.MeshService], names hostNames) error {
	isRouted := routedByPort
	if names == byNameAndPort {
		isRouted = routedForProxy
	}
	for svc := range services {
		port := svc.Port(routed.number)
		if !isRouted(svc, port) {
			continue
		}
		if err := h.add(facts.host(svc, port, names, routed.of(svc.Host))); err != nil {
			return err
		}
	}
	return nil
}

// addUnserved adds the virtual hosts of hosts without a service. In a list with a base it
// removes the virtual host of a host without routes.
func (h *virtualHosts) addUnserved(facts routeFacts, list []routedHost, names hostNames) error {
	for _, r := range list {
		if r.unserved == nil {
			continue
		}
		if r.virtual == nil {
			h.changed[hostName(r.host, r.number)] = nil
			continue
		}
		if err := h.add(facts.host(r.unserved, r.unserved.Port(r.number), names, r)); err != nil {
			return err
		}
	}
	return nil
}

// owner returns the port that has a domain, or nil. h may be nil, which is empty.
func (h *virtualHosts) owner(domain string) *hostKey {
	if h == nil {
		return nil
	}
	return h.owners[domain]
}

// shorten takes domains with another owner from a virtual host of the base.
func (h *virtualHosts) shorten(k *hostKey) error {
	var free []string
	for _, d := range k.domains() {
		lower := strings.ToLower(d)
		if _, lost := h.owners[lower]; !lost && h.base.owners[lower] == k {
			free = append(free, d)
		}
	}
	vh, err := k.encode(free)
	if err != nil {
		return err
	}
	h.changed[vh.Name] = &vh.Part
	if len(free) == 0 {
		h.changed[vh.Name] = nil
	}
	return nil
}

// list returns the virtual hosts.
func (h *virtualHosts) list() *xdswire.Parts { return h.parts.With(h.changed) }

func (k *hostKey) encode(domains []string) (*virtualHost, error) {
	var g generator
	m := g.virtualHost(k, domains)
	if g.err != nil {
		return nil, g.err
	}
	wire, err := xdswire.Field(hostsField, m)
	lower := domains
	if slices.ContainsFunc(domains, func(d string) bool { return strings.ToLower(d) != d }) {
		lower = make([]string, len(domains))
		for i, d := range domains {
			lower[i] = strings.ToLower(d)
		}
	}
	return &virtualHost{Part: xdswire.NewPart(m.GetName(), wire), of: *k, domains: domains, lower: lower}, err
}

// hostName returns the name of the virtual host of a host at a port.
func hostName(host string, number uint32) string { return host + ":" + portString(number) }

// virtualHost returns the virtual host of a service's port.
func (g *generator) virtualHost(k *hostKey, domains []string) *routev3.VirtualHost {
	name := hostName(k.service.Host, k.port.Number)
	vh := &routev3.VirtualHost{Name: name, Domains: domains, IncludeRequestAttemptCount: true}
	if k.virtual != nil {
		vh.Routes = g.virtualServiceRoutes(k.virtual, routeContext{gateway: snapshot.MeshGateway, port: k.port.Number, client: k.routeClient, retries: k.retries})
	} else {
		vh.Routes = []*routev3.Route{g.serviceRoute(name, mesh.ClusterName{Direction: mesh.Outbound, Port: k.port.Number, Host: k.service.Host}.String(), k.retries)}
	}
	if k.port.Protocol.IsHTTP2() {
		vh.TypedPerFilterConfig = http2ALPN()
	}
	return vh
}

// serviceRoute returns the route of all requests to a cluster, in one allocation.
func (g *generator) serviceRoute(name, cluster string, retries snapshot.RetryPolicy) *routev3.Route {
	var r struct {
		route     routev3.Route
		decorator routev3.Decorator
		of        routev3.Route_Route
		action    routev3.RouteAction
		cluster   routev3.RouteAction_Cluster
	}
	r.cluster.Cluster = cluster
	r.action.ClusterSpecifier = &r.cluster
	r.action.Timeout = noTime
	r.action.MaxGrpcTimeout = noTime //nolint:staticcheck // Istio's routes have it and every Envoy reads it
	r.action.RetryPolicy = g.retryPolicy(retries)
	r.of.Route = &r.action
	r.decorator.Operation = name + "/*"
	r.route.Name, r.route.Match, r.route.Decorator, r.route.Action = "default", everyPath, &r.decorator, &r.of
	return &r.route
}

// catchAll returns the virtual host for unknown hosts. It passes requests on to a cluster, or
// refuses them if that is BlackHoleCluster.
func catchAll(cluster string) *routev3.VirtualHost {
	name := "allow_any"
	route := &routev3.Route{Match: everyPath}
	if cluster == mesh.BlackHoleCluster {
		name = "block_all"
		route.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 502}}
	} else {
		route.Action = &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
			Timeout:          noTime,
			MaxGrpcTimeout:   noTime, //nolint:staticcheck // see serviceRoute
		}}
	}
	route.Name = name
	return &routev3.VirtualHost{Name: name, Domains: []string{"*"}, IncludeRequestAttemptCount: true, Routes: []*routev3.Route{route}}
}
