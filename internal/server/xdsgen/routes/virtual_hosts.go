package routes

import (
	"iter"
	"net/netip"
	"slices"
	"strings"
	"unique"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
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
	in      *snapshot.ClusterService
	virtual *snapshot.VirtualService // has the routes, or is nil
	client  unique.Handle[hostClient]
}

// hostClient is the part of a client and of its mesh that a virtual host depends on. Most virtual
// hosts of a client have the same.
type hostClient struct {
	near      bool   // the client is in the service's namespace
	namespace string // of the client, for a service with aliases
	names     hostNames
	retries   snapshot.RetryPolicy
	routes    snapshot.RouteClient // what the routes of a VirtualService read
}

// hostClients interns clients. Most are equal to the one before.
type hostClients struct {
	last   hostClient
	handle unique.Handle[hostClient]
}

func (h *hostClients) intern(c hostClient) unique.Handle[hostClient] {
	if c != h.last || h.handle == (unique.Handle[hostClient]{}) {
		h.last, h.handle = c, unique.Make(c)
	}
	return h.handle
}

func (u routeFacts) host(clients *hostClients, svc *snapshot.MeshService, port *snapshot.ServicePort, names hostNames, routed RoutedHost) hostKey {
	c := hostClient{near: IsNear(svc, u.namespace), names: names, retries: u.retries, routes: routed.Client}
	if len(svc.Aliases) > 0 {
		c.namespace = u.namespace
	}
	if routed.Virtual == nil && svc.HashedFor(u.namespace, port.Number) {
		c.retries.SameHosts = true // the hash chooses the host of retries too
	}
	return hostKey{service: svc, port: port, in: svc.For(u.cluster), virtual: routed.Virtual, client: clients.intern(c)}
}

// IsNear reports whether clients in a namespace may call a service by its first label.
func IsNear(svc *snapshot.MeshService, client string) bool {
	_, namespace, ok := svc.KubernetesName()
	return ok && namespace == client
}

// appendNames appends the full and the short names of a service of Kubernetes.
func appendNames(to []string, host, name, namespace string, near bool) []string {
	absolute := strings.ToLower(host) + "."
	svc := absolute[:len(name)+len(".")+len(namespace)+len(".svc")]
	short := strings.TrimSuffix(svc, ".svc")
	to = append(to, absolute[:len(host)], absolute)
	if near {
		return append(to, absolute[:len(name)], svc, short)
	}
	return append(to, short, svc)
}

// appendDomains appends the names by which clients may call the service, each once: its names,
// its addresses in the proxy's cluster, and the names of its aliases. All are in lower case, as
// Envoy compares them.
func (k *hostKey) appendDomains(out []string) []string {
	svc, client := k.service, k.client.Value()
	if name, namespace, ok := svc.KubernetesName(); ok {
		out = appendNames(out, svc.Host, name, namespace, client.near)
	} else if out = append(out, strings.ToLower(svc.Host)); !svc.IsWildcard() {
		out = append(out, out[0]+".")
	}
	if svc.Headless {
		for _, d := range out {
			out = append(out, "*."+d)
		}
	}
	if k.in != nil {
		out = appendAddresses(out, svc.AddressesOf(k.in, k.port.Number))
	}
	out = appendAddresses(out, svc.Allocated)
	for i := range svc.Aliases {
		if a := &svc.Aliases[i]; a.VisibleTo(client.namespace) {
			out = appendNames(out, a.Host, a.Name, a.Namespace, a.Namespace == client.namespace)
		}
	}
	if client.names == byNameAndPort {
		out = proxyDomains(out, k.port.Number)
	}
	kept := out[:0]
	for _, d := range out {
		if !slices.Contains(kept, d) {
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
	port := ":" + wire.PortString(number)
	for _, d := range domains {
		if number == 80 {
			out = append(out, d)
		}
		out = append(out, d+port)
	}
	return out
}

// Texts returns addresses as texts.
func Texts(ips []netip.Addr) []string {
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
	room    [usualDomains]string // for domains
}

// usualDomains is the number of domains of most services.
const usualDomains = 6

// virtualHosts is a list of virtual hosts. If several have one domain, the one of the
// first service has it.
type virtualHosts struct {
	enc   *xdswire.Encoder
	cache *xdswire.PartCache[hostKey, virtualHost]
	make  func(hostKey) (*virtualHost, error)
	// base holds the virtual hosts that all clients have, or is nil.
	base    *virtualHosts
	parts   *xdswire.Parts
	changed map[string]*xdswire.Part // of parts, by name
	owners  map[string]*hostKey      // by domain, without the base
	end     hostEnd                  // of the last virtual host
	clients hostClients
}

// newVirtualHosts returns an empty list with room for the domains of some services.
func newVirtualHosts(enc *xdswire.Encoder, services int) *virtualHosts {
	h := &virtualHosts{
		enc: enc, cache: xdswire.CacheOf[hostKey, virtualHost](enc),
		changed: make(map[string]*xdswire.Part, services), owners: make(map[string]*hostKey, usualDomains*services),
	}
	h.make = func(k hostKey) (vh *virtualHost, err error) {
		vh = &virtualHost{of: k}
		vh.domains = k.appendDomains(vh.room[:0])
		vh.Part, err = h.encode(&vh.of, vh.domains)
		return vh, err
	}
	return h
}

// on returns a list that starts with the virtual hosts of another one.
func (h *virtualHosts) on(base *virtualHosts) *virtualHosts {
	h.base, h.parts = base, base.parts
	return h
}

// Add adds the virtual host of a service's port. Services must be added in the order of
// precedence. In a list with a base, it replaces the virtual host of the same port.
func (h *virtualHosts) Add(k hostKey) error {
	vh, err := h.cache.Get(k, h.make)
	if err != nil {
		return err
	}
	var lost []string // domains
	own := &vh.of
	for _, d := range vh.domains {
		got, err := h.take(d, own)
		if err != nil {
			return err
		}
		if !got {
			lost = append(lost, d)
		}
	}
	if len(lost) == 0 {
		h.changed[vh.Name] = &vh.Part
		return nil
	}
	return h.replace(own, slices.DeleteFunc(slices.Clone(vh.domains), func(d string) bool { return slices.Contains(lost, d) }))
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
	err := c.Add(hosts, byName)
	hosts.parts, hosts.changed = hosts.List(), nil
	return hosts, err
}

func (c commonHosts) Add(hosts *virtualHosts, names hostNames) error {
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
	isRouted := RoutedByPort
	if names == byNameAndPort {
		isRouted = routedForProxy
	}
	for svc := range services {
		port := svc.Port(routed.number)
		if !isRouted(svc, port) {
			continue
		}
		if err := h.Add(facts.host(&h.clients, svc, port, names, routed.Of(svc.Host))); err != nil {
			return err
		}
	}
	return nil
}

// addUnserved adds the virtual hosts of hosts without a service. In a list with a base it
// removes the virtual host of a host without routes.
func (h *virtualHosts) addUnserved(facts routeFacts, list []RoutedHost, names hostNames) error {
	for _, r := range list {
		if r.unserved == nil {
			continue
		}
		if r.Virtual == nil {
			h.changed[hostName(r.host, r.Number)] = nil
			continue
		}
		if err := h.Add(facts.host(&h.clients, r.unserved, r.unserved.Port(r.Number), names, r)); err != nil {
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
	for _, d := range k.appendDomains(nil) {
		if _, lost := h.owners[d]; !lost && h.base.owners[d] == k {
			free = append(free, d)
		}
	}
	return h.replace(k, free)
}

// replace replaces a virtual host by one with fewer domains.
func (h *virtualHosts) replace(k *hostKey, domains []string) error {
	if len(domains) == 0 {
		h.changed[hostName(k.service.Host, k.port.Number)] = nil
		return nil
	}
	part, err := h.encode(k, domains)
	h.changed[part.Name] = &part
	return err
}

// List returns the virtual hosts.
func (h *virtualHosts) List() *xdswire.Parts { return h.parts.With(h.changed) }

// encode returns the encoded virtual host with the domains.
func (h *virtualHosts) encode(k *hostKey, domains []string) (xdswire.Part, error) {
	name := hostName(k.service.Host, k.port.Number)
	if k.virtual == nil {
		end, err := h.endOf(k)
		if err != nil {
			return xdswire.Part{}, err
		}
		var room [1024]byte // enough for most services
		return end.Part(name, k.appendStart(room[:0], name, domains, end)), nil
	}
	var g wire.Generator
	m := encodeVirtualHost(&g, k, domains)
	if g.Err != nil {
		return xdswire.Part{}, g.Err
	}
	wire, err := xdswire.Field(HostsField, m)
	return xdswire.NewPart(name, wire), err
}

// hostName returns the name of the virtual host of a host at a port.
func hostName(host string, number uint32) string { return host + ":" + wire.PortString(number) }
