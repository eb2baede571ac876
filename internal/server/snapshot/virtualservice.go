package snapshot

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// MeshGateway is the gateway name that stands for all sidecars.
const MeshGateway = "mesh"

// VirtualService sets how requests and connections to its hosts are routed. All names in
// it are resolved: hosts are full and in lower case, and gateways have a namespace.
type VirtualService struct {
	Meta
	// Hosts holds the hosts. One may start with "*.", or be "*" for gateways. Without hosts,
	// the VirtualService only completes others, which delegate to it.
	Hosts []string
	// Gateways holds MeshGateway, and Gateway objects as <namespace>/<name>. It is never
	// empty.
	Gateways []string
	// ExportTo holds namespaces. Empty means the default of the mesh.
	ExportTo []string
	// The gateways of matches and the namespaces of delegates are resolved, too.
	HTTP []*networkingv1alpha3.HTTPRoute
	TLS  []*networkingv1alpha3.TLSRoute
	TCP  []*networkingv1alpha3.TCPRoute
}

// Key implements Object.
func (v *VirtualService) Key() Key { return v.key(KindVirtualService) }

// SameAs reports whether two objects mean the same. Their places may differ.
func (v *VirtualService) SameAs(other *VirtualService) bool {
	return v.Namespace == other.Namespace && v.Name == other.Name && v.Created.Equal(other.Created) && v.Suppress == other.Suppress &&
		slices.Equal(v.Hosts, other.Hosts) && slices.Equal(v.Gateways, other.Gateways) && slices.Equal(v.ExportTo, other.ExportTo) &&
		slices.EqualFunc(v.HTTP, other.HTTP, equalMessages) && slices.EqualFunc(v.TLS, other.TLS, equalMessages) &&
		slices.EqualFunc(v.TCP, other.TCP, equalMessages)
}

// Destinations iterates over the destinations of all routes and mirrors.
func (v *VirtualService) Destinations(yield func(*networkingv1alpha3.Destination) bool) {
	var all []*networkingv1alpha3.Destination
	for _, r := range v.HTTP {
		for _, d := range r.GetRoute() {
			all = append(all, d.GetDestination())
		}
		all = append(all, r.GetMirror())
		for _, m := range r.GetMirrors() {
			all = append(all, m.GetDestination())
		}
	}
	streams := func(routes []*networkingv1alpha3.RouteDestination) {
		for _, d := range routes {
			all = append(all, d.GetDestination())
		}
	}
	for _, r := range v.TLS {
		streams(r.GetRoute())
	}
	for _, r := range v.TCP {
		streams(r.GetRoute())
	}
	for _, d := range all {
		if d != nil && !yield(d) {
			return
		}
	}
}

func equalMessages[M proto.Message](a, b M) bool { return proto.Equal(a, b) }

// HostMatches reports whether the hosts of a VirtualService overlap a host. Both may be
// wildcards.
func (v *VirtualService) HostMatches(host string) bool {
	return slices.ContainsFunc(v.Hosts, func(own string) bool { return HostsOverlap(own, host) })
}

// HostsOverlap reports whether two hosts, which may be wildcards, have a name in common.
func HostsOverlap(a, b string) bool {
	x, wildA := strings.CutPrefix(a, "*")
	y, wildB := strings.CutPrefix(b, "*")
	switch {
	case wildA && wildB:
		return strings.HasSuffix(x, y) || strings.HasSuffix(y, x)
	case wildA:
		return len(b) > len(x) && strings.HasSuffix(b, x)
	case wildB:
		return len(a) > len(y) && strings.HasSuffix(a, y)
	}
	return a == b
}

// Covers reports whether a wildcard includes all names of another host, which may be a wildcard.
func Covers(wildcard, host string) bool {
	suffix, ok := strings.CutPrefix(wildcard, "*")
	return ok && host != wildcard && len(host) >= len(wildcard) && strings.HasSuffix(host, suffix)
}

// Referrers holds the VirtualServices for sidecars with a route to one host, sorted and each
// once. A Sidecar that imports one of them also imports the services of the host.
type Referrers struct{ Services []Referrer }

// Referrer holds what decides which Sidecars import a VirtualService.
type Referrer struct {
	Namespace       string
	Hosts, ExportTo []string
}

// VisibleTo reports whether exportTo lets the namespace see the VirtualService.
func (f *Referrer) VisibleTo(namespace string) bool {
	return exported(f.ExportTo, f.Namespace, namespace)
}

// HostRoutes holds the VirtualServices of one host for sidecars.
type HostRoutes struct {
	Host string
	// Ports holds the port numbers at which the host has routes, sorted.
	Ports []uint32
	// HTTP holds the VirtualServices for requests: the first one with a route for the port
	// and the client applies. Streams holds those for TLS and TCP connections, whose routes
	// all apply.
	HTTP, Streams ClientRoutes
	// Unserved stands for the host at the ports where no service has it. It may be nil.
	Unserved *MeshService
}

// UnservedAt returns what stands for the host at a port if list routes its requests. It
// returns nil if a service has the port, or if list only has wildcards, which are hosts of
// their own.
func (h *HostRoutes) UnservedAt(number uint32, list []*VirtualService) *MeshService {
	if h.Unserved == nil || h.Unserved.Port(number) == nil || len(list) == 0 || !slices.Contains(list[0].Hosts, h.Host) {
		return nil
	}
	return h.Unserved
}

// ClientRoutes holds VirtualServices by the namespaces of clients, in the order of
// precedence.
type ClientRoutes struct {
	// Default holds the VirtualServices for all namespaces that are not in Own.
	Default []*VirtualService
	Own     map[string][]*VirtualService
}

// For returns the VirtualServices for clients in a namespace.
func (r ClientRoutes) For(namespace string) []*VirtualService {
	if own, ok := r.Own[namespace]; ok {
		return own
	}
	return r.Default
}

// Same reports whether both hold the same VirtualServices.
func (r ClientRoutes) Same(other ClientRoutes) bool {
	return slices.Equal(r.Default, other.Default) && maps.EqualFunc(r.Own, other.Own, slices.Equal[[]*VirtualService])
}

// PortRoutes holds the VirtualServices at one port number for the clients to which no others
// apply, sorted by host.
type PortRoutes struct {
	Number        uint32
	HTTP, Streams []RoutedHost
}

// RoutedHost is a host with its VirtualServices in the order of precedence.
type RoutedHost struct {
	Host     string
	Services []*VirtualService
	// Unserved is HostRoutes.Unserved, if it has the port.
	Unserved *MeshService
	// ByClient reports whether some route depends on the client.
	ByClient bool
}

// Same reports whether both hold the same VirtualServices.
func (h RoutedHost) Same(other RoutedHost) bool {
	return h.Host == other.Host && h.Unserved == other.Unserved && slices.Equal(h.Services, other.Services)
}

// RouteScope names the hosts to which other VirtualServices apply for clients in a
// namespace than in most namespaces, sorted.
type RouteScope struct{ HTTP, Streams []string }

// ClientMatch is the condition of a route on the workload of a client.
type ClientMatch struct {
	Namespace string            // "" means any
	Labels    map[string]string // of which the workload has all
}

// ClientMatchOf returns the condition on clients of a match.
func ClientMatchOf(m interface {
	GetSourceNamespace() string
	GetSourceLabels() map[string]string
},
) ClientMatch {
	return ClientMatch{m.GetSourceNamespace(), m.GetSourceLabels()}
}

// Key returns a comparable form, which is "" for a condition that always holds.
func (m ClientMatch) Key() string {
	if m.Namespace == "" && len(m.Labels) == 0 {
		return ""
	}
	return m.Namespace + "/" + string(SelectorOf(m.Labels))
}

// ClientMatches holds the conditions on clients in the VirtualServices of the mesh, each
// once and sorted by key: of routes of sidecars for requests and for connections, and of
// routes of gateways for requests.
type ClientMatches struct{ HTTP, Streams, Gateways []ClientMatch }

// RouteClient is everything about a client that decides which routes apply to it. It is
// comparable. The zero value is a client in a namespace without VirtualServices of its own
// for which no condition holds.
type RouteClient struct {
	Namespace string
	holds     string // the keys of the conditions that hold, each between line breaks
}

// RouteClientOf returns the client for a workload. own reports whether its namespace has
// VirtualServices of its own.
func RouteClientOf(namespace string, labels map[string]string, own bool, conditions []ClientMatch) RouteClient {
	var c RouteClient
	if own {
		c.Namespace = namespace
	}
	for _, m := range conditions {
		if (m.Namespace == "" || m.Namespace == namespace) && Selects(m.Labels, labels) {
			c.hold(m.Key())
		}
	}
	return c
}

func (c *RouteClient) hold(key string) {
	if c.holds == "" {
		c.holds = "\n"
	}
	c.holds += key + "\n"
}

// Selected reports whether some condition holds for the client.
func (c RouteClient) Selected() bool { return c.holds != "" }

// Holds reports whether a condition holds for the client.
func (c RouteClient) Holds(m ClientMatch) bool {
	if m.Namespace == "" && len(m.Labels) == 0 {
		return true
	}
	return c.holds != "" && strings.Contains(c.holds, "\n"+m.Key()+"\n")
}

// Narrow returns the part of the client that the routes of a VirtualService read.
func (c RouteClient) Narrow(v *VirtualService) RouteClient {
	var out RouteClient
	if c.holds == "" {
		return out
	}
	for m := range v.ClientMatches {
		if key := m.Key(); key != "" && c.Holds(m) && !out.Holds(m) {
			out.hold(key)
		}
	}
	return out
}

// ClientMatches iterates over the conditions of all routes on clients.
func (v *VirtualService) ClientMatches(yield func(ClientMatch) bool) {
	more := true
	v.RequestMatches(func(m ClientMatch) bool {
		more = yield(m)
		return more
	})
	if more {
		v.StreamMatches(yield)
	}
}

// RequestMatches iterates over the conditions of the routes for requests on clients.
func (v *VirtualService) RequestMatches(yield func(ClientMatch) bool) {
	for _, r := range v.HTTP {
		for _, m := range r.GetMatch() {
			if !yield(ClientMatchOf(m)) {
				return
			}
		}
	}
}

// ByClient reports whether some route depends on the workload of the client.
func (v *VirtualService) ByClient() bool {
	for m := range v.ClientMatches {
		if m.Namespace != "" || len(m.Labels) > 0 {
			return true
		}
	}
	return false
}

// StreamMatches iterates over the conditions of the routes for connections on clients.
func (v *VirtualService) StreamMatches(yield func(ClientMatch) bool) {
	for _, r := range v.TLS {
		for _, m := range r.GetMatch() {
			if !yield(ClientMatchOf(m)) {
				return
			}
		}
	}
	for _, r := range v.TCP {
		for _, m := range r.GetMatch() {
			if !yield(ClientMatchOf(m)) {
				return
			}
		}
	}
}
