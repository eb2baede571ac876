package access

import (
	"maps"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	mtlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/rbac/principals/mtls_authenticated/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// Rule is a policy of an RBAC filter, and whether it matches the request. Istio's control
// planes write one for each rule of an AuthorizationPolicy.
type Rule struct {
	Name  string `json:"name"`
	Match Match  `json:"match"`
	// Why states what in the request the result rests on.
	Why string `json:"why"`
	// near is the number of halves, permission and principal, that match.
	near int
}

// Match reports whether a rule matches.
type Match string

// The values of Match.
const (
	Matches    Match = "match"
	MatchesNot Match = "no match"
	MayMatch   Match = "unknown"
)

func (t truth) match() Match { return [...]Match{MatchesNot, MayMatch, Matches}[t] }

// judgeRBAC evaluates the rules of an RBAC filter. allowed is the decision. effective is the
// name of the first rule that matches, in the order in which Envoy looks at them.
func (s *state) judgeRBAC(r *rbacv3.RBAC) (allowed finding, effective string, rules []Rule) {
	matched := finding{no, "no rule matches"}
	for _, name := range slices.Sorted(maps.Keys(r.GetPolicies())) {
		f, near := s.judgePolicy(r.GetPolicies()[name])
		rules = append(rules, Rule{Name: name, Match: f.match(), Why: f.why, near: near})
		if f.truth > matched.truth {
			matched, effective = f, name
		}
	}
	switch r.GetAction() {
	case rbacv3.RBAC_ALLOW:
		return matched, effective, rules
	case rbacv3.RBAC_DENY:
		return matched.negated(), effective, rules
	}
	return finding{yes, "the rules only log"}, effective, rules
}

// judgePolicy evaluates one policy, and counts its halves that match.
func (s *state) judgePolicy(p *rbacv3.Policy) (f finding, near int) {
	to := anyOf(p.GetPermissions(), s.judgePermission)
	from := anyOf(p.GetPrincipals(), s.judgePrincipal)
	for _, half := range []finding{to, from} {
		if half.truth == yes {
			near++
		}
	}
	halves := []finding{from, to}
	if p.GetCondition() != nil || p.GetCheckedCondition() != nil {
		halves = append(halves, undecidable("its condition in CEL is not evaluated"))
	}
	f = all(halves, func(f finding) finding { return f })
	if f.truth == yes {
		f.why = from.why + "; " + to.why
	}
	return f, near
}

// judgePermission evaluates what the request is for.
func (s *state) judgePermission(p *rbacv3.Permission) finding {
	switch p := p.GetRule().(type) {
	case *rbacv3.Permission_AndRules:
		return all(p.AndRules.GetRules(), s.judgePermission)
	case *rbacv3.Permission_OrRules:
		return anyOf(p.OrRules.GetRules(), s.judgePermission)
	case *rbacv3.Permission_NotRule:
		return s.judgePermission(p.NotRule).negated()
	case *rbacv3.Permission_Any:
		return finding{yes, "any request"}
	case *rbacv3.Permission_Header:
		return s.matchHeader(p.Header)
	case *rbacv3.Permission_UrlPath:
		return s.matchPath(p.UrlPath)
	case *rbacv3.Permission_UriTemplate:
		return s.matchTemplate(p.UriTemplate)
	case *rbacv3.Permission_DestinationIp:
		return matchRange("destination address", s.Destination, p.DestinationIp)
	case *rbacv3.Permission_DestinationPort:
		return s.matchPort(p.DestinationPort, p.DestinationPort+1)
	case *rbacv3.Permission_DestinationPortRange:
		return s.matchPort(uint32(max(p.DestinationPortRange.GetStart(), 0)), uint32(max(p.DestinationPortRange.GetEnd(), 0)))
	case *rbacv3.Permission_Metadata:
		return s.matchMetadata(p.Metadata) //nolint:staticcheck // Istio uses it
	case *rbacv3.Permission_SourcedMetadata:
		return s.matchSourced(p.SourcedMetadata)
	case *rbacv3.Permission_RequestedServerName:
		return compared("SNI", s.SNI, matchString(p.RequestedServerName, s.SNI), describe(p.RequestedServerName))
	case *rbacv3.Permission_Matcher:
		return undecidable("permission matcher " + p.Matcher.GetName() + " is not evaluated")
	}
	return undecidable("a permission of a newer Envoy is not evaluated")
}

func (s *state) matchPort(from, to uint32) finding {
	want := strconv.FormatUint(uint64(from), 10)
	if to != from+1 {
		want = "from " + want + " to below " + strconv.FormatUint(uint64(to), 10)
	}
	return compared("port", strconv.FormatUint(uint64(s.Port), 10), truthOf(from <= s.Port && s.Port < to), want)
}

func (s *state) matchSourced(m *rbacv3.SourcedMetadata) finding {
	if m.GetMetadataSource() != rbacv3.MetadataSource_DYNAMIC {
		return undecidable("the metadata of routes is not evaluated")
	}
	return s.matchMetadata(m.GetMetadataMatcher())
}

// judgePrincipal evaluates who sends the request.
func (s *state) judgePrincipal(p *rbacv3.Principal) finding {
	switch p := p.GetIdentifier().(type) {
	case *rbacv3.Principal_AndIds:
		return all(p.AndIds.GetIds(), s.judgePrincipal)
	case *rbacv3.Principal_OrIds:
		return anyOf(p.OrIds.GetIds(), s.judgePrincipal)
	case *rbacv3.Principal_NotId:
		return s.judgePrincipal(p.NotId).negated()
	case *rbacv3.Principal_Any:
		return finding{yes, "any client"}
	case *rbacv3.Principal_Authenticated_:
		return s.matchPeer(p.Authenticated.GetPrincipalName())
	case *rbacv3.Principal_SourceIp:
		return s.matchSource(p.SourceIp) //nolint:staticcheck // other control planes use it
	case *rbacv3.Principal_DirectRemoteIp:
		return s.matchSource(p.DirectRemoteIp)
	case *rbacv3.Principal_RemoteIp:
		return matchRange("client address", s.remote, p.RemoteIp)
	case *rbacv3.Principal_Header:
		return s.matchHeader(p.Header)
	case *rbacv3.Principal_UrlPath:
		return s.matchPath(p.UrlPath)
	case *rbacv3.Principal_Metadata:
		return s.matchMetadata(p.Metadata) //nolint:staticcheck // Istio uses it
	case *rbacv3.Principal_SourcedMetadata:
		return s.matchSourced(p.SourcedMetadata)
	case *rbacv3.Principal_FilterState:
		return s.matchFilterState(p.FilterState)
	case *rbacv3.Principal_Custom:
		return s.matchCustom(p.Custom)
	}
	return undecidable("a principal of a newer Envoy is not evaluated")
}

func (s *state) matchSource(m *corev3.CidrRange) finding {
	return matchRange("source address", s.Source, m)
}

// peer returns the certificate that filters see, nil for none.
func (s *state) peer() *Peer {
	if !s.secured {
		return nil
	}
	return s.Peer
}

// matchPeer compares the names in the certificate of the client. A nil matcher accepts all
// names.
func (s *state) matchPeer(m *matcherv3.StringMatcher) finding {
	peer := s.peer()
	switch {
	case peer == nil:
		return finding{no, "the client has no certificate"}
	case m == nil:
		return finding{yes, "the client has a certificate"}
	}
	names := slices.Concat(peer.URIs, peer.DNS)
	if peer.Subject != "" || len(names) == 0 || matchString(m, "") != no {
		names = append(names, peer.Subject) // Envoy compares it last
	}
	return anyOf(names, func(name string) finding {
		return compared("identity", name, matchString(m, name), describe(m))
	})
}

// matchCustom evaluates principals that are extensions.
func (s *state) matchCustom(c *corev3.TypedExtensionConfig) finding {
	m := new(mtlsv3.Config)
	if c.GetTypedConfig().UnmarshalTo(m) != nil {
		return undecidable("principal " + c.GetName() + " is not evaluated")
	}
	peer := s.peer()
	switch {
	case peer == nil:
		return finding{no, "the client has no certificate"}
	case m.GetAnyValidatedClientCertificate():
		return finding{yes, "the client has a certificate"}
	}
	return matchName(peer, m.GetSanMatcher())
}

// matchName compares the alternative names of one type in a certificate.
func matchName(peer *Peer, m *tlsv3.SubjectAltNameMatcher) finding {
	names := peer.URIs
	switch m.GetSanType() {
	case tlsv3.SubjectAltNameMatcher_URI:
	case tlsv3.SubjectAltNameMatcher_DNS:
		names = peer.DNS
	default:
		return undecidable("names of type " + m.GetSanType().String() + " are not evaluated")
	}
	if len(names) == 0 {
		return finding{no, "the certificate has no " + m.GetSanType().String() + " name"}
	}
	return anyOf(names, func(name string) finding {
		return compared("identity", name, matchString(m.GetMatcher(), name), describe(m.GetMatcher()))
	})
}
