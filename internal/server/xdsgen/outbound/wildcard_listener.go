package outbound

import (
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/filters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/inbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// wildcard collects the filter chains of the listener for redirected connections to one
// port number at any address, or for connections to the address of an egress listener. It routes HTTP by host. Connections to services that have
// no address of their own are recognized by the server name of TLS or by an address
// range; at most one service gets all other connections.
type wildcard struct {
	g       *wire.Generator
	o       filters.HTTPOptions
	at      []string // addresses
	binds   bool     // the proxy listens itself: see bindsPort
	grpcWeb bool     // some service has gRPC-Web
	http    bool     // requests are routed by host
	tls     bool     // some chain matches a server name

	// ranges holds those of the chains, and requests the addresses whose requests are routed by host.
	ranges   snapshot.Ranges
	requests []netip.Addr

	chains []*listenerv3.FilterChain
	taken  map[string]struct{}     // matches of chains
	rest   *listenerv3.FilterChain // of all other connections
}

// Add adds a chain for a port that has not HTTP. If an older service has the same match, it
// keeps it.
func (w *wildcard) Add(svc *snapshot.MeshService, port *snapshot.ServicePort) {
	chains, rest := streamChains(w.g, svc, port, svc.RangesOf(port.Number), w.o)
	for _, chain := range chains {
		w.addChain(chain)
	}
	if rest == nil {
		return
	}
	match := &listenerv3.FilterChainMatch{}
	if byServerName(port) {
		match.ServerNames = []string{svc.Host}
	}
	for _, r := range svc.RangesOf(port.Number) {
		match.PrefixRanges = append(match.PrefixRanges, wire.CidrRange(r))
	}
	w.ranges.Add(svc.RangesOf(port.Number)...)
	if len(match.GetServerNames())+len(match.GetPrefixRanges()) > 0 {
		rest.FilterChainMatch = match
		w.addChain(rest)
	} else if w.rest == nil {
		w.rest = rest
	}
}

// addChain adds a chain with a match, unless an older one has it: Envoy refuses a listener
// with equal matches.
func (w *wildcard) addChain(chain *listenerv3.FilterChain) {
	if w.taken == nil {
		w.taken = make(map[string]struct{})
	}
	if takeMatch(w.taken, chain.GetFilterChainMatch()) {
		w.tls = w.tls || len(chain.GetFilterChainMatch().GetServerNames()) > 0
		w.chains = append(w.chains, chain)
	}
}

// byServerName reports whether the clients of a port send the host as the server name of
// TLS.
func byServerName(p *snapshot.ServicePort) bool {
	return p.Protocol == mesh.TLS || p.Protocol == mesh.HTTPS
}

// takeMatch takes the combinations of a server name and an address range, and removes from
// the match those that are taken. It returns false if none is left.
func takeMatch(taken map[string]struct{}, m *listenerv3.FilterChainMatch) bool {
	// takes reports whether it took all ranges for a name.
	takes := func(name string, ranges ...*corev3.CidrRange) bool {
		keys := []string{name}
		if len(ranges) > 0 {
			keys = nil
		}
		for _, r := range ranges {
			keys = append(keys, name+" "+r.GetAddressPrefix()+"/"+wire.PortString(r.GetPrefixLen().GetValue()))
		}
		if slices.ContainsFunc(keys, func(key string) bool { _, dup := taken[key]; return dup }) {
			return false
		}
		for _, key := range keys {
			taken[key] = struct{}{}
		}
		return true
	}
	if len(m.GetServerNames()) == 0 {
		m.PrefixRanges = slices.DeleteFunc(m.GetPrefixRanges(), func(r *corev3.CidrRange) bool { return !takes("", r) })
		return len(m.GetPrefixRanges()) > 0
	}
	m.ServerNames = slices.DeleteFunc(slices.Clone(m.GetServerNames()), func(name string) bool { return !takes(name, m.GetPrefixRanges()...) })
	return len(m.GetServerNames()) > 0
}

// requestsWithin returns the addresses whose requests are routed by host, and that a range of a chain
// contains. Without chains of their own, the owner of the range would get their connections.
func (w *wildcard) requestsWithin() []*corev3.CidrRange {
	var out []*corev3.CidrRange
	for ip := range w.ranges.Within(w.requests) {
		out = append(out, wire.CidrRange(netip.PrefixFrom(ip, ip.BitLen())))
	}
	match := &listenerv3.FilterChainMatch{PrefixRanges: out}
	if !takeMatch(w.taken, match) {
		return nil
	}
	return match.GetPrefixRanges()
}

// Listener generates the listener, if it has any chains.
func (w *wildcard) Listener() {
	if !w.http && len(w.chains) == 0 && w.rest == nil {
		return
	}
	o := w.o
	o.GrpcWeb = w.grpcWeb
	name := w.at[0] + "_" + wire.PortString(o.Port)
	l := capturedListener(w.g, name, w.at, o, w.http)
	l.BindToPort = wire.Boolean(w.binds)
	if w.tls {
		l.ListenerFilters = append([]*listenerv3.ListenerFilter{inbound.TLSInspector(w.g)}, l.GetListenerFilters()...)
	}
	if w.http {
		l.FilterChains = append(l.FilterChains, plainHTTPChain(w.g, name, wire.PortString(o.Port), o))
	}
	l.FilterChains = append(l.FilterChains, w.chains...)
	if within := w.requestsWithin(); len(within) > 0 {
		http, other := plainHTTPChain(w.g, name, wire.PortString(o.Port), o), passthroughChain(w.g, o)
		http.FilterChainMatch.PrefixRanges = within
		other.Name, other.FilterChainMatch = "", &listenerv3.FilterChainMatch{PrefixRanges: within}
		l.FilterChains = append(l.FilterChains, http, other)
	}
	switch {
	case w.rest == nil:
		l.DefaultFilterChain = passthroughChain(w.g, o)
	case len(l.GetFilterChains()) == 0:
		l.FilterChains = []*listenerv3.FilterChain{w.rest}
	default:
		l.DefaultFilterChain = w.rest
	}
	filters.ClientListener(w.g, l, o.Settings, o.Port)
}
