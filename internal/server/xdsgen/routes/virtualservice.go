package routes

import (
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonfaultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/clusters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/filters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/rbac"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// RouteContext holds everything besides a VirtualService on which its routes depend.
type RouteContext struct {
	Gateway string // snapshot.MeshGateway, or <namespace>/<name> of a Gateway object
	Port    uint32 // of the listener
	TLS     bool   // requests come over TLS that the proxy terminates
	Client  snapshot.RouteClient
	Retries snapshot.RetryPolicy // of routes without their own
}

// Applies reports whether requests or connections to the proxy can meet a condition.
func (c RouteContext) Applies(gateways []string, port uint32, m snapshot.ClientMatch) bool {
	if port != 0 && port != c.Port {
		return false
	}
	named := slices.Contains(gateways, c.Gateway)
	if c.Gateway != snapshot.MeshGateway && named {
		return true // the condition on clients is for sidecars
	}
	return (named || len(gateways) == 0) && c.Client.Holds(m)
}

// Matches iterates over the HTTP routes of a VirtualService in the context, with the match
// that leads to each, which is nil if all requests match. Routes behind a catch-all are
// left out.
func (c RouteContext) Matches(v *snapshot.VirtualService, yield func(*networkingv1alpha3.HTTPRoute, *networkingv1alpha3.HTTPMatchRequest) bool) {
	for _, r := range v.HTTP {
		if len(r.GetMatch()) == 0 {
			yield(r, nil)
			return
		}
		for _, m := range r.GetMatch() {
			if !c.Applies(m.GetGateways(), m.GetPort(), snapshot.ClientMatchOf(m)) {
				continue
			}
			if !yield(r, m) || everyRequest(m) {
				return
			}
		}
	}
}

// choose returns the first VirtualService with a route in the context, or nil.
func (c RouteContext) choose(list []*snapshot.VirtualService) *snapshot.VirtualService {
	i := slices.IndexFunc(list, c.Routes)
	if i < 0 {
		return nil
	}
	return list[i]
}

// Routes reports whether a VirtualService has a route in the context.
func (c RouteContext) Routes(v *snapshot.VirtualService) (found bool) {
	c.Matches(v, func(*networkingv1alpha3.HTTPRoute, *networkingv1alpha3.HTTPMatchRequest) bool {
		found = true
		return false
	})
	return found
}

// VirtualServiceRoutes returns the HTTP routes of a VirtualService in a context.
func VirtualServiceRoutes(g *wire.Generator, v *snapshot.VirtualService, c RouteContext) []*routev3.Route {
	var out []*routev3.Route
	c.Matches(v, func(r *networkingv1alpha3.HTTPRoute, m *networkingv1alpha3.HTTPMatchRequest) bool {
		out = append(out, route(g, v, r, m, c))
		return true
	})
	return out
}

func route(g *wire.Generator, v *snapshot.VirtualService, r *networkingv1alpha3.HTTPRoute, m *networkingv1alpha3.HTTPMatchRequest, c RouteContext) *routev3.Route {
	out := &routev3.Route{
		Name:       r.GetName(),
		Match:      RouteMatch(m),
		Metadata:   clusters.ConfigMetadata(v),
		StatPrefix: m.GetStatPrefix(),
	}
	if m.GetName() != "" {
		out.Name += "." + m.GetName()
	}
	headers := headerOperations(r.GetHeaders())
	headers.Set(out)
	out.Decorator = &routev3.Decorator{Operation: v.Name + ":" + wire.PortString(c.Port) + pathOf(out.GetMatch())}
	switch {
	case r.GetRedirect() != nil:
		out.Action = &routev3.Route_Redirect{Redirect: Redirect(r.GetRedirect(), c)}
	case r.GetDirectResponse() != nil:
		out.Action = &routev3.Route_DirectResponse{DirectResponse: DirectResponse(r.GetDirectResponse())}
	default:
		action := RouteAction(g, r, c)
		if len(r.GetRoute()) == 1 {
			only := headerOperations(r.GetRoute()[0].GetHeaders())
			only.Set(out)
			if headers.host == "" {
				headers.host = only.host
			}
			d := r.GetRoute()[0].GetDestination()
			out.Decorator.Operation = d.GetHost() + ":" + wire.PortString(DestinationPort(d, c.Port)) + pathOf(out.GetMatch())
		}
		if host := r.GetRewrite().GetAuthority(); host != "" {
			headers.host = host
		}
		if headers.host != "" {
			action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: headers.host}
		}
		out.Action = &routev3.Route_Route{Route: action}
	}
	if r.GetFault() == nil && r.GetCorsPolicy() == nil {
		return out
	}
	out.TypedPerFilterConfig = make(map[string]*anypb.Any)
	if f := Faults(r.GetFault()); f != nil {
		out.TypedPerFilterConfig[filters.FilterFault] = g.Any(f)
	}
	if p := r.GetCorsPolicy(); p != nil {
		out.TypedPerFilterConfig["envoy.filters.http.cors"] = g.Any(corsPolicy(p))
	}
	return out
}

// RouteMatch returns the condition of a match, which may be nil.
func RouteMatch(m *networkingv1alpha3.HTTPMatchRequest) *routev3.RouteMatch {
	if m == nil {
		return wire.EveryPath
	}
	out := &routev3.RouteMatch{PathSpecifier: wire.EveryPath.GetPathSpecifier()}
	switch u := m.GetUri().GetMatchType().(type) {
	case *networkingv1alpha3.StringMatch_Exact:
		out.PathSpecifier = &routev3.RouteMatch_Path{Path: u.Exact}
	case *networkingv1alpha3.StringMatch_Prefix:
		out.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: u.Prefix}
	case *networkingv1alpha3.StringMatch_Regex:
		out.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: u.Regex}}
	}
	out.CaseSensitive = wire.Boolean(!m.GetIgnoreUriCase())
	for _, name := range wire.SortedKeys(m.GetHeaders()) {
		if claim, ok := snapshot.ClaimPath(name); ok {
			out.DynamicMetadata = append(out.DynamicMetadata, rbac.ClaimMatch(claim, m.GetHeaders()[name], false))
			continue
		}
		out.Headers = append(out.Headers, headerMatch(name, m.GetHeaders()[name]))
	}
	for _, name := range wire.SortedKeys(m.GetWithoutHeaders()) {
		if claim, ok := snapshot.ClaimPath(name); ok {
			out.DynamicMetadata = append(out.DynamicMetadata, rbac.ClaimMatch(claim, m.GetWithoutHeaders()[name], true))
			continue
		}
		h := headerMatch(name, m.GetWithoutHeaders()[name])
		h.InvertMatch = true
		h.TreatMissingHeaderAsEmpty = h.GetStringMatch() != nil
		out.Headers = append(out.Headers, h)
	}
	for _, of := range []struct {
		name  string
		match *networkingv1alpha3.StringMatch
	}{{":method", m.GetMethod()}, {":authority", m.GetAuthority()}, {":scheme", m.GetScheme()}} {
		if of.match != nil {
			out.Headers = append(out.Headers, headerMatch(of.name, of.match))
		}
	}
	for _, name := range wire.SortedKeys(m.GetQueryParams()) {
		q := &routev3.QueryParameterMatcher{Name: name, QueryParameterMatchSpecifier: &routev3.QueryParameterMatcher_PresentMatch{PresentMatch: true}}
		if s := wire.StringMatcher(m.GetQueryParams()[name]); s != nil {
			q.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_StringMatch{StringMatch: s}
		}
		out.QueryParameters = append(out.QueryParameters, q)
	}
	return out
}

// everyRequest reports whether every request meets a match, as IsCatchAll does of its RouteMatch.
func everyRequest(m *networkingv1alpha3.HTTPMatchRequest) bool {
	if len(m.GetHeaders())+len(m.GetWithoutHeaders())+len(m.GetQueryParams()) > 0 || m.GetMethod() != nil || m.GetAuthority() != nil || m.GetScheme() != nil {
		return false
	}
	switch uri := m.GetUri().GetMatchType().(type) {
	case nil:
		return true
	case *networkingv1alpha3.StringMatch_Prefix:
		return uri.Prefix == "/"
	case *networkingv1alpha3.StringMatch_Regex:
		return uri.Regex == ".*"
	}
	return false
}

// IsCatchAll reports whether every request meets a condition.
func IsCatchAll(m *routev3.RouteMatch) bool {
	return (m.GetPrefix() == "/" || m.GetSafeRegex().GetRegex() == ".*") && len(m.GetHeaders())+len(m.GetQueryParameters())+len(m.GetDynamicMetadata()) == 0
}

func pathOf(m *routev3.RouteMatch) string {
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		return p.Prefix + "*"
	case *routev3.RouteMatch_Path:
		return p.Path
	}
	return m.GetSafeRegex().GetRegex()
}

func headerMatch(name string, m *networkingv1alpha3.StringMatch) *routev3.HeaderMatcher {
	out := &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}}
	if s := wire.StringMatcher(m); s != nil {
		out.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: s}
	}
	return out
}

// headerChanges holds operations on headers.
type headerChanges struct {
	addRequest, addResponse       []*corev3.HeaderValueOption
	removeRequest, removeResponse []string
	host                          string // replaces the host of requests
}

func headerOperations(h *networkingv1alpha3.Headers) headerChanges {
	var out headerChanges
	add := func(to []*corev3.HeaderValueOption, headers map[string]string, action corev3.HeaderValueOption_HeaderAppendAction, request bool) []*corev3.HeaderValueOption {
		for _, name := range wire.SortedKeys(headers) {
			if strings.EqualFold(name, ":authority") || strings.EqualFold(name, "host") {
				if request {
					out.host = headers[name]
				}
				continue
			}
			to = append(to, &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, Value: headers[name]}, AppendAction: action})
		}
		return to
	}
	const set, extend = corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD, corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD
	added := add(nil, h.GetRequest().GetAdd(), extend, true)
	out.addRequest = append(add(nil, h.GetRequest().GetSet(), set, true), added...) // the host to set wins
	out.addResponse = add(add(nil, h.GetResponse().GetSet(), set, false), h.GetResponse().GetAdd(), extend, false)
	out.removeRequest, out.removeResponse = h.GetRequest().GetRemove(), h.GetResponse().GetRemove()
	return out
}

// Set adds the operations to the operations of a route.
func (h headerChanges) Set(r *routev3.Route) {
	r.RequestHeadersToAdd = slices.Concat(r.GetRequestHeadersToAdd(), h.addRequest)
	r.ResponseHeadersToAdd = slices.Concat(r.GetResponseHeadersToAdd(), h.addResponse)
	r.RequestHeadersToRemove = slices.Concat(r.GetRequestHeadersToRemove(), h.removeRequest)
	r.ResponseHeadersToRemove = slices.Concat(r.GetResponseHeadersToRemove(), h.removeResponse)
}

// Redirect returns the redirection of a route.
func Redirect(r *networkingv1alpha3.HTTPRedirect, c RouteContext) *routev3.RedirectAction {
	out := &routev3.RedirectAction{HostRedirect: r.GetAuthority()}
	switch {
	case r.GetUri() != "":
		out.PathRewriteSpecifier = &routev3.RedirectAction_PathRedirect{PathRedirect: r.GetUri()}
	case r.GetPrefixRewrite() != "":
		out.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: r.GetPrefixRewrite()}
	}
	scheme := "http"
	if c.TLS {
		scheme = "https"
	}
	if s := r.GetScheme(); s != "" {
		scheme = s
		out.SchemeRewriteSpecifier = &routev3.RedirectAction_SchemeRedirect{SchemeRedirect: s}
	}
	switch p := r.GetRedirectPort().(type) {
	case *networkingv1alpha3.HTTPRedirect_Port:
		out.PortRedirect = p.Port
	case *networkingv1alpha3.HTTPRedirect_DerivePort:
		if p.DerivePort == networkingv1alpha3.HTTPRedirect_FROM_REQUEST_PORT {
			out.PortRedirect = c.Port
		}
	}
	if out.GetPortRedirect() == 80 && scheme == "http" || out.GetPortRedirect() == 443 && scheme == "https" {
		out.PortRedirect = 0 // the default of the scheme
	}
	switch r.GetRedirectCode() {
	case 302:
		out.ResponseCode = routev3.RedirectAction_FOUND
	case 303:
		out.ResponseCode = routev3.RedirectAction_SEE_OTHER
	case 307:
		out.ResponseCode = routev3.RedirectAction_TEMPORARY_REDIRECT
	case 308:
		out.ResponseCode = routev3.RedirectAction_PERMANENT_REDIRECT
	}
	return out
}

// DirectResponse returns the response of a route without a destination.
func DirectResponse(r *networkingv1alpha3.HTTPDirectResponse) *routev3.DirectResponseAction {
	out := &routev3.DirectResponseAction{Status: r.GetStatus()}
	switch b := r.GetBody().GetSpecifier().(type) {
	case *networkingv1alpha3.HTTPBody_String_:
		out.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: b.String_}}
	case *networkingv1alpha3.HTTPBody_Bytes:
		out.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b.Bytes}}
	}
	return out
}

// RouteAction returns the action of a route to destinations.
func RouteAction(g *wire.Generator, r *networkingv1alpha3.HTTPRoute, c RouteContext) *routev3.RouteAction {
	out := &routev3.RouteAction{Timeout: wire.NoTime, RequestMirrorPolicies: mirrors(r, c.Port)}
	if r.GetTimeout() != nil {
		out.Timeout = r.GetTimeout()
	}
	out.MaxGrpcTimeout = out.GetTimeout() //nolint:staticcheck // see defaultAction
	retries := c.Retries
	if r.GetRetries() != nil {
		retries = snapshot.RetryPolicyOf(r.GetRetries())
	}
	out.RetryPolicy = retryPolicy(g, retries)
	if x := r.GetRewrite().GetUriRegexRewrite(); x != nil {
		out.RegexRewrite = &matcherv3.RegexMatchAndSubstitute{Pattern: &matcherv3.RegexMatcher{Regex: x.GetMatch()}, Substitution: x.GetRewrite()}
	}
	out.PrefixRewrite = r.GetRewrite().GetUri()
	if len(r.GetRoute()) == 1 {
		out.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: DestinationCluster(r.GetRoute()[0].GetDestination(), c.Port)}
		return out
	}
	weighted := &routev3.WeightedCluster{}
	for _, d := range r.GetRoute() {
		if d.GetWeight() == 0 {
			continue
		}
		headers := headerOperations(d.GetHeaders())
		w := &routev3.WeightedCluster_ClusterWeight{
			Name: DestinationCluster(d.GetDestination(), c.Port), Weight: wrapperspb.UInt32(uint32(d.GetWeight())),
			RequestHeadersToAdd: headers.addRequest, RequestHeadersToRemove: headers.removeRequest,
			ResponseHeadersToAdd: headers.addResponse, ResponseHeadersToRemove: headers.removeResponse,
		}
		if headers.host != "" {
			w.HostRewriteSpecifier = &routev3.WeightedCluster_ClusterWeight_HostRewriteLiteral{HostRewriteLiteral: headers.host}
		}
		weighted.Clusters = append(weighted.Clusters, w)
	}
	out.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: weighted}
	return out
}

// DestinationPort returns the port of a destination. The registry has set it if the service
// has only one port. Otherwise it is the port of the listener.
func DestinationPort(d *networkingv1alpha3.Destination, listener uint32) uint32 {
	if p := d.GetPort(); p != nil {
		return p.GetNumber()
	}
	return listener
}

// DestinationCluster returns the name of the cluster of a destination. listener is the port if the
// destination has none.
func DestinationCluster(d *networkingv1alpha3.Destination, listener uint32) string {
	return mesh.ClusterName{Direction: mesh.Outbound, Port: DestinationPort(d, listener), Subset: d.GetSubset(), Host: d.GetHost()}.String()
}

// mirrors returns the destinations that get copies of requests.
func mirrors(r *networkingv1alpha3.HTTPRoute, listener uint32) []*routev3.RouteAction_RequestMirrorPolicy {
	var out []*routev3.RouteAction_RequestMirrorPolicy
	add := func(d *networkingv1alpha3.Destination, percent float64) {
		if d != nil && percent > 0 {
			out = append(out, &routev3.RouteAction_RequestMirrorPolicy{
				Cluster: DestinationCluster(d, listener), TraceSampled: wire.No, DisableShadowHostSuffixAppend: true,
				RuntimeFraction: &corev3.RuntimeFractionalPercent{DefaultValue: fraction(percent)},
			})
		}
	}
	percent := 100.0
	switch older := r.GetMirrorPercent(); { //nolint:staticcheck // the older field
	case r.GetMirrorPercentage() != nil:
		percent = r.GetMirrorPercentage().GetValue()
	case older != nil:
		percent = float64(older.GetValue())
	}
	add(r.GetMirror(), percent)
	for _, m := range r.GetMirrors() {
		percent := 100.0
		if m.GetPercentage() != nil {
			percent = m.GetPercentage().GetValue()
		}
		add(m.GetDestination(), percent)
	}
	return out
}

func fraction(percent float64) *typev3.FractionalPercent {
	return &typev3.FractionalPercent{Numerator: uint32(percent * 10000), Denominator: typev3.FractionalPercent_MILLION}
}

// Faults returns the faults to inject, or nil.
func Faults(f *networkingv1alpha3.HTTPFaultInjection) *faultv3.HTTPFault {
	out := &faultv3.HTTPFault{}
	if d, fixed := f.GetDelay().GetHttpDelayType().(*networkingv1alpha3.HTTPFaultInjection_Delay_FixedDelay); fixed {
		percent := float64(f.GetDelay().GetPercent()) //nolint:staticcheck // the older field
		if p := f.GetDelay().GetPercentage(); p != nil {
			percent = p.GetValue()
		}
		out.Delay = &commonfaultv3.FaultDelay{
			Percentage: fraction(percent), FaultDelaySecifier: &commonfaultv3.FaultDelay_FixedDelay{FixedDelay: d.FixedDelay},
		}
	}
	abort := &faultv3.FaultAbort{Percentage: fraction(f.GetAbort().GetPercentage().GetValue())}
	switch a := f.GetAbort().GetErrorType().(type) {
	case *networkingv1alpha3.HTTPFaultInjection_Abort_HttpStatus:
		abort.ErrorType = &faultv3.FaultAbort_HttpStatus{HttpStatus: uint32(a.HttpStatus)}
		out.Abort = abort
	case *networkingv1alpha3.HTTPFaultInjection_Abort_GrpcStatus:
		var code codes.Code
		if code.UnmarshalJSON([]byte(strconv.Quote(a.GrpcStatus))) == nil { // the source has checked it
			abort.ErrorType = &faultv3.FaultAbort_GrpcStatus{GrpcStatus: uint32(code)}
			out.Abort = abort
		}
	}
	if out.Delay == nil && out.Abort == nil {
		return nil
	}
	return out
}

func corsPolicy(p *networkingv1alpha3.CorsPolicy) *corsv3.CorsPolicy {
	out := &corsv3.CorsPolicy{
		AllowMethods: strings.Join(p.GetAllowMethods(), ","), AllowHeaders: strings.Join(p.GetAllowHeaders(), ","),
		ExposeHeaders: strings.Join(p.GetExposeHeaders(), ","), AllowCredentials: p.GetAllowCredentials(),
		FilterEnabled:                &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{Numerator: 100}},
		ForwardNotMatchingPreflights: wire.Boolean(p.GetUnmatchedPreflights() != networkingv1alpha3.CorsPolicy_IGNORE),
	}
	for _, origin := range p.GetAllowOrigins() {
		out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, wire.StringMatcher(origin))
	}
	if len(p.GetAllowOrigins()) == 0 {
		for _, origin := range p.GetAllowOrigin() { //nolint:staticcheck // the older field
			out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: origin}})
		}
	}
	if p.GetMaxAge() != nil {
		out.MaxAge = strconv.FormatInt(p.GetMaxAge().GetSeconds(), 10)
	}
	return out
}
