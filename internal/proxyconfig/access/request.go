package access

import (
	"net/netip"
	"slices"
	"strings"

	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Request is a request, or a connection without HTTP, to a workload.
type Request struct {
	// Port is the port of the workload, not of a service.
	Port uint32
	// Source and Destination are the addresses of the connection. Zero means unknown.
	Source, Destination netip.Addr
	// TLS reports whether the client uses TLS. Peer is its certificate.
	TLS  bool
	Peer *Peer
	// SNI and ALPN are sent by a client with TLS.
	SNI  string
	ALPN []string

	// Method is empty for a connection without HTTP. Host is empty if it is unknown.
	Method, Host, Path string
	Headers            []Header
	// Claims are the claims of the valid token that the request has. Nil means no token.
	// Without iss or aud, the token is one for which the only provider has the value.
	Claims map[string]any

	// Open makes everything unknown that is empty: source, method, host, path, headers and
	// token. The request then stands for all requests of the caller.
	Open bool
}

// Peer holds the names in the certificate of a client.
type Peer struct {
	URIs, DNS []string
	Subject   string
	// Except, if not nil, makes the peer any workload but these. URIs then holds a sample,
	// an identity that no policy names.
	Except []mesh.Identity
}

// match compares a name of the peer.
func (p *Peer) match(name string, m *matcherv3.StringMatcher) finding {
	f := compared("identity", name, matchString(m, name), describe(m))
	if p.Except == nil || f.truth == yes {
		return f
	}
	// Matchers that accept the sample accept all. Others accept some, perhaps one of Except.
	if id, err := mesh.ParseIdentity(m.GetExact()); err == nil && slices.ContainsFunc(p.Except, func(known mesh.Identity) bool {
		return known.Namespace == id.Namespace && known.ServiceAccount == id.ServiceAccount
	}) {
		return f
	}
	return undecidable("it depends on the identity")
}

// Header is one header of a request.
type Header struct{ Name, Value string }

// state is the state of a request on its way through the filters.
type state struct {
	*Request
	// overHTTP reports whether a connection manager handles the connection.
	overHTTP bool
	// path is the path after normalization.
	path string
	// host is Request.Host after ports and dots are removed.
	host string
	// secured reports whether this proxy terminates TLS. Otherwise filters see no
	// certificate.
	secured bool
	// remote is the address of the client behind trusted proxies; zero if unknown.
	remote netip.Addr
	// metadata is the dynamic metadata by namespace. unsureMetadata holds the reason for
	// metadata and filter state that may be set, too.
	metadata    map[string]map[string]any
	filterState map[string]finding // an unknown value has the truth unknown; else the value is in why
	unsure      string
	// claimsUnknown reports whether the metadata of tokens is unknown.
	claimsUnknown bool
	// changed are the headers that filters set or removed, by lower-case name.
	changed map[string]change
}

// header returns the values of a header. known is false when the request may have others.
func (s *state) header(name string) (values []string, known bool) {
	name = strings.ToLower(name)
	pseudo := func(value string) ([]string, bool) {
		if value == "" {
			return nil, !s.Open
		}
		return []string{value}, true
	}
	switch name {
	case ":method":
		return pseudo(s.Method)
	case ":path":
		return pseudo(s.path)
	case ":authority", "host":
		return []string{s.host}, s.host != ""
	}
	if c, ok := s.changed[name]; ok {
		return c.values, !c.unknown
	}
	for _, h := range s.Headers {
		if strings.EqualFold(h.Name, name) {
			values = append(values, h.Value)
		}
	}
	return values, (values != nil || !s.Open) && !writtenByEnvoy(name)
}

// change is the value of a header after a filter.
type change struct {
	values  []string
	unknown bool
}

func (s *state) change(header string, c change) {
	if s.changed == nil {
		s.changed = map[string]change{}
	}
	s.changed[strings.ToLower(header)] = c
}

func (s *state) remove(header string) { s.change(header, change{}) }

// setHeader records that a filter sets a header. Without values, its value is unknown.
func (s *state) setHeader(header string, values ...string) {
	s.change(header, change{values, len(values) == 0})
}

// writtenByEnvoy reports whether Envoy sets or changes a header before the filters see it.
func writtenByEnvoy(name string) bool {
	switch name {
	case "x-forwarded-for", "x-forwarded-proto", "x-forwarded-client-cert", "x-forwarded-host", "x-request-id", ":scheme":
		return true
	}
	return strings.HasPrefix(name, "x-envoy-")
}
