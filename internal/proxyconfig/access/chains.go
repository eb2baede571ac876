package access

import (
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// Names of Envoy's extensions.
const (
	originalDestination = "envoy.filters.listener.original_dst"
	rawBuffer           = "envoy.transport_sockets.raw_buffer"
)

// listener returns the listener that receives a request: the one that binds its port, else
// the one that takes captured inbound connections. It returns nil if there is none.
func (c *Config) listener(r *Request) *listenerv3.Listener {
	var captured, byPort *listenerv3.Listener
	for _, l := range c.Listeners {
		bound := l.GetBindToPort() == nil || l.GetBindToPort().GetValue()
		inbound := l.GetTrafficDirection() == corev3.TrafficDirection_INBOUND
		switch capturing := takesCaptured(l); {
		case capturing && inbound:
			captured = l
		case capturing, !bound && !inbound:
			continue // for calls of the workload itself
		}
		address := l.GetAddress().GetSocketAddress()
		if address.GetPortValue() != r.Port || address == nil {
			continue
		}
		ip, err := netip.ParseAddr(address.GetAddress())
		exact := err == nil && r.Destination.IsValid() && ip == r.Destination
		if byPort == nil || exact {
			byPort = l
		}
	}
	if byPort != nil {
		return byPort
	}
	return captured
}

// takesCaptured reports whether a listener takes connections to any port, which iptables
// redirects to it.
func takesCaptured(l *listenerv3.Listener) bool {
	return l.GetUseOriginalDst().GetValue() || slices.ContainsFunc(l.GetListenerFilters(), func(f *listenerv3.ListenerFilter) bool {
		return f.GetName() == originalDestination || strings.HasSuffix(f.GetTypedConfig().GetTypeUrl(), ".OriginalDst")
	})
}

// Ports returns the ports that filter chains of listeners for callers name, in order.
func (c *Config) Ports() []uint32 {
	var out []uint32
	for _, l := range c.Listeners {
		if takesCaptured(l) {
			if l.GetTrafficDirection() != corev3.TrafficDirection_INBOUND {
				continue
			}
			for _, chain := range l.GetFilterChains() {
				if port := chain.GetFilterChainMatch().GetDestinationPort().GetValue(); port != 0 && port != l.GetAddress().GetSocketAddress().GetPortValue() {
					out = append(out, port)
				}
			}
			continue
		}
		bound := l.GetBindToPort() == nil || l.GetBindToPort().GetValue()
		if port := l.GetAddress().GetSocketAddress().GetPortValue(); bound && port != 0 && l.GetTrafficDirection() != corev3.TrafficDirection_UNSPECIFIED {
			out = append(out, port)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// chain returns the filter chain of a connection, nil if Envoy closes it. At each
// criterion Envoy keeps the chains that match most specifically.
func (s *state) chain(l *listenerv3.Listener) *listenerv3.FilterChain {
	chains := l.GetFilterChains()
	for _, criterion := range []func(*listenerv3.FilterChainMatch) int{
		s.rankPort, s.rankDestination, s.rankServerName, s.rankTransport, s.rankALPN, s.rankSource,
	} {
		best := 0
		var kept []*listenerv3.FilterChain
		for _, c := range chains {
			switch rank := criterion(c.GetFilterChainMatch()); {
			case rank > best:
				best, kept = rank, []*listenerv3.FilterChain{c}
			case rank == best && rank > 0:
				kept = append(kept, c)
			}
		}
		chains = kept
	}
	if len(chains) > 0 {
		return chains[0]
	}
	return l.GetDefaultFilterChain()
}

// The ranks of a criterion: 0 for a chain that does not match, 1 for one that does not
// have the criterion, more for a more specific match.

func (s *state) rankPort(m *listenerv3.FilterChainMatch) int {
	switch m.GetDestinationPort().GetValue() {
	case 0:
		return 1
	case s.Port:
		return 2
	}
	return 0
}

func (s *state) rankDestination(m *listenerv3.FilterChainMatch) int {
	return rankRanges(m.GetPrefixRanges(), s.Destination)
}

func rankRanges(ranges []*corev3.CidrRange, ip netip.Addr) int {
	if len(ranges) == 0 {
		return 1
	}
	rank := 0
	for _, r := range ranges {
		if matchRange("", ip, r).truth == yes {
			rank = max(rank, 2+int(r.GetPrefixLen().GetValue()))
		}
	}
	return rank
}

func (s *state) rankServerName(m *listenerv3.FilterChainMatch) int {
	if len(m.GetServerNames()) == 0 {
		return 1
	}
	rank := 0
	for _, name := range m.GetServerNames() {
		switch suffix, wildcard := strings.CutPrefix(name, "*"); {
		case s.SNI == "":
		case !wildcard && strings.EqualFold(name, s.SNI):
			rank = max(rank, 1<<20)
		case wildcard && len(s.SNI) > len(suffix) && strings.HasSuffix(lowerASCII(s.SNI), suffix):
			rank = max(rank, 2+len(suffix))
		}
	}
	return rank
}

func (s *state) rankTransport(m *listenerv3.FilterChainMatch) int {
	transport := "raw_buffer"
	if s.TLS {
		transport = "tls"
	}
	switch m.GetTransportProtocol() {
	case "":
		return 1
	case transport:
		return 2
	}
	return 0
}

func (s *state) rankALPN(m *listenerv3.FilterChainMatch) int {
	if len(m.GetApplicationProtocols()) == 0 {
		return 1
	}
	offers := s.ALPN
	if !s.TLS && (s.Method != "" || s.Open) {
		offers = []string{"http/1.1"} // the HTTP inspector finds it
	}
	for i, offered := range offers {
		if slices.Contains(m.GetApplicationProtocols(), offered) {
			return 1 + len(offers) - i
		}
	}
	return 0
}

func (s *state) rankSource(m *listenerv3.FilterChainMatch) int {
	return rankRanges(m.GetSourcePrefixRanges(), s.Source)
}

// connection evaluates TLS and the network filters.
func (e *evaluation) connection(l *listenerv3.Listener) {
	e.remote = e.Source
	if l.GetFilterChainMatcher() != nil {
		e.step(Step{Name: "filter chains", Verdict: Undecided, Why: "the choice by filter_chain_matcher is not evaluated"})
		return
	}
	chain := e.chain(l)
	if chain == nil {
		why := "no filter chain matches the connection"
		if e.wantsTLS(l) {
			why = "the port accepts only mTLS, and the client sends plaintext"
		}
		e.step(Step{Name: "filter chains", Verdict: Denied, Why: why})
		return
	}
	e.result.Chain = chain.GetName()
	if ts := chain.GetTransportSocket(); ts != nil {
		context := new(tlsv3.DownstreamTlsContext)
		switch err := ts.GetTypedConfig().UnmarshalTo(context); {
		case err == nil:
			e.handshake(context)
		case ts.GetName() != rawBuffer:
			e.step(Step{Name: "TLS", Verdict: Undecided, Why: "transport socket " + ts.GetName() + " is not evaluated"})
		}
	}
	e.result.TLS = e.secured
	for _, f := range chain.GetFilters() {
		if e.denied() {
			return
		}
		if !e.networkFilter(f) {
			return
		}
	}
}

// wantsTLS reports whether a client that sends plaintext would be accepted with mTLS.
func (e *evaluation) wantsTLS(l *listenerv3.Listener) bool {
	request := *e.Request
	request.TLS, request.ALPN = true, []string{"istio"}
	withTLS := state{Request: &request}
	return !e.TLS && withTLS.chain(l) != nil
}

// handshake evaluates the TLS that a filter chain terminates.
func (e *evaluation) handshake(context *tlsv3.DownstreamTlsContext) {
	const name = "TLS"
	if !e.TLS {
		e.step(Step{Name: name, Verdict: Denied, Why: "the port accepts only TLS, and the client sends plaintext"})
		return
	}
	e.secured = true
	if e.Peer == nil {
		if context.GetRequireClientCertificate().GetValue() {
			e.step(Step{Name: name, Verdict: Denied, Why: "the port requires a client certificate"})
		}
		return
	}
	common := context.GetCommonTlsContext()
	validation := common.GetValidationContext()
	if combined := common.GetCombinedValidationContext(); combined != nil {
		validation = combined.GetDefaultValidationContext()
	}
	if validation == nil && common.GetValidationContextSdsSecretConfig() == nil {
		e.Request = withoutPeer(e.Request) // Envoy does not ask for a certificate
		return
	}
	typed, untyped := validation.GetMatchTypedSubjectAltNames(), validation.GetMatchSubjectAltNames() //nolint:staticcheck // this version and Istio use it
	if len(typed)+len(untyped) == 0 {
		return
	}
	names := slices.Concat(e.Peer.URIs, e.Peer.DNS)
	accepted := finding{no, "no name is accepted"}
	if len(typed) > 0 {
		accepted = anyOf(typed, func(m *tlsv3.SubjectAltNameMatcher) finding { return matchName(e.Peer, m) })
	} else {
		accepted = anyOf(untyped, func(m *matcherv3.StringMatcher) finding {
			return anyOf(names, func(name string) finding { return e.Peer.match(name, m) })
		})
	}
	if accepted.truth != yes {
		e.step(Step{Name: name, Verdict: accepted.verdict(), Why: accepted.why})
	}
}

// withoutPeer returns the request of a client that shows no certificate.
func withoutPeer(r *Request) *Request {
	out := *r
	out.Peer = nil
	return &out
}
