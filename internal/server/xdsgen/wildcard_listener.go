package xdsgen

import (
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// wildcard collects the filter chains of the listener for redirected connections to one
// port number at any address, or for connections to the address of an egress listener. It routes HTTP by host. Connections to services that have
// no address of their own are recognized by the server name of TLS or by an address
// range; at most one service gets all other connections.
type wildcard struct {
	g       *generator
	o       httpOptions
	at      []string // addresses
	binds   bool     // the proxy listens itself: see bindsPort
	grpcWeb bool     // some service has gRPC-Web
	http    bool     // requests are routed by host
	tls     bool     // some chain matches a server name

	// ranges holds those of the chains, and requests the addresses whose requests are routed by host.
	ranges   []netip.Prefix
	requests []netip.Addr

	chains []*listenerv3.FilterChain
	taken  map[string]struct{}     // matches of chains
	rest   *listenerv3.FilterChain // of all other connections
}

// add adds a chain for a port that has not HTTP. If an older service has the same match, it
// keeps it.
func (w *wildcard) add(svc *snapshot.MeshService, port *snapshot.ServicePort) {
	chains, rest := w.g.streamChains(svc, port, svc.RangesOf(port.Number), w.o)
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
		match.PrefixRanges = append(match.PrefixRanges, cidrRange(r))
		w.ranges = append(w.ranges, r)
	}
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
			keys = append(keys, name+" "+r.GetAddressPrefix()+"/"+portString(r.GetPrefixLen().GetValue()))
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

func cidrRange(p netip.Prefix) *corev3.CidrRange {
	return &corev3.CidrRange{AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits()))}
}

// requestsWithin returns the addresses whose requests are routed by host, and that a range of a chain
// contains. Without chains of their own, the owner of the range would get their connections.
func (w *wildcard) requestsWithin() []*corev3.CidrRange {
	var out []*corev3.CidrRange
	for _, ip := range w.requests {
		if slices.ContainsFunc(w.ranges, func(r netip.Prefix) bool { return r.Contains(ip) }) {
			out = append(out, cidrRange(netip.PrefixFrom(ip, ip.BitLen())))
		}
	}
	match := &listenerv3.FilterChainMatch{PrefixRanges: out}
	if !takeMatch(w.taken, match) {
		return nil
	}
	return match.GetPrefixRanges()
}

// listener generates the listener, if it has any chains.
func (w *wildcard) listener() {
	if !w.http && len(w.chains) == 0 && w.rest == nil {
		return
	}
	o := w.o
	o.grpcWeb = w.grpcWeb
	name := w.at[0] + "_" + portString(o.port)
	l := w.g.capturedListener(name, w.at, o, w.http)
	l.BindToPort = boolean(w.binds)
	if w.tls {
		l.ListenerFilters = append([]*listenerv3.ListenerFilter{w.g.tlsInspector()}, l.GetListenerFilters()...)
	}
	if w.http {
		l.FilterChains = append(l.FilterChains, w.g.plainHTTPChain(name, portString(o.port), o))
	}
	l.FilterChains = append(l.FilterChains, w.chains...)
	if within := w.requestsWithin(); len(within) > 0 {
		http, other := w.g.plainHTTPChain(name, portString(o.port), o), w.g.passthroughChain(o)
		http.FilterChainMatch.PrefixRanges = within
		other.Name, other.FilterChainMatch = "", &listenerv3.FilterChainMatch{PrefixRanges: within}
		l.FilterChains = append(l.FilterChains, http, other)
	}
	switch {
	case w.rest == nil:
		l.DefaultFilterChain = w.g.passthroughChain(o)
	case len(l.GetFilterChains()) == 0:
		l.FilterChains = []*listenerv3.FilterChain{w.rest}
	default:
		l.DefaultFilterChain = w.rest
	}
	w.g.clientListener(l, o.settings, o.port)
}
