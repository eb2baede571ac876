package envoy

import (
	"fmt"
	mathrand "math/rand/v2"
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	statev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	httpstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	uritemplatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/path/match/uri_template/v3"
	mtlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/rbac/principals/mtls_authenticated/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/proxyconfig/access"
)

// accessGenerator makes random filters and requests from few values, so that many match.
type accessGenerator struct{ *mathrand.Rand }

func pick[T any](g *accessGenerator, values ...T) T { return values[g.IntN(len(values))] }

func (g *accessGenerator) chance(percent int) bool { return g.IntN(100) < percent }

// some returns one to three values of a function.
func some[T any](g *accessGenerator, value func() T) []T {
	out := []T{value()}
	for len(out) < 3 && g.chance(40) {
		out = append(out, value())
	}
	return out
}

func packed(m proto.Message) *anypb.Any {
	out, err := anypb.New(m)
	if err != nil {
		panic(err)
	}
	return out
}

func inline(text string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}}
}

func portValue(port uint32) *corev3.SocketAddress_PortValue {
	return &corev3.SocketAddress_PortValue{PortValue: port}
}

// listener returns a listener that accepts plaintext and mTLS.
func (g *accessGenerator) listener(name, cert, key, roots string) *listenerv3.Listener {
	file := func(path string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
	}
	filters := []*listenerv3.Filter{{
		Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(g.connectionManager())},
	}}
	return &listenerv3.Listener{
		Name:    name,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{Address: "127.0.0.1", PortSpecifier: portValue(0)}}},
		ListenerFilters: []*listenerv3.ListenerFilter{{
			Name: "tls", ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: packed(&tlsinspectorv3.TlsInspector{})},
		}},
		FilterChains: []*listenerv3.FilterChain{{
			Name: "tls", FilterChainMatch: &listenerv3.FilterChainMatch{TransportProtocol: "tls"}, Filters: filters,
			TransportSocket: &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed(&tlsv3.DownstreamTlsContext{
				RequireClientCertificate: wrapperspb.Bool(true),
				CommonTlsContext: &tlsv3.CommonTlsContext{
					TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: file(cert), PrivateKey: file(key)}},
					ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{
						ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: file(roots)},
					},
				},
			})}},
		}, {Name: "plain", Filters: filters}},
	}
}

func (g *accessGenerator) connectionManager() *hcmv3.HttpConnectionManager {
	m := &hcmv3.HttpConnectionManager{
		StatPrefix: "http", MergeSlashes: g.chance(50), StripTrailingHostDot: g.chance(30),
		PathWithEscapedSlashesAction: hcmv3.HttpConnectionManager_PathWithEscapedSlashesAction(g.IntN(5)),
		UseRemoteAddress:             wrapperspb.Bool(g.chance(50)), XffNumTrustedHops: uint32(g.IntN(3)),
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{
			HeadersWithUnderscoresAction: corev3.HttpProtocolOptions_HeadersWithUnderscoresAction(g.IntN(3)),
		},
		LocalReplyConfig: &hcmv3.LocalReplyConfig{BodyFormat: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: inline("%RESPONSE_CODE_DETAILS%")},
		}},
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{{
				Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 200}},
			}}}},
		}},
	}
	if g.chance(70) {
		m.NormalizePath = wrapperspb.Bool(g.chance(80))
	}
	if g.chance(30) {
		m.StripPortMode = &hcmv3.HttpConnectionManager_StripAnyHostPort{StripAnyHostPort: true}
	}
	add := func(name string, config proto.Message) {
		m.HttpFilters = append(m.HttpFilters, &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed(config)}})
	}
	add("state", &httpstatev3.Config{OnRequestHeaders: []*statev3.FilterStateValue{{
		Key: &statev3.FilterStateValue_ObjectKey{ObjectKey: "peer"}, FactoryKey: "envoy.string",
		Value: &statev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: inline("%DOWNSTREAM_PEER_URI_SAN%")},
		}},
		SkipIfEmpty: g.chance(50),
	}}})
	if g.chance(50) {
		add("shadow", &httprbacv3.RBAC{ShadowRules: g.rbac(), ShadowRulesStatPrefix: "p_"})
	}
	if g.chance(50) {
		deny := g.rbac()
		deny.Action = rbacv3.RBAC_DENY
		add("deny", &httprbacv3.RBAC{Rules: deny})
	}
	allow := g.rbac()
	allow.Action = rbacv3.RBAC_ALLOW
	if g.chance(10) {
		allow.Policies = nil
	}
	add("allow", &httprbacv3.RBAC{Rules: allow})
	add("router", &routerv3.Router{})
	return m
}

func (g *accessGenerator) rbac() *rbacv3.RBAC {
	out := &rbacv3.RBAC{Action: pick(g, rbacv3.RBAC_ALLOW, rbacv3.RBAC_DENY), Policies: map[string]*rbacv3.Policy{}}
	for i := range 1 + g.IntN(4) {
		out.Policies[fmt.Sprintf("%c-rule[%d]", 'a'+g.IntN(3), i)] = &rbacv3.Policy{
			Permissions: some(g, func() *rbacv3.Permission { return g.permission(2) }),
			Principals:  some(g, func() *rbacv3.Principal { return g.principal(2) }),
		}
	}
	return out
}

func (g *accessGenerator) permission(depth int) *rbacv3.Permission {
	if depth > 0 && g.chance(40) {
		set := &rbacv3.Permission_Set{Rules: some(g, func() *rbacv3.Permission { return g.permission(depth - 1) })}
		switch g.IntN(3) {
		case 0:
			return &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: set}}
		case 1:
			return &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: set}}
		}
		return &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: set.GetRules()[0]}}
	}
	switch g.IntN(9) {
	case 0:
		return &rbacv3.Permission{Rule: &rbacv3.Permission_Any{Any: true}}
	case 1:
		return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationIp{DestinationIp: g.cidr()}}
	case 2:
		return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationPortRange{DestinationPortRange: &typev3.Int32Range{Start: int32(g.IntN(30000)), End: int32(30001 + g.IntN(30000))}}}
	case 3:
		return &rbacv3.Permission{Rule: &rbacv3.Permission_RequestedServerName{RequestedServerName: g.text("a.example", "b.example")}}
	case 4:
		return &rbacv3.Permission{Rule: &rbacv3.Permission_UriTemplate{UriTemplate: &corev3.TypedExtensionConfig{
			Name: "template", TypedConfig: packed(&uritemplatev3.UriTemplateMatchConfig{PathTemplate: pick(g, "/a", "/*", "/a/*", "/**", "/a/**", "/*/b", "/a/{x}/b", "/{x=*}/**", "/**.b", "/a/*/")}),
		}}}
	case 5:
		return &rbacv3.Permission{Rule: &rbacv3.Permission_Metadata{Metadata: g.metadata()}} //nolint:staticcheck // Istio uses it
	case 6:
		return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: g.header()}}
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_UrlPath{UrlPath: g.path()}}
}

func (g *accessGenerator) principal(depth int) *rbacv3.Principal {
	if depth > 0 && g.chance(40) {
		set := &rbacv3.Principal_Set{Ids: some(g, func() *rbacv3.Principal { return g.principal(depth - 1) })}
		switch g.IntN(3) {
		case 0:
			return &rbacv3.Principal{Identifier: &rbacv3.Principal_AndIds{AndIds: set}}
		case 1:
			return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: set}}
		}
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: set.GetIds()[0]}}
	}
	identity := func() *matcherv3.StringMatcher { return g.text(append(accessClients[1:], "/ns/a/", "sa/one", "")...) }
	switch g.IntN(11) {
	case 0:
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}}
	case 1:
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_SourceIp{SourceIp: g.cidr()}} //nolint:staticcheck // other control planes use it
	case 2:
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_DirectRemoteIp{DirectRemoteIp: g.cidr()}}
	case 3:
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_RemoteIp{RemoteIp: g.cidr()}}
	case 4:
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_Header{Header: g.header()}}
	case 5:
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_UrlPath{UrlPath: g.path()}}
	case 6:
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_Metadata{Metadata: g.metadata()}} //nolint:staticcheck // Istio uses it
	case 7:
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_FilterState{FilterState: &matcherv3.FilterStateMatcher{
			Key: pick(g, "peer", "other"), Matcher: &matcherv3.FilterStateMatcher_StringMatch{StringMatch: identity()},
		}}}
	case 8:
		m := &mtlsv3.Config{AnyValidatedClientCertificate: true}
		if g.chance(70) {
			m = &mtlsv3.Config{SanMatcher: &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: identity()}}
		}
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_Custom{Custom: &corev3.TypedExtensionConfig{Name: "envoy.rbac.principals.mtls_authenticated", TypedConfig: packed(m)}}}
	}
	out := &rbacv3.Principal_Authenticated{}
	if g.chance(80) {
		out.PrincipalName = identity()
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{Authenticated: out}}
}

// text returns a matcher for one of the values, or a part of it.
func (g *accessGenerator) text(values ...string) *matcherv3.StringMatcher {
	value := pick(g, values...)
	part := value
	if len(value) > 2 {
		part = value[:1+g.IntN(len(value)-1)]
	}
	out := &matcherv3.StringMatcher{IgnoreCase: g.chance(20)}
	if value == "" { // the only matcher that accepts it
		out.MatchPattern = &matcherv3.StringMatcher_Exact{}
		return out
	}
	switch g.IntN(6) {
	case 0:
		out.MatchPattern = &matcherv3.StringMatcher_Prefix{Prefix: part}
	case 1:
		out.MatchPattern = &matcherv3.StringMatcher_Suffix{Suffix: value[len(value)-len(part):]}
	case 2:
		out.MatchPattern = &matcherv3.StringMatcher_Contains{Contains: part}
	case 3:
		out.IgnoreCase = false
		out.MatchPattern = &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: pick(g, ".*", ".+", "[a-z/]*", "(?i)/A.*", ".*one|.*two", ".*/ns/a/.*")}}
	default:
		out.MatchPattern = &matcherv3.StringMatcher_Exact{Exact: value}
	}
	return out
}

func (g *accessGenerator) header() *routev3.HeaderMatcher {
	out := &routev3.HeaderMatcher{Name: pick(g, "x-a", "X-A", "x_u", ":method", ":authority", "host", ":path"), InvertMatch: g.chance(30), TreatMissingHeaderAsEmpty: g.chance(20)}
	values := map[string][]string{
		":method": {"GET", "POST", "get"}, ":authority": accessHosts, "host": accessHosts, ":path": accessPaths,
	}[out.Name]
	if values == nil {
		values = []string{"1", "2", "1,2", "A"}
	}
	switch g.IntN(6) {
	case 0:
		out.HeaderMatchSpecifier = &routev3.HeaderMatcher_PresentMatch{PresentMatch: g.chance(70)}
	case 1:
		out.HeaderMatchSpecifier = &routev3.HeaderMatcher_RangeMatch{RangeMatch: &typev3.Int64Range{Start: int64(g.IntN(3)), End: 3}}
	default:
		out.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: g.text(values...)}
	}
	return out
}

func (g *accessGenerator) path() *matcherv3.PathMatcher {
	return &matcherv3.PathMatcher{Rule: &matcherv3.PathMatcher_Path{Path: g.text(accessPaths...)}}
}

func (g *accessGenerator) metadata() *matcherv3.MetadataMatcher {
	out := &matcherv3.MetadataMatcher{
		Filter: pick(g, "envoy.filters.http.rbac", "other"), Invert: g.chance(20),
		Path: []*matcherv3.MetadataMatcher_PathSegment{{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: pick(g, "p_shadow_engine_result", "p_shadow_effective_policy_id", "none")}}},
	}
	switch g.IntN(3) {
	case 0:
		out.Value = &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}}
	case 1:
		out.Value = &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{ListMatch: &matcherv3.ListMatcher{
			MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}}},
		}}}
	default:
		out.Value = &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: g.text("allowed", "denied", "a-rule[0]", "b-rule[1]")}}
	}
	return out
}

func (g *accessGenerator) cidr() *corev3.CidrRange {
	address := pick(g, "127.0.0.1", "127.0.0.0", "10.1.2.3", "0.0.0.0", "::1", "::ffff:127.0.0.1", "192.0.2.1")
	bits := pick[uint32](g, 8, 16, 24, 32)
	return &corev3.CidrRange{AddressPrefix: address, PrefixLen: wrapperspb.UInt32(bits)}
}

var (
	accessHosts = []string{"a.example", "A.example:8080", "b.example", "a.example.", "[::1]:80", "a.example.:80"}
	accessPaths = []string{"/", "/a", "/a/b", "/A", "/a/", "/b", "/a/b/c", "/.b"}
	segments    = []string{"a", "b", "A", "", ".", "..", "%2e", "%2E%2e", "%61", "a%2Fb", "a%2fb", "a%5Cb", `a\b`, "%", "%zz", "a;b", "a|b", "a^b", "a{b}", "a[b]", "a=b", "%41%7e", "a*", "%c3%a4", "a`b", "%00", "...", ".a", `..\`, "a\"b", "<a>", "a,b", "a:b", "@", "~", "%25", "%3f"}
)

func (g *accessGenerator) request(identity string) *access.Request {
	r := &access.Request{
		Source: netip.MustParseAddr("127.0.0.1"), Destination: netip.MustParseAddr("127.0.0.1"),
		Method: pick(g, "GET", "GET", "POST", "DELETE"), Host: pick(g, accessHosts...), Path: pick(g, accessPaths...),
	}
	if g.chance(50) {
		r.Path = ""
		for range 1 + g.IntN(4) {
			r.Path += "/" + pick(g, segments...)
		}
	}
	if g.chance(20) {
		r.Path += pick(g, "?", "?x=/b", "?/../a", "?%2F")
	}
	if g.chance(3) {
		r.Path += "#a"
	}
	for range g.IntN(4) {
		r.Headers = append(r.Headers, access.Header{Name: pick(g, "x-a", "X-A", "x-a", "x_u"), Value: pick(g, "1", "2", "1,2", "A", "a", "")})
	}
	if g.chance(30) {
		r.Headers = append(r.Headers, access.Header{Name: "X-Forwarded-For", Value: pick(g, "10.1.2.3", "192.0.2.1, 10.1.2.3", "10.1.2.3,192.0.2.1,127.0.0.1", "nonsense", "10.1.2.3:80")})
	}
	if identity != "" {
		r.TLS, r.ALPN, r.Peer = true, []string{"http/1.1"}, &access.Peer{URIs: []string{identity}}
		r.SNI = pick(g, "a.example", "B.example", "")
	}
	return r
}
