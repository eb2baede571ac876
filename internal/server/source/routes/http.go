// Package routes checks the routes of VirtualServices.
package routes

import (
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// Bounds of the parts of an HTTP route.
const (
	maxBody = 1 << 20 // of a direct response; as in route configurations
)

// HTTPRoutesFault checks the routes of a VirtualService with a number of hosts. isDelegate
// reports whether they only complete the routes of other VirtualServices.
func HTTPRoutesFault(routes []*networkingv1alpha3.HTTPRoute, hosts int, isDelegate bool) *fields.Error {
	n := 0
	for _, r := range routes {
		n += max(len(r.GetMatch()), 1)
	}
	if n > MaxRoutes || n*max(hosts, 1) > maxHostRoutes {
		return fields.Faultf("http", "has %d routes for %d hosts: at most %d, and %d for all hosts together, are accepted", n, hosts, MaxRoutes, maxHostRoutes)
	}
	return fields.Each("http", routes, func(field string, r *networkingv1alpha3.HTTPRoute) *fields.Error {
		var faults *fields.Error
		if isDelegate && r.Delegate != nil {
			faults = fields.Faultf(field+".delegate", "a VirtualService to which others delegate cannot delegate")
		}
		return fields.AllFaults(faults, actionFault(field, r), checkMatches(field+".match", r), checkHTTPRoute(field, r))
	})
}

// actionFault checks that the parts of a route go together.
func actionFault(field string, r *networkingv1alpha3.HTTPRoute) *fields.Error {
	var actions []string
	for _, a := range []struct {
		name string
		set  bool
	}{{"route", len(r.Route) > 0}, {"redirect", r.Redirect != nil}, {"directResponse", r.DirectResponse != nil}, {"delegate", r.Delegate != nil}} {
		if a.set {
			actions = append(actions, a.name)
		}
	}
	var faults *fields.Error
	switch {
	case len(actions) == 0:
		faults = fields.Faultf(field, "has none of route, redirect, directResponse and delegate")
	case len(actions) > 1:
		faults = fields.Faultf(field+"."+actions[1], "does not go with %s: use one of them", actions[0])
	case r.Redirect != nil || r.DirectResponse != nil:
		if r.Rewrite != nil {
			faults = faults.And(fields.Faultf(field+".rewrite", "does not go with %s", actions[0]))
		}
		if r.Fault != nil {
			faults = faults.And(fields.Faultf(field+".fault", "does not go with %s", actions[0]))
		}
	}
	if r.Mirror != nil && len(r.Mirrors) > 0 {
		faults = faults.And(fields.Faultf(field+".mirrors", "does not go with mirror: use one of them"))
	}
	if r.Delegate != nil && !mesh.IsDNSName(r.Delegate.Name) {
		faults = faults.And(fields.Faultf(field+".delegate.name", "%q is not the name of a VirtualService", r.Delegate.Name))
	}
	if r.Delegate.GetNamespace() != "" && !mesh.IsDNSLabel(r.Delegate.Namespace) {
		faults = faults.And(fields.Faultf(field+".delegate.namespace", "%q is not a namespace", r.Delegate.Namespace))
	}
	return faults
}

// checkMatches checks the matches of a route.
func checkMatches(field string, r *networkingv1alpha3.HTTPRoute) *fields.Error {
	return fields.Each(field, r.Match, func(field string, m *networkingv1alpha3.HTTPMatchRequest) *fields.Error {
		if n := len(m.Headers) + len(m.WithoutHeaders) + len(m.QueryParams); n > maxRouteParts {
			return fields.Faultf(field, "has %d conditions, at most %d are accepted", n, maxRouteParts)
		}
		return fields.AllFaults(
			uriMatchFault(field+".uri", m.Uri, r.Redirect.GetPrefixRewrite() != ""),
			stringMatchFault(field+".scheme", m.Scheme),
			stringMatchFault(field+".method", m.Method),
			stringMatchFault(field+".authority", m.Authority),
			headerMatchesFault(field+".headers", m.Headers),
			headerMatchesFault(field+".withoutHeaders", m.WithoutHeaders),
			queryMatchesFault(field+".queryParams", m.QueryParams),
			sourceFault(field, m.SourceLabels, m.SourceNamespace, m.Gateways, m.Port),
		)
	})
}

// uriMatchFault checks the condition on a path. An empty text and the regular expression "*",
// which conditions on other texts may have, match no path.
func uriMatchFault(field string, m *networkingv1alpha3.StringMatch, wantPrefix bool) *fields.Error {
	switch u := m.GetMatchType().(type) {
	case nil:
		return nil
	case *networkingv1alpha3.StringMatch_Exact:
		if u.Exact == "" {
			return fields.Faultf(field+".exact", "is empty")
		}
	case *networkingv1alpha3.StringMatch_Regex:
		if u.Regex == "*" {
			return fields.RegexFault(field+".regex", u.Regex)
		}
	}
	if wantPrefix && m.GetPrefix() == "" {
		return fields.Faultf(field, "is not a prefix, which prefixRewrite of the redirect needs")
	}
	return stringMatchFault(field, m)
}

func headerMatchesFault(field string, matches map[string]*networkingv1alpha3.StringMatch) *fields.Error {
	var faults *fields.Error
	for _, name := range slices.Sorted(maps.Keys(matches)) {
		claim, isClaim := snapshot.ClaimPath(name)
		switch {
		case isClaim && claim == nil:
			faults = faults.And(fields.Faultf(field+"["+name+"]", "does not name a claim: write @request.auth.claims.NAME or @request.auth.claims[NAME]"))
		case !isClaim && !fields.IsHeaderName(strings.TrimPrefix(name, ":")):
			faults = faults.And(fields.Faultf(field+"["+name+"]", "%q is not the name of a header", name))
		}
		faults = faults.And(stringMatchFault(field+"["+name+"]", matches[name]))
	}
	return faults
}

func queryMatchesFault(field string, matches map[string]*networkingv1alpha3.StringMatch) *fields.Error {
	var faults *fields.Error
	const maxName = 1024 // Envoy accepts no more
	for _, name := range slices.Sorted(maps.Keys(matches)) {
		if name == "" || len(name) > maxName {
			faults = faults.And(fields.Faultf(field+"["+name+"]", "has a name of %d bytes: want 1 to %d", len(name), maxName))
		}
		faults = faults.And(stringMatchFault(field+"["+name+"]", matches[name]))
	}
	return faults
}

// stringMatchFault checks a condition on a text. The regular expression "*" is Istio's
// word for any text.
func stringMatchFault(field string, m *networkingv1alpha3.StringMatch) *fields.Error {
	switch t := m.GetMatchType().(type) {
	case *networkingv1alpha3.StringMatch_Exact:
		return fields.TextFault(field+".exact", t.Exact)
	case *networkingv1alpha3.StringMatch_Prefix:
		if t.Prefix == "" {
			return fields.Faultf(field+".prefix", "is empty")
		}
		return fields.TextFault(field+".prefix", t.Prefix)
	case *networkingv1alpha3.StringMatch_Regex:
		if t.Regex == "*" {
			return nil
		}
		return fields.RegexFault(field+".regex", t.Regex)
	}
	return nil
}

func checkHTTPRoute(field string, r *networkingv1alpha3.HTTPRoute) *fields.Error {
	weights := make([]int32, 0, len(r.Route))
	destinations := fields.Each(field+".route", r.Route, func(field string, d *networkingv1alpha3.HTTPRouteDestination) *fields.Error {
		weights = append(weights, d.Weight)
		return fields.AllFaults(destinationFault(field+".destination", d.Destination), headersFault(field+".headers", d.Headers))
	})
	return fields.AllFaults(
		fields.TextFault(field+".name", r.Name),
		destinations,
		weightsFault(field+".route", weights),
		redirectFault(field+".redirect", r.Redirect),
		directResponseFault(field+".directResponse", r.DirectResponse),
		rewriteFault(field+".rewrite", r.Rewrite),
		fields.TimeFault(field+".timeout", r.Timeout, 0),
		retriesFault(field+".retries", r.Retries),
		faultsFault(field+".fault", r.Fault),
		mirrorsFault(field, r),
		corsFault(field+".corsPolicy", r.CorsPolicy),
		headersFault(field+".headers", r.Headers),
	)
}

func redirectFault(field string, r *networkingv1alpha3.HTTPRedirect) *fields.Error {
	if r == nil {
		return nil
	}
	var faults *fields.Error
	switch {
	case r.Uri == "" && r.Authority == "" && r.Scheme == "" && r.RedirectPort == nil && r.PrefixRewrite == "":
		faults = faults.And(fields.Faultf(field, "has none of uri, prefixRewrite, authority, scheme and port"))
	case r.Uri != "" && r.PrefixRewrite != "":
		faults = faults.And(fields.Faultf(field+".prefixRewrite", "does not go with uri: use one of them"))
	}
	if port, fixed := r.RedirectPort.(*networkingv1alpha3.HTTPRedirect_Port); fixed && !fields.IsPort(port.Port) {
		faults = faults.And(fields.Faultf(field+".port", "%d is not a port: want 1 to 65535", port.Port))
	}
	if !slices.Contains([]uint32{0, http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect}, r.RedirectCode) {
		faults = faults.And(fields.Faultf(field+".redirectCode", "%d is none of 301, 302, 303, 307 and 308", r.RedirectCode))
	}
	if r.Scheme != "" && r.Scheme != "http" && r.Scheme != "https" {
		faults = faults.And(fields.Faultf(field+".scheme", "%q is neither http nor https", r.Scheme))
	}
	return fields.AllFaults(faults, fields.TextFault(field+".uri", r.Uri), fields.TextFault(field+".prefixRewrite", r.PrefixRewrite), fields.TextFault(field+".authority", r.Authority))
}

func directResponseFault(field string, r *networkingv1alpha3.HTTPDirectResponse) *fields.Error {
	if r == nil {
		return nil
	}
	var faults *fields.Error
	if r.Status < 200 || r.Status > 599 {
		faults = faults.And(fields.Faultf(field+".status", "%d is not a status from 200 to 599", r.Status))
	}
	if n := max(len(r.Body.GetString_()), len(r.Body.GetBytes())); n > maxBody {
		faults = faults.And(fields.Faultf(field+".body", "has %d bytes, at most %d are accepted", n, maxBody))
	}
	return faults
}

func rewriteFault(field string, r *networkingv1alpha3.HTTPRewrite) *fields.Error {
	if r == nil {
		return nil
	}
	if x := r.UriRegexRewrite; x != nil {
		field := field + ".uriRegexRewrite"
		if r.Uri != "" {
			return fields.Faultf(field, "does not go with uri: use one of them")
		}
		if fault := fields.AllFaults(fields.RegexFault(field+".match", x.Match), fields.TextFault(field+".rewrite", x.Rewrite)); fault != nil {
			return fault
		}
		return substitutionFault(field+".rewrite", x.Rewrite, regexp.MustCompile(x.Match).NumSubexp())
	}
	if r.Uri == "" && r.Authority == "" {
		return fields.Faultf(field, "has none of uri, uriRegexRewrite and authority")
	}
	return fields.AllFaults(fields.TextFault(field+".uri", r.Uri), fields.TextFault(field+".authority", r.Authority))
}

// substitutionFault checks the replacement for what a regular expression with some groups
// matches. A backslash stands before the number of a group, or before a backslash.
func substitutionFault(field, text string, groups int) *fields.Error {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		i++
		if i == len(text) || text[i] != '\\' && (text[i] < '0' || int(text[i]-'0') > groups || text[i] > '9') {
			return fields.Faultf(field, "%q has a backslash that is not before one of the groups 0 to %d, nor before a backslash", text, min(groups, 9))
		}
	}
	return nil
}

// retryConditions are the conditions of Envoy after which requests can be repeated.
var retryConditions = strings.Fields(`5xx gateway-error reset reset-before-request connect-failure envoy-ratelimited
	retriable-4xx refused-stream retriable-status-codes retriable-headers http3-post-connect-failure
	cancelled deadline-exceeded internal resource-exhausted unavailable`)

func retriesFault(field string, r *networkingv1alpha3.HTTPRetry) *fields.Error {
	var faults *fields.Error
	if r.GetAttempts() < 0 {
		faults = faults.And(fields.Faultf(field+".attempts", "%d is negative", r.GetAttempts()))
	}
	if r.GetAttempts() == 0 && (r.GetRetryOn() != "" || r.GetPerTryTimeout() != nil || r.GetBackoff() != nil) {
		faults = faults.And(fields.Faultf(field+".attempts", "is 0, so that there are no retries, but other fields are set"))
	}
	for condition := range strings.SplitSeq(r.GetRetryOn(), ",") {
		condition = strings.TrimSpace(condition)
		code, err := strconv.ParseUint(condition, 10, 16)
		if condition != "" && (err != nil || code < 100 || code > 599) && !slices.Contains(retryConditions, condition) {
			faults = faults.And(fields.Faultf(field+".retryOn", "%q is neither a condition of Envoy nor a status", condition))
		}
	}
	return fields.AllFaults(faults, fields.TimeFault(field+".perTryTimeout", r.GetPerTryTimeout(), time.Millisecond), fields.TimeFault(field+".backoff", r.GetBackoff(), time.Millisecond))
}

func faultsFault(field string, f *networkingv1alpha3.HTTPFaultInjection) *fields.Error {
	if f == nil {
		return nil
	}
	var faults *fields.Error
	if f.Delay == nil && f.Abort == nil {
		return fields.Faultf(field, "has neither delay nor abort")
	}
	if d := f.Delay; d != nil {
		field := field + ".delay"
		percent := d.GetPercent() //nolint:staticcheck // the older field
		if percent < 0 || percent > 100 {
			faults = faults.And(fields.Faultf(field+".percent", "%d is not a percentage", percent))
		}
		if d.HttpDelayType == nil {
			faults = faults.And(fields.Faultf(field+".fixedDelay", "is missing"))
		}
		faults = fields.AllFaults(faults, fields.PercentageFault(field+".percentage", d.Percentage), fields.TimeFault(field+".fixedDelay", d.GetFixedDelay(), time.Millisecond))
	}
	if a := f.Abort; a != nil {
		field := field + ".abort"
		switch t := a.ErrorType.(type) {
		case nil:
			faults = faults.And(fields.Faultf(field, "has neither httpStatus nor grpcStatus"))
		case *networkingv1alpha3.HTTPFaultInjection_Abort_HttpStatus:
			if t.HttpStatus < 200 || t.HttpStatus > 599 {
				faults = faults.And(fields.Faultf(field+".httpStatus", "%d is not a status from 200 to 599", t.HttpStatus))
			}
		case *networkingv1alpha3.HTTPFaultInjection_Abort_GrpcStatus:
			if new(codes.Code).UnmarshalJSON([]byte(strconv.Quote(t.GrpcStatus))) != nil {
				faults = faults.And(fields.Faultf(field+".grpcStatus", "%q is not a status of gRPC, such as UNAVAILABLE", t.GrpcStatus))
			}
		}
		faults = faults.And(fields.PercentageFault(field+".percentage", a.Percentage))
	}
	return faults
}

func mirrorsFault(field string, r *networkingv1alpha3.HTTPRoute) *fields.Error {
	var faults *fields.Error
	if r.Mirror != nil {
		faults = faults.And(destinationFault(field+".mirror", r.Mirror))
	}
	if p := r.GetMirrorPercent().GetValue(); p > 100 { //nolint:staticcheck // the older field
		faults = faults.And(fields.Faultf(field+".mirrorPercent", "%d is not a percentage", p))
	}
	if len(r.Mirrors) > maxRouteParts {
		return faults.And(fields.Faultf(field+".mirrors", "has %d entries, at most %d are accepted", len(r.Mirrors), maxRouteParts))
	}
	faults = faults.And(fields.PercentageFault(field+".mirrorPercentage", r.MirrorPercentage))
	return faults.And(fields.Each(field+".mirrors", r.Mirrors, func(field string, m *networkingv1alpha3.HTTPMirrorPolicy) *fields.Error {
		return fields.AllFaults(destinationFault(field+".destination", m.Destination), fields.PercentageFault(field+".percentage", m.Percentage))
	}))
}

func corsFault(field string, c *networkingv1alpha3.CorsPolicy) *fields.Error {
	if c == nil {
		return nil
	}
	var faults *fields.Error
	origins := c.GetAllowOrigin() //nolint:staticcheck // the older field
	if n := len(origins) + len(c.AllowOrigins) + len(c.AllowMethods) + len(c.AllowHeaders) + len(c.ExposeHeaders); n > maxRouteParts {
		return fields.Faultf(field, "has %d entries, at most %d are accepted", n, maxRouteParts)
	}
	for i, origin := range origins {
		faults = faults.And(fields.TextFault(fields.At(field+".allowOrigin", i), origin))
	}
	for i, origin := range c.AllowOrigins {
		at := fields.At(field+".allowOrigins", i)
		switch {
		case origin.GetMatchType() == nil:
			faults = faults.And(fields.Faultf(at, "has none of exact, prefix and regex"))
		case origin.GetRegex() == "*":
			faults = faults.And(fields.RegexFault(at+".regex", "*"))
		default:
			faults = faults.And(stringMatchFault(at, origin))
		}
	}
	for _, list := range []struct {
		name  string
		items []string
	}{{"allowMethods", c.AllowMethods}, {"allowHeaders", c.AllowHeaders}, {"exposeHeaders", c.ExposeHeaders}} {
		for i, item := range list.items {
			if !fields.IsHeaderName(item) {
				faults = faults.And(fields.Faultf(fields.At(field+"."+list.name, i), "%q is neither a name nor *", item))
			}
		}
	}
	return faults.And(fields.TimeFault(field+".maxAge", c.MaxAge, 0))
}

// HTTPRouteFields describes the fields of HTTP routes that work in part or not at all.
var HTTPRouteFields = []fields.Field{
	{Path: "http", Support: fields.Partly, Meaning: "all fields except `fault.delay.exponentialDelay` and `fault.abort.http2Error`; routes also apply to services whose protocol Envoy detects"},
	{Path: "http.fault", Support: fields.Partly, Meaning: "`delay` and `abort`"},
	{Path: "http.fault.delay", Support: fields.Partly, Meaning: "all fields except `exponentialDelay`"},
	{Path: "http.fault.delay.exponentialDelay", Support: fields.NoEffect, Meaning: "as with Istio; use `fixedDelay`"},
	{Path: "http.fault.abort", Support: fields.Partly, Meaning: "`httpStatus`, `grpcStatus` and `percentage`"},
	{Path: "http.fault.abort.http2Error", Support: fields.NoEffect, Meaning: "as with Istio; use `httpStatus` or `grpcStatus`"},
}

// Bounds of a VirtualService. Each host gets all routes, so their product counts, too.
const (
	MaxHosts       = 1000
	MaxRoutes      = 5000 // one for each match
	maxHostRoutes  = 100_000
	maxRouteParts  = 500 // destinations, mirrors, conditions and header operations of a route
	maxSubnets     = 1000
	maxTotalWeight = 1<<32 - 1
)
