package access

import (
	"cmp"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	statev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	netrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	netstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/set_filter_state/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// passive are the filters that do not look at the caller and change nothing that other
// filters evaluate, by the message name of their configuration.
var passive = map[string]bool{
	"envoy.extensions.filters.network.sni_cluster.v3.SniCluster": true,
	"envoy.tcp.metadataexchange.config.MetadataExchange":         true,
	"io.istio.http.peer_metadata.Config":                         true,
	"istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig":  true,
	"stats.PluginConfig":                                                true,
	"envoy.extensions.filters.http.router.v3.Router":                    true,
	"envoy.extensions.filters.http.cors.v3.Cors":                        true,
	"envoy.extensions.filters.http.fault.v3.HTTPFault":                  true,
	"envoy.extensions.filters.http.grpc_stats.v3.FilterConfig":          true,
	"envoy.extensions.filters.http.grpc_web.v3.GrpcWeb":                 true,
	"envoy.extensions.filters.http.compressor.v3.Compressor":            true,
	"envoy.extensions.filters.http.buffer.v3.Buffer":                    true,
	"envoy.extensions.filters.http.stateful_session.v3.StatefulSession": true,
	"envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit":   true,
	"envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec":     true,
	"envoy.extensions.filters.http.on_demand.v3.OnDemand":               true,
}

// blackHole is the cluster without endpoints of Istio's control planes.
const blackHole = "BlackHoleCluster"

// extension returns the configuration of a filter, which may be from ECDS. A nil result
// means that the dump does not have it.
func (c *Config) extension(name string, inline *anypb.Any, discovered *corev3.ExtensionConfigSource) *anypb.Any {
	if discovered == nil {
		return inline
	}
	if e := c.Extensions[name]; e != nil {
		return e.GetTypedConfig()
	}
	return discovered.GetDefaultConfig()
}

// networkFilter evaluates a network filter. It returns false after the last one.
func (e *evaluation) networkFilter(f *listenerv3.Filter) bool {
	config := e.config.extension(f.GetName(), f.GetTypedConfig(), f.GetConfigDiscovery())
	if config == nil {
		e.step(Step{Name: f.GetName(), Verdict: Undecided, Why: "the dump does not have the configuration of this filter"})
		return true
	}
	switch m := message(config).(type) {
	case *netrbacv3.RBAC:
		e.rbac(f.GetName(), m.GetRules(), m.GetShadowRules(), "", m.GetMatcher() != nil)
	case *netstatev3.Config:
		e.setFilterState(m.GetOnNewConnection())
	case *hcmv3.HttpConnectionManager:
		e.connectionManager(m)
		return false
	case *tcpproxyv3.TcpProxy:
		if m.GetCluster() == blackHole {
			e.step(Step{Name: f.GetName(), Verdict: Denied, Why: "the port has no service: Envoy closes the connection"})
		}
		return false
	default:
		e.other(f.GetName(), config)
	}
	return true
}

// other records a filter that is not evaluated.
func (e *evaluation) other(name string, config *anypb.Any) {
	if !passive[typeName(config)] {
		e.unsure = "filter " + name + " may set it"
		e.step(Step{Name: name, Verdict: Undecided, Why: "this filter may refuse the request itself, and is not evaluated"})
	}
}

// typeName returns the message name of a configuration, which may be in a TypedStruct.
func typeName(config *anypb.Any) string {
	url := config.GetTypeUrl()
	if m, ok := message(config).(interface{ GetTypeUrl() string }); ok {
		url = m.GetTypeUrl()
	}
	return url[strings.LastIndexByte(url, '/')+1:]
}

// message decodes the configuration of a filter. It returns nil for an unknown one.
func message(config *anypb.Any) proto.Message {
	m, err := config.UnmarshalNew()
	if err != nil {
		return nil
	}
	return m
}

// rbac evaluates an RBAC filter. prefix is the prefix of the names under which it
// records what the shadow rules decide.
func (e *evaluation) rbac(name string, rules, shadow *rbacv3.RBAC, prefix string, matchers bool) {
	if shadow != nil {
		f, effective, judged := e.judgeRBAC(shadow)
		e.step(Step{Name: name, Verdict: f.verdict(), Shadow: true, Action: shadow.GetAction().String(), Rule: effective, Why: f.why, Rules: judged})
		e.recordShadow(prefix, f, effective, judged)
	}
	if matchers {
		e.step(Step{Name: name, Verdict: Undecided, Why: "RBAC by matcher trees is not evaluated"})
		return
	}
	if rules == nil {
		return
	}
	f, effective, judged := e.judgeRBAC(rules)
	if rules.GetAction() == rbacv3.RBAC_DENY && f.truth == yes {
		f.why = "no DENY rule matches"
	}
	s := Step{Name: name, Verdict: f.verdict(), Action: rules.GetAction().String(), Rule: effective, Why: f.why, Rules: judged}
	if rules.GetAction() == rbacv3.RBAC_ALLOW && f.truth == no {
		s.Rule = ""
		s.Why = "no rule allows it"
		if miss := Nearest(judged); miss != nil {
			s.Why += nearest + RuleTitle(miss.Name) + ", does not match: " + miss.Why
		} else if !e.overHTTP {
			s.Why += ": rules with methods, paths, headers or tokens need HTTP, which the port does not have"
		}
	}
	if p, ok := ParsePolicy(effective); ok && p.Custom && f.truth == no {
		_, filter, _ := strings.Cut(name, ".custom.")
		s.Why = "the proxy cannot ask the provider " + cmp.Or(p.Provider, filter) + ", so what the rule matches is refused; " + s.Why
	}
	if f.truth == no && e.overHTTP {
		s.Status = 403
	}
	e.step(s)
}

// nearest introduces the rule that comes nearest.
const nearest = "; the nearest, "

// recordShadow sets the metadata that Envoy derives from shadow rules. Other filters read it.
func (e *evaluation) recordShadow(prefix string, f finding, effective string, judged []Rule) {
	var result, policy any = "allowed", effective
	switch f.truth {
	case unknown:
		result = unknownValue{}
	case no:
		result = "denied"
	}
	e.setMetadata(rbacMetadata, prefix+"shadow_engine_result", result)
	if slices.ContainsFunc(judged, func(r Rule) bool { return r.Match == MayMatch }) {
		policy = unknownValue{}
	}
	if policy != "" {
		e.setMetadata(rbacMetadata, prefix+"shadow_effective_policy_id", policy)
	}
}

// Nearest returns the rule that matches most of a request without matching it, nil if there is none.
func Nearest(rules []Rule) *Rule {
	var best *Rule
	for i := range rules {
		if r := &rules[i]; r.Match != Matches && (best == nil || r.near > best.near) {
			best = r
		}
	}
	return best
}

// connectionManager evaluates a connection manager and its filters.
func (e *evaluation) connectionManager(m *hcmv3.HttpConnectionManager) {
	if e.Method == "" && !e.Open {
		e.step(Step{Name: "HTTP", Verdict: Undecided, Why: "the port accepts HTTP: give a method"})
		return
	}
	e.overHTTP = true
	e.host = stripHost(e.Host, m, e.Port)
	if !e.underscores(m) {
		return
	}
	var refused *refusal
	if e.path, refused = normalize(e.Path, m); refused != nil {
		e.step(Step{Name: "HTTP", Verdict: Denied, Status: refused.status, Why: refused.why})
		return
	}
	if m.GetPathNormalizationOptions() != nil {
		e.step(Step{Name: "HTTP", Verdict: Undecided, Why: "pathNormalizationOptions are not evaluated"})
	}
	if e.path != e.Path {
		e.result.Path = e.path
	}
	e.remote = e.client(m)
	routes := m.GetRouteConfig()
	if name := m.GetRds().GetRouteConfigName(); name != "" {
		routes = e.config.Routes[name]
	}
	for _, f := range m.GetHttpFilters() {
		if e.denied() {
			return
		}
		if !f.GetDisabled() {
			e.httpFilter(f, routes)
		}
	}
}

func (e *evaluation) httpFilter(f *hcmv3.HttpFilter, routes *routev3.RouteConfiguration) {
	config := e.config.extension(f.GetName(), f.GetTypedConfig(), f.GetConfigDiscovery())
	if config == nil {
		e.step(Step{Name: f.GetName(), Verdict: Undecided, Why: "the dump does not have the configuration of this filter"})
		return
	}
	m := message(config)
	switch m.(type) {
	case *httprbacv3.RBAC, *extauthzv3.ExtAuthz, *jwtv3.JwtAuthentication:
		if overridden(routes, f.GetName()) {
			e.step(Step{Name: f.GetName(), Verdict: Undecided, Why: "the routes have settings of this filter, which are not evaluated"})
			return
		}
	}
	switch m := m.(type) {
	case *httprbacv3.RBAC:
		e.rbac(f.GetName(), m.GetRules(), m.GetShadowRules(), m.GetShadowRulesStatPrefix(), m.GetMatcher() != nil)
	case *extauthzv3.ExtAuthz:
		e.extAuthz(f.GetName(), m)
	case *jwtv3.JwtAuthentication:
		e.jwt(f.GetName(), m)
	case *httpstatev3.Config:
		e.setFilterState(m.GetOnRequestHeaders())
	default:
		e.other(f.GetName(), config)
	}
}

// overridden reports whether routes have settings of a filter of their own.
func overridden(routes *routev3.RouteConfiguration, filter string) bool {
	has := func(settings map[string]*anypb.Any) bool { return settings[filter] != nil }
	if has(routes.GetTypedPerFilterConfig()) {
		return true
	}
	for _, host := range routes.GetVirtualHosts() {
		if has(host.GetTypedPerFilterConfig()) {
			return true
		}
		for _, route := range host.GetRoutes() {
			if has(route.GetTypedPerFilterConfig()) {
				return true
			}
		}
	}
	return false
}

// setFilterState records the filter state that a filter sets.
func (e *evaluation) setFilterState(values []*statev3.FilterStateValue) {
	for _, v := range values {
		key := v.GetObjectKey()
		format := v.GetFormatString().GetTextFormatSource().GetInlineString()
		value := finding{yes, format}
		switch {
		case format == "%DOWNSTREAM_PEER_URI_SAN%":
			value.why = ""
			if p := e.peer(); p != nil {
				value.why = strings.Join(p.URIs, ",")
				if p.Except != nil {
					value = undecidable("it depends on the identity")
				}
			}
		case format == "%REQUESTED_SERVER_NAME%":
			value.why = e.SNI
		case strings.Contains(format, "%") || format == "":
			value = undecidable("its format is not evaluated")
		}
		if value.truth == yes && value.why == "" && !v.GetFormatString().GetOmitEmptyValues() {
			value.why = "-" // as Envoy formats a missing value
		}
		if value == (finding{yes, ""}) && v.GetSkipIfEmpty() {
			continue
		}
		e.filterState[key] = value
	}
}

// provider returns the cluster or address of an external authorizer.
func provider(m *extauthzv3.ExtAuthz) string {
	if http := m.GetHttpService(); http != nil {
		return http.GetServerUri().GetCluster()
	}
	grpc := m.GetGrpcService()
	return cmp.Or(grpc.GetEnvoyGrpc().GetClusterName(), grpc.GetGoogleGrpc().GetTargetUri())
}

// extAuthz evaluates whether Envoy asks an external authorizer.
func (e *evaluation) extAuthz(name string, m *extauthzv3.ExtAuthz) {
	asks := "asks " + provider(m)
	asked := finding{yes, ""}
	if match := m.GetFilterEnabledMetadata(); match != nil {
		asked = e.matchMetadata(match)
	}
	if enabled := m.GetFilterEnabled(); enabled != nil {
		switch percent := enabled.GetDefaultValue(); {
		case enabled.GetRuntimeKey() != "" || percent.GetNumerator() != 0:
			asked = all([]finding{asked, undecidable("only some requests are checked")}, func(f finding) finding { return f })
		default:
			asked = finding{no, "the filter is off"}
		}
	}
	switch {
	case m.GetShadowMode():
		e.step(Step{Name: name, Verdict: Undecided, Shadow: true, Why: asks + ", but ignores its answer"})
	case asked.truth == no:
		e.step(Step{Name: name, Verdict: Allowed, Why: "does not ask " + provider(m) + ": " + asked.why})
	default:
		e.step(Step{Name: name, Verdict: Undecided, Why: asks})
	}
}
