package source

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
)

// Bounds of the parts of an HTTP route.
const (
	maxBody = 1 << 20 // of a direct response; as in route configurations
)

// checkHTTPRoutes checks the routes of a VirtualService with a number of hosts. isDelegate
// reports whether they only complete the routes of other VirtualServices.
func checkHTTPRoutes(routes []*networkingv1alpha3.HTTPRoute, hosts int, isDelegate bool) *FieldError {
	n := 0
	for _, r := range routes {
		n += max(len(r.GetMatch()), 1)
	}
	if n > maxRoutes || n*max(hosts, 1) > maxHostRoutes {
		return faultf("http", "has %d routes for %d hosts: at most %d, and %d for all hosts together, are accepted", n, hosts, maxRoutes, maxHostRoutes)
	}
	return each("http", routes, func(field string, r *networkingv1alpha3.HTTPRoute) *FieldError {
		var faults *FieldError
		if isDelegate && r.Delegate != nil {
			faults = faultf(field+".delegate", "a VirtualService to which others delegate cannot delegate")
		}
		return allFaults(faults, actionFault(field, r), checkMatches(field+".match", r), checkHTTPRoute(field, r))
	})
}

// actionFault checks that the parts of a route go together.
func actionFault(field string, r *networkingv1alpha3.HTTPRoute) *FieldError {
	var actions []string
	for _, a := range []struct {
		name string
		set  bool
	}{{"route", len(r.Route) > 0}, {"redirect", r.Redirect != nil}, {"directResponse", r.DirectResponse != nil}, {"delegate", r.Delegate != nil}} {
		if a.set {
			actions = append(actions, a.name)
		}
	}
	var faults *FieldError
	switch {
	case len(actions) == 0:
		faults = faultf(field, "has none of route, redirect, directResponse and delegate")
	case len(actions) > 1:
		faults = faultf(field+"."+actions[1], "does not go with %s: use one of them", actions[0])
	case r.Redirect != nil || r.DirectResponse != nil:
		if r.Rewrite != nil {
			faults = faults.and(faultf(field+".rewrite", "does not go with %s", actions[0]))
		}
		if r.Fault != nil {
			faults = faults.and(faultf(field+".fault", "does not go with %s", actions[0]))
		}
	}
	if r.Mirror != nil && len(r.Mirrors) > 0 {
		faults = faults.and(faultf(field+".mirrors", "does not go with mirror: use one of them"))
	}
	if r.Delegate != nil && !mesh.IsDNSName(r.Delegate.Name) {
		faults = faults.and(faultf(field+".delegate.name", "%q is not the name of a VirtualService", r.Delegate.Name))
	}
	if r.Delegate.GetNamespace() != "" && !mesh.IsDNSLabel(r.Delegate.Namespace) {
		faults = faults.and(faultf(field+".delegate.namespace", "%q is not a namespace", r.Delegate.Namespace))
	}
	return faults
}

// checkMatches checks the matches of a route.
func checkMatches(field string, r *networkingv1alpha3.HTTPRoute) *FieldError {
	return each(field, r.Match, func(field string, m *networkingv1alpha3.HTTPMatchRequest) *FieldError {
		if n := len(m.Headers) + len(m.WithoutHeaders) + len(m.QueryParams); n > maxRouteParts {
			return faultf(field, "has %d conditions, at most %d are accepted", n, maxRouteParts)
		}
		return allFaults(
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
func uriMatchFault(field string, m *networkingv1alpha3.StringMatch, wantPrefix bool) *FieldError {
	switch u := m.GetMatchType().(type) {
	case nil:
		return nil
	case *networkingv1alpha3.StringMatch_Exact:
		if u.Exact == "" {
			return faultf(field+".exact", "is empty")
		}
	case *networkingv1alpha3.StringMatch_Regex:
		if u.Regex == "*" {
			return regexFault(field+".regex", u.Regex)
		}
	}
	if wantPrefix && m.GetPrefix() == "" {
		return faultf(field, "is not a prefix, which prefixRewrite of the redirect needs")
	}
	return stringMatchFault(field, m)
}

func headerMatchesFault(field string, matches map[string]*networkingv1alpha3.StringMatch) *FieldError {
	var faults *FieldError
	for _, name := range slices.Sorted(maps.Keys(matches)) {
		claim, isClaim := snapshot.ClaimPath(name)
		switch {
		case isClaim && claim == nil:
			faults = faults.and(faultf(field+"["+name+"]", "does not name a claim: write @request.auth.claims.NAME or @request.auth.claims[NAME]"))
		case !isClaim && !isHeaderName(strings.TrimPrefix(name, ":")):
			faults = faults.and(faultf(field+"["+name+"]", "%q is not the name of a header", name))
		}
		faults = faults.and(stringMatchFault(field+"["+name+"]", matches[name]))
	}
	return faults
}

func queryMatchesFault(field string, matches map[string]*networkingv1alpha3.StringMatch) *FieldError {
	var faults *FieldError
	const maxName = 1024 // Envoy accepts no more
	for _, name := range slices.Sorted(maps.Keys(matches)) {
		if name == "" || len(name) > maxName {
			faults = faults.and(faultf(field+"["+name+"]", "has a name of %d bytes: want 1 to %d", len(name), maxName))
		}
		faults = faults.and(stringMatchFault(field+"["+name+"]", matches[name]))
	}
	return faults
}

// stringMatchFault checks a condition on a text. The regular expression "*" is Istio's
// word for any text.
func stringMatchFault(field string, m *networkingv1alpha3.StringMatch) *FieldError {
	switch t := m.GetMatchType().(type) {
	case *networkingv1alpha3.StringMatch_Exact:
		return textFault(field+".exact", t.Exact)
	case *networkingv1alpha3.StringMatch_Prefix:
		if t.Prefix == "" {
			return faultf(field+".prefix", "is empty")
		}
		return textFault(field+".prefix", t.Prefix)
	case *networkingv1alpha3.StringMatch_Regex:
		if t.Regex == "*" {
			return nil
		}
		return regexFault(field+".regex", t.Regex)
	}
	return nil
}

func checkHTTPRoute(field string, r *networkingv1alpha3.HTTPRoute) *FieldError {
	weights := make([]int32, 0, len(r.Route))
	destinations := each(field+".route", r.Route, func(field string, d *networkingv1alpha3.HTTPRouteDestination) *FieldError {
		weights = append(weights, d.Weight)
		return allFaults(destinationFault(field+".destination", d.Destination), headersFault(field+".headers", d.Headers))
	})
	return allFaults(
		textFault(field+".name", r.Name),
		destinations,
		weightsFault(field+".route", weights),
		redirectFault(field+".redirect", r.Redirect),
		directResponseFault(field+".directResponse", r.DirectResponse),
		rewriteFault(field+".rewrite", r.Rewrite),
		timeFault(field+".timeout", r.Timeout, 0),
		retriesFault(field+".retries", r.Retries),
		faultsFault(field+".fault", r.Fault),
		mirrorsFault(field, r),
		corsFault(field+".corsPolicy", r.CorsPolicy),
		headersFault(field+".headers", r.Headers),
	)
}

func redirectFault(field string, r *networkingv1alpha3.HTTPRedirect) *FieldError {
	if r == nil {
		return nil
	}
	var faults *FieldError
	switch {
	case r.Uri == "" && r.Authority == "" && r.Scheme == "" && r.RedirectPort == nil && r.PrefixRewrite == "":
		faults = faults.and(faultf(field, "has none of uri, prefixRewrite, authority, scheme and port"))
	case r.Uri != "" && r.PrefixRewrite != "":
		faults = faults.and(faultf(field+".prefixRewrite", "does not go with uri: use one of them"))
	}
	if port, fixed := r.RedirectPort.(*networkingv1alpha3.HTTPRedirect_Port); fixed && !isPort(port.Port) {
		faults = faults.and(faultf(field+".port", "%d is not a port: want 1 to 65535", port.Port))
	}
	if !slices.Contains([]uint32{0, http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect}, r.RedirectCode) {
		faults = faults.and(faultf(field+".redirectCode", "%d is none of 301, 302, 303, 307 and 308", r.RedirectCode))
	}
	if r.Scheme != "" && r.Scheme != "http" && r.Scheme != "https" {
		faults = faults.and(faultf(field+".scheme", "%q is neither http nor https", r.Scheme))
	}
	return allFaults(faults, textFault(field+".uri", r.Uri), textFault(field+".prefixRewrite", r.PrefixRewrite), textFault(field+".authority", r.Authority))
}

func directResponseFault(field string, r *networkingv1alpha3.HTTPDirectResponse) *FieldError {
	if r == nil {
		return nil
	}
	var faults *FieldError
	if r.Status < 200 || r.Status > 599 {
		faults = faults.and(faultf(field+".status", "%d is not a status from 200 to 599", r.Status))
	}
	if n := max(len(r.Body.GetString_()), len(r.Body.GetBytes())); n > maxBody {
		faults = faults.and(faultf(field+".body", "has %d bytes, at most %d are accepted", n, maxBody))
	}
	return faults
}

func rewriteFault(field string, r *networkingv1alpha3.HTTPRewrite) *FieldError {
	if r == nil {
		return nil
	}
	if x := r.UriRegexRewrite; x != nil {
		field := field + ".uriRegexRewrite"
		if r.Uri != "" {
			return faultf(field, "does not go with uri: use one of them")
		}
		if fault := allFaults(regexFault(field+".match", x.Match), textFault(field+".rewrite", x.Rewrite)); fault != nil {
			return fault
		}
		return substitutionFault(field+".rewrite", x.Rewrite, regexp.MustCompile(x.Match).NumSubexp())
	}
	if r.Uri == "" && r.Authority == "" {
		return faultf(field, "has none of uri, uriRegexRewrite and authority")
	}
	return allFaults(textFault(field+".uri", r.Uri), textFault(field+".authority", r.Authority))
}

// substitutionFault checks the replacement for what a regular expression with some groups
// matches. A backslash stands before the number of a group, or before a backslash.
func substitutionFault(field, text string, groups int) *FieldError {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		i++
		if i == len(text) || text[i] != '\\' && (text[i] < '0' || int(text[i]-'0') > groups || text[i] > '9') {
			return faultf(field, "%q has a backslash that is not before one of the groups 0 to %d, nor before a backslash", text, min(groups, 9))
		}
	}
	return nil
}

// retryConditions are the conditions of Envoy after which requests can be repeated.
var retryConditions = strings.Fields(`5xx gateway-error reset reset-before-request connect-failure envoy-ratelimited
	retriable-4xx refused-stream retriable-status-codes retriable-headers http3-post-connect-failure
	cancelled deadline-exceeded internal resource-exhausted unavailable`)

func retriesFault(field string, r *networkingv1alpha3.HTTPRetry) *FieldError {
	var faults *FieldError
	if r.GetAttempts() < 0 {
		faults = faults.and(faultf(field+".attempts", "%d is negative", r.GetAttempts()))
	}
	if r.GetAttempts() == 0 && (r.GetRetryOn() != "" || r.GetPerTryTimeout() != nil || r.GetBackoff() != nil) {
		faults = faults.and(faultf(field+".attempts", "is 0, so that there are no retries, but other fields are set"))
	}
	for condition := range strings.SplitSeq(r.GetRetryOn(), ",") {
		condition = strings.TrimSpace(condition)
		code, err := strconv.ParseUint(condition, 10, 16)
		if condition != "" && (err != nil || code < 100 || code > 599) && !slices.Contains(retryConditions, condition) {
			faults = faults.and(faultf(field+".retryOn", "%q is neither a condition of Envoy nor a status", condition))
		}
	}
	return allFaults(faults, timeFault(field+".perTryTimeout", r.GetPerTryTimeout(), time.Millisecond), timeFault(field+".backoff", r.GetBackoff(), time.Millisecond))
}

func faultsFault(field string, f *networkingv1alpha3.HTTPFaultInjection) *FieldError {
	if f == nil {
		return nil
	}
	var faults *FieldError
	if f.Delay == nil && f.Abort == nil {
		return faultf(field, "has neither delay nor abort")
	}
	if d := f.Delay; d != nil {
		field := field + ".delay"
		percent := d.GetPercent() //nolint:staticcheck // the older field
		if percent < 0 || percent > 100 {
			faults = faults.and(faultf(field+".percent", "%d is not a percentage", percent))
		}
		if d.HttpDelayType == nil {
			faults = faults.and(faultf(field+".fixedDelay", "is missing"))
		}
		faults = allFaults(faults, percentageFault(field+".percentage", d.Percentage), timeFault(field+".fixedDelay", d.GetFixedDelay(), time.Millisecond))
	}
	if a := f.Abort; a != nil {
		field := field + ".abort"
		switch t := a.ErrorType.(type) {
		case nil:
			faults = faults.and(faultf(field, "has neither httpStatus nor grpcStatus"))
		case *networkingv1alpha3.HTTPFaultInjection_Abort_HttpStatus:
			if t.HttpStatus < 200 || t.HttpStatus > 599 {
				faults = faults.and(faultf(field+".httpStatus", "%d is not a status from 200 to 599", t.HttpStatus))
			}
		case *networkingv1alpha3.HTTPFaultInjection_Abort_GrpcStatus:
			if new(codes.Code).UnmarshalJSON([]byte(strconv.Quote(t.GrpcStatus))) != nil {
				faults = faults.and(faultf(field+".grpcStatus", "%q is not a status of gRPC, such as UNAVAILABLE", t.GrpcStatus))
			}
		}
		faults = faults.and(percentageFault(field+".percentage", a.Percentage))
	}
	return faults
}

func mirrorsFault(field string, r *networkingv1alpha3.HTTPRoute) *FieldError {
	var faults *FieldError
	if r.Mirror != nil {
		faults = faults.and(destinationFault(field+".mirror", r.Mirror))
	}
	if p := r.GetMirrorPercent().GetValue(); p > 100 { //nolint:staticcheck // the older field
		faults = faults.and(faultf(field+".mirrorPercent", "%d is not a percentage", p))
	}
	if len(r.Mirrors) > maxRouteParts {
		return faults.and(faultf(field+".mirrors", "has %d entries, at most %d are accepted", len(r.Mirrors), maxRouteParts))
	}
	faults = faults.and(percentageFault(field+".mirrorPercentage", r.MirrorPercentage))
	return faults.and(each(field+".mirrors", r.Mirrors, func(field string, m *networkingv1alpha3.HTTPMirrorPolicy) *FieldError {
		return allFaults(destinationFault(field+".destination", m.Destination), percentageFault(field+".percentage", m.Percentage))
	}))
}

func corsFault(field string, c *networkingv1alpha3.CorsPolicy) *FieldError {
	if c == nil {
		return nil
	}
	var faults *FieldError
	origins := c.GetAllowOrigin() //nolint:staticcheck // the older field
	if n := len(origins) + len(c.AllowOrigins) + len(c.AllowMethods) + len(c.AllowHeaders) + len(c.ExposeHeaders); n > maxRouteParts {
		return faultf(field, "has %d entries, at most %d are accepted", n, maxRouteParts)
	}
	for i, origin := range origins {
		faults = faults.and(textFault(at(field+".allowOrigin", i), origin))
	}
	for i, origin := range c.AllowOrigins {
		at := at(field+".allowOrigins", i)
		switch {
		case origin.GetMatchType() == nil:
			faults = faults.and(faultf(at, "has none of exact, prefix and regex"))
		case origin.GetRegex() == "*":
			faults = faults.and(regexFault(at+".regex", "*"))
		default:
			faults = faults.and(stringMatchFault(at, origin))
		}
	}
	for _, list := range []struct {
		name  string
		items []string
	}{{"allowMethods", c.AllowMethods}, {"allowHeaders", c.AllowHeaders}, {"exposeHeaders", c.ExposeHeaders}} {
		for i, item := range list.items {
			if !isHeaderName(item) {
				faults = faults.and(faultf(at(field+"."+list.name, i), "%q is neither a name nor *", item))
			}
		}
	}
	return faults.and(timeFault(field+".maxAge", c.MaxAge, 0))
}

var httpRouteFields = []apiField{
	{Path: "http", Support: Partly, Meaning: "all fields except `fault.delay.exponentialDelay` and `fault.abort.http2Error`; routes also apply to services whose protocol Envoy detects"},
	{Path: "http.fault", Support: Partly, Meaning: "`delay` and `abort`"},
	{Path: "http.fault.delay", Support: Partly, Meaning: "all fields except `exponentialDelay`"},
	{Path: "http.fault.delay.exponentialDelay", Support: NoEffect, Meaning: "as with Istio; use `fixedDelay`"},
	{Path: "http.fault.abort", Support: Partly, Meaning: "`httpStatus`, `grpcStatus` and `percentage`"},
	{Path: "http.fault.abort.http2Error", Support: NoEffect, Meaning: "as with Istio; use `httpStatus` or `grpcStatus`"},
}

// Bounds of a VirtualService. Each host gets all routes, so their product counts, too.
const (
	maxRouteHosts  = 1000
	maxRoutes      = 5000 // one for each match
	maxHostRoutes  = 100_000
	maxRouteParts  = 500 // destinations, mirrors, conditions and header operations of a route
	maxSubnets     = 1000
	maxTotalWeight = 1<<32 - 1
)
