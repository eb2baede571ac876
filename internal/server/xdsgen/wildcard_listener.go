package xdsgen

import (
	"net/netip"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// wildcard collects the filter chains of the listener for redirected connections to one
// port number at any address. It routes HTTP by host. Connections to services that have
// no address of their own are recognized by the server name of TLS or by an address
// range; at most one service gets all other connections.
type wildcard struct {
	g            *generator
	o            httpOptions
	families     families
	registryOnly bool
	grpcWeb      bool // some service has gRPC-Web
	http         bool // requests are routed by host
	tls          bool // some chain matches a server name

	chains []*listenerv3.FilterChain
	taken  map[string]struct{}     // matches of chains
	rest   *listenerv3.FilterChain // of all other connections
}

// atAnyAddress reports whether connections to a service may have any address that has no
// listener.
func atAnyAddress(svc *snapshot.MeshService) bool {
	return svc.Entry && len(svc.Clusters[0].VIPs) == 0 && len(svc.CIDRs) == 0
}

// add adds a chain for a port that has not HTTP. If an older service has the same match, it
// keeps it.
func (w *wildcard) add(svc *snapshot.MeshService, port *snapshot.ServicePort) {
	match := &listenerv3.FilterChainMatch{}
	if byServerName(port) {
		match.ServerNames = []string{svc.Host}
	}
	for _, r := range svc.CIDRs {
		match.PrefixRanges = append(match.PrefixRanges, cidrRange(r))
	}
	chain := &listenerv3.FilterChain{
		Filters:                       []*listenerv3.Filter{w.g.serviceTCP(svc, port, w.o)},
		TransportSocketConnectTimeout: durationpb.New(handshakeTimeout),
	}
	if len(match.GetServerNames())+len(match.GetPrefixRanges()) == 0 {
		if w.rest == nil {
			w.rest = chain
		}
		return
	}
	if w.taken == nil {
		w.taken = make(map[string]struct{})
	}
	matches := matchKeys(match.GetServerNames(), svc.CIDRs)
	for _, m := range matches {
		if _, dup := w.taken[m]; dup {
			return // Envoy refuses a listener with equal matches
		}
	}
	for _, m := range matches {
		w.taken[m] = struct{}{}
	}
	w.tls = w.tls || len(match.GetServerNames()) > 0
	chain.FilterChainMatch = match
	w.chains = append(w.chains, chain)
}

// byServerName reports whether the clients of a port send the host as the server name of
// TLS.
func byServerName(p *snapshot.ServicePort) bool {
	return p.Protocol == mesh.TLS || p.Protocol == mesh.HTTPS
}

// matchKeys returns the combinations of a server name and an address range.
func matchKeys(names []string, ranges []netip.Prefix) []string {
	name := strings.Join(names, "")
	if len(ranges) == 0 {
		return []string{name}
	}
	out := make([]string, len(ranges))
	for i, r := range ranges {
		out[i] = name + " " + r.String()
	}
	return out
}

func cidrRange(p netip.Prefix) *corev3.CidrRange {
	return &corev3.CidrRange{AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits()))}
}

// listener generates the listener, if it has any chains.
func (w *wildcard) listener() {
	if !w.http && len(w.chains) == 0 && w.rest == nil {
		return
	}
	o := w.o
	o.grpcWeb = w.grpcWeb
	wildcards := w.families.wildcards()
	name := wildcards[0] + "_" + portString(o.port)
	l := w.g.capturedListener(name, wildcards, o, w.http)
	if w.tls {
		l.ListenerFilters = append([]*listenerv3.ListenerFilter{w.g.tlsInspector()}, l.GetListenerFilters()...)
	}
	if w.http {
		l.FilterChains = append(l.FilterChains, w.g.plainHTTPChain(name, portString(o.port), o))
	}
	l.FilterChains = append(l.FilterChains, w.chains...)
	switch {
	case w.rest == nil:
		l.DefaultFilterChain = &listenerv3.FilterChain{
			Name: "PassthroughFilterChain", FilterChainMatch: &listenerv3.FilterChainMatch{},
			Filters: []*listenerv3.Filter{w.g.tcpProxy(unknownTCP(w.registryOnly), o.settings)},
		}
	case len(l.GetFilterChains()) == 0:
		l.FilterChains = []*listenerv3.FilterChain{w.rest}
	default:
		l.DefaultFilterChain = w.rest
	}
	w.g.listener(l)
}
