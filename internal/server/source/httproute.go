package source

import (
	"maps"
	"math"
	"net/http"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Bounds of the parts of an HTTP route.
const (
	maxRegex     = 4 << 10
	maxRegexSize = 32_000  // instructions; the bootstrap of the agent allows 32768
	maxBody      = 1 << 20 // of a direct response; as in route configurations
	maxText      = 16 << 10
	maxRouteTime = 365 * 24 * time.Hour
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
		if isDelegate && r.Delegate != nil {
			return faultf(field+".delegate", "a VirtualService to which others delegate cannot delegate")
		}
		return firstFault(actionFault(field, r), checkMatches(field+".match", r, isDelegate), checkHTTPRoute(field, r))
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
	switch {
	case len(actions) == 0:
		return faultf(field, "has none of route, redirect, directResponse and delegate")
	case len(actions) > 1:
		return faultf(field+"."+actions[1], "does not go with %s: use one of them", actions[0])
	case r.Rewrite != nil && (r.Redirect != nil || r.DirectResponse != nil):
		return faultf(field+".rewrite", "does not go with %s", actions[0])
	case r.Fault != nil && (r.Redirect != nil || r.DirectResponse != nil):
		return faultf(field+".fault", "does not go with %s", actions[0])
	case r.Mirror != nil && len(r.Mirrors) > 0:
		return faultf(field+".mirrors", "does not go with mirror: use one of them")
	case r.Delegate != nil && !mesh.IsDNSName(r.Delegate.Name):
		return faultf(field+".delegate.name", "%q is not the name of a VirtualService", r.Delegate.Name)
	case r.Delegate.GetNamespace() != "" && !mesh.IsDNSLabel(r.Delegate.Namespace):
		return faultf(field+".delegate.namespace", "%q is not a namespace", r.Delegate.Namespace)
	}
	return nil
}

// checkMatches checks the matches of a route. isDelegate reports whether the route only
// completes routes of other VirtualServices.
func checkMatches(field string, r *networkingv1alpha3.HTTPRoute, isDelegate bool) *FieldError {
	return each(field, r.Match, func(field string, m *networkingv1alpha3.HTTPMatchRequest) *FieldError {
		if (isDelegate || r.Delegate != nil) && len(m.SourceLabels)+len(m.Gateways)+len(m.SourceNamespace) > 0 {
			return faultf(field, "has a condition on the client, which does not go with delegation")
		}
		if n := len(m.Headers) + len(m.WithoutHeaders) + len(m.QueryParams); n > maxRouteParts {
			return faultf(field, "has %d conditions, at most %d are accepted", n, maxRouteParts)
		}
		if m.Uri.GetMatchType() != nil {
			switch u := m.Uri.MatchType.(type) {
			case *networkingv1alpha3.StringMatch_Exact:
				if u.Exact == "" {
					return faultf(field+".uri.exact", "is empty")
				}
			case *networkingv1alpha3.StringMatch_Regex:
				if u.Regex == "*" {
					return regexFault(field+".uri.regex", u.Regex)
				}
			}
			if r.Redirect.GetPrefixRewrite() != "" && m.Uri.GetPrefix() == "" {
				return faultf(field+".uri", "is not a prefix, which prefixRewrite of the redirect needs")
			}
		}
		return firstFault(
			stringMatchFault(field+".uri", m.Uri),
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

func headerMatchesFault(field string, matches map[string]*networkingv1alpha3.StringMatch) *FieldError {
	for _, name := range slices.Sorted(maps.Keys(matches)) {
		claim, isClaim := snapshot.ClaimPath(name)
		switch {
		case isClaim && claim == nil:
			return faultf(field+"["+name+"]", "does not name a claim: write @request.auth.claims.NAME or @request.auth.claims[NAME]")
		case !isClaim && !isHeaderName(strings.TrimPrefix(name, ":")):
			return faultf(field+"["+name+"]", "%q is not the name of a header", name)
		}
		if fault := stringMatchFault(field+"["+name+"]", matches[name]); fault != nil {
			return fault
		}
	}
	return nil
}

func queryMatchesFault(field string, matches map[string]*networkingv1alpha3.StringMatch) *FieldError {
	const maxName = 1024 // Envoy accepts no more
	for _, name := range slices.Sorted(maps.Keys(matches)) {
		if name == "" || len(name) > maxName {
			return faultf(field+"["+name+"]", "has a name of %d bytes: want 1 to %d", len(name), maxName)
		}
		if fault := stringMatchFault(field+"["+name+"]", matches[name]); fault != nil {
			return fault
		}
	}
	return nil
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

// textFault checks a text that becomes part of a request, a response or a condition.
func textFault(field, text string) *FieldError {
	switch {
	case len(text) > maxText:
		return faultf(field, "has %d bytes, at most %d are accepted", len(text), maxText)
	case strings.ContainsAny(text, "\x00\r\n"):
		return faultf(field, "contains a line break or a zero byte")
	}
	return nil
}

// regexFault checks a regular expression, which Envoy compiles with RE2.
func regexFault(field, text string) *FieldError {
	if text == "" {
		return faultf(field, "is empty")
	}
	if len(text) > maxRegex {
		return faultf(field, "has %d bytes, at most %d are accepted", len(text), maxRegex)
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return faultf(field, "%q is not a regular expression of RE2: %w", text, err)
	}
	for _, escape := range regexEscape.FindAllStringSubmatch(text, -1) {
		if escape[1] != "" {
			return faultf(field, "%s is no byte, and Envoy matches bytes: write the character itself", escape[0])
		}
	}
	if regexSize(tree) > maxRegexSize {
		return faultf(field, "is too large a regular expression: its repetitions need more than %d instructions", maxRegexSize)
	}
	return nil
}

// regexEscape matches an escape sequence. Its group matches a number above 255.
var regexEscape = regexp.MustCompile(`(?s)\\(?:(x\{0*[1-9A-Fa-f][0-9A-Fa-f]{2,}\}|[4-7][0-7]{2})|.)`)

// regexSize returns the number of RE2's instructions for an expression, or more. It stops
// counting above maxRegexSize.
func regexSize(re *syntax.Regexp) int {
	n := 2
	switch re.Op {
	case syntax.OpLiteral, syntax.OpCharClass: // ranges of runes take several instructions, as RE2 matches bytes
		n += len(re.Rune)
	}
	for _, sub := range re.Sub {
		n = min(n+regexSize(sub), maxRegexSize+1)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, maxRegexSize+1)
}

// isHeaderName reports whether s is the name of an HTTP header.
func isHeaderName(s string) bool { return len(s) <= 256 && httpguts.ValidHeaderFieldName(s) }

func checkHTTPRoute(field string, r *networkingv1alpha3.HTTPRoute) *FieldError {
	weights := make([]int32, 0, len(r.Route))
	if fault := each(field+".route", r.Route, func(field string, d *networkingv1alpha3.HTTPRouteDestination) *FieldError {
		weights = append(weights, d.Weight)
		return firstFault(destinationFault(field+".destination", d.Destination), headersFault(field+".headers", d.Headers))
	}); fault != nil {
		return fault
	}
	return firstFault(
		textFault(field+".name", r.Name),
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

// timeFault checks a time that may be missing.
func timeFault(field string, d *durationpb.Duration, least time.Duration) *FieldError {
	if d != nil && (d.CheckValid() != nil || d.AsDuration() > maxRouteTime) {
		return faultf(field, "is longer than %v", maxRouteTime)
	}
	return durationFault(field, d, least)
}

func headersFault(field string, h *networkingv1alpha3.Headers) *FieldError {
	for _, of := range []struct {
		name string
		ops  *networkingv1alpha3.Headers_HeaderOperations
	}{{"request", h.GetRequest()}, {"response", h.GetResponse()}} {
		field := field + "." + of.name
		if n := len(of.ops.GetSet()) + len(of.ops.GetAdd()) + len(of.ops.GetRemove()); n > maxRouteParts {
			return faultf(field, "has %d operations, at most %d are accepted", n, maxRouteParts)
		}
		if fault := firstFault(headerValuesFault(field+".set", of.ops.GetSet()), headerValuesFault(field+".add", of.ops.GetAdd())); fault != nil {
			return fault
		}
		for i, name := range of.ops.GetRemove() {
			if !isHeaderName(name) || strings.EqualFold(name, "host") {
				return faultf(at(field+".remove", i), "%q is not the name of a header that can be removed", name)
			}
		}
	}
	return nil
}

// headerValuesFault checks headers to set or to add. Istio's :authority replaces the host
// of requests.
func headerValuesFault(field string, headers map[string]string) *FieldError {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		field := field + "[" + name + "]"
		if !isHeaderName(name) && !strings.EqualFold(name, ":authority") {
			return faultf(field, "%q is not the name of a header", name)
		}
		if fault := textFault(field, headers[name]); fault != nil {
			return fault
		}
		if err := checkTextFormat(headers[name]); err != nil {
			return faultf(field, "%w; write %%%% for a percent sign", err)
		}
	}
	return nil
}

func redirectFault(field string, r *networkingv1alpha3.HTTPRedirect) *FieldError {
	if r == nil {
		return nil
	}
	port, fixed := r.RedirectPort.(*networkingv1alpha3.HTTPRedirect_Port)
	switch {
	case r.Uri == "" && r.Authority == "" && r.Scheme == "" && r.RedirectPort == nil && r.PrefixRewrite == "":
		return faultf(field, "has none of uri, prefixRewrite, authority, scheme and port")
	case r.Uri != "" && r.PrefixRewrite != "":
		return faultf(field+".prefixRewrite", "does not go with uri: use one of them")
	case fixed && !isPort(port.Port):
		return faultf(field+".port", "%d is not a port: want 1 to 65535", port.Port)
	case !slices.Contains([]uint32{0, http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect}, r.RedirectCode):
		return faultf(field+".redirectCode", "%d is none of 301, 302, 303, 307 and 308", r.RedirectCode)
	case r.Scheme != "" && r.Scheme != "http" && r.Scheme != "https":
		return faultf(field+".scheme", "%q is neither http nor https", r.Scheme)
	}
	return firstFault(textFault(field+".uri", r.Uri), textFault(field+".prefixRewrite", r.PrefixRewrite), textFault(field+".authority", r.Authority))
}

func directResponseFault(field string, r *networkingv1alpha3.HTTPDirectResponse) *FieldError {
	if r == nil {
		return nil
	}
	if r.Status < 200 || r.Status > 599 {
		return faultf(field+".status", "%d is not a status from 200 to 599", r.Status)
	}
	if n := max(len(r.Body.GetString_()), len(r.Body.GetBytes())); n > maxBody {
		return faultf(field+".body", "has %d bytes, at most %d are accepted", n, maxBody)
	}
	return nil
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
		if fault := firstFault(regexFault(field+".match", x.Match), textFault(field+".rewrite", x.Rewrite)); fault != nil {
			return fault
		}
		return substitutionFault(field+".rewrite", x.Rewrite, regexp.MustCompile(x.Match).NumSubexp())
	}
	if r.Uri == "" && r.Authority == "" {
		return faultf(field, "has none of uri, uriRegexRewrite and authority")
	}
	return firstFault(textFault(field+".uri", r.Uri), textFault(field+".authority", r.Authority))
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
	if r.GetAttempts() < 0 {
		return faultf(field+".attempts", "%d is negative", r.GetAttempts())
	}
	if r.GetAttempts() == 0 && (r.GetRetryOn() != "" || r.GetPerTryTimeout() != nil || r.GetBackoff() != nil) {
		return faultf(field+".attempts", "is 0, so that there are no retries, but other fields are set")
	}
	for condition := range strings.SplitSeq(r.GetRetryOn(), ",") {
		condition = strings.TrimSpace(condition)
		code, err := strconv.ParseUint(condition, 10, 16)
		if condition != "" && (err != nil || code < 100 || code > 599) && !slices.Contains(retryConditions, condition) {
			return faultf(field+".retryOn", "%q is neither a condition of Envoy nor a status", condition)
		}
	}
	return firstFault(timeFault(field+".perTryTimeout", r.GetPerTryTimeout(), time.Millisecond), timeFault(field+".backoff", r.GetBackoff(), time.Millisecond))
}

func faultsFault(field string, f *networkingv1alpha3.HTTPFaultInjection) *FieldError {
	if f == nil {
		return nil
	}
	if f.Delay == nil && f.Abort == nil {
		return faultf(field, "has neither delay nor abort")
	}
	if d := f.Delay; d != nil {
		field := field + ".delay"
		percent := d.GetPercent() //nolint:staticcheck // the older field
		if percent < 0 || percent > 100 {
			return faultf(field+".percent", "%d is not a percentage", percent)
		}
		if d.HttpDelayType == nil {
			return faultf(field+".fixedDelay", "is missing")
		}
		if fault := firstFault(percentageFault(field+".percentage", d.Percentage), timeFault(field+".fixedDelay", d.GetFixedDelay(), time.Millisecond)); fault != nil {
			return fault
		}
	}
	if a := f.Abort; a != nil {
		field := field + ".abort"
		switch t := a.ErrorType.(type) {
		case nil:
			return faultf(field, "has neither httpStatus nor grpcStatus")
		case *networkingv1alpha3.HTTPFaultInjection_Abort_HttpStatus:
			if t.HttpStatus < 200 || t.HttpStatus > 599 {
				return faultf(field+".httpStatus", "%d is not a status from 200 to 599", t.HttpStatus)
			}
		case *networkingv1alpha3.HTTPFaultInjection_Abort_GrpcStatus:
			if new(codes.Code).UnmarshalJSON([]byte(strconv.Quote(t.GrpcStatus))) != nil {
				return faultf(field+".grpcStatus", "%q is not a status of gRPC, such as UNAVAILABLE", t.GrpcStatus)
			}
		}
		return percentageFault(field+".percentage", a.Percentage)
	}
	return nil
}

func percentageFault(field string, p *networkingv1alpha3.Percent) *FieldError {
	if v := p.GetValue(); v < 0 || v > 100 || math.IsNaN(v) {
		return faultf(field, "%v is not a percentage", v)
	}
	return nil
}

func mirrorsFault(field string, r *networkingv1alpha3.HTTPRoute) *FieldError {
	if r.Mirror != nil {
		if fault := destinationFault(field+".mirror", r.Mirror); fault != nil {
			return fault
		}
	}
	if p := r.GetMirrorPercent().GetValue(); p > 100 { //nolint:staticcheck // the older field
		return faultf(field+".mirrorPercent", "%d is not a percentage", p)
	}
	if len(r.Mirrors) > maxRouteParts {
		return faultf(field+".mirrors", "has %d entries, at most %d are accepted", len(r.Mirrors), maxRouteParts)
	}
	if fault := percentageFault(field+".mirrorPercentage", r.MirrorPercentage); fault != nil {
		return fault
	}
	return each(field+".mirrors", r.Mirrors, func(field string, m *networkingv1alpha3.HTTPMirrorPolicy) *FieldError {
		return firstFault(destinationFault(field+".destination", m.Destination), percentageFault(field+".percentage", m.Percentage))
	})
}

func corsFault(field string, c *networkingv1alpha3.CorsPolicy) *FieldError {
	if c == nil {
		return nil
	}
	origins := c.GetAllowOrigin() //nolint:staticcheck // the older field
	if n := len(origins) + len(c.AllowOrigins) + len(c.AllowMethods) + len(c.AllowHeaders) + len(c.ExposeHeaders); n > maxRouteParts {
		return faultf(field, "has %d entries, at most %d are accepted", n, maxRouteParts)
	}
	for i, origin := range origins {
		if fault := textFault(at(field+".allowOrigin", i), origin); fault != nil {
			return fault
		}
	}
	for i, origin := range c.AllowOrigins {
		at := at(field+".allowOrigins", i)
		if origin.GetMatchType() == nil {
			return faultf(at, "has none of exact, prefix and regex")
		}
		if origin.GetRegex() == "*" {
			return regexFault(at+".regex", "*")
		}
		if fault := stringMatchFault(at, origin); fault != nil {
			return fault
		}
	}
	for _, list := range []struct {
		name  string
		items []string
	}{{"allowMethods", c.AllowMethods}, {"allowHeaders", c.AllowHeaders}, {"exposeHeaders", c.ExposeHeaders}} {
		for i, item := range list.items {
			if !isHeaderName(item) {
				return faultf(at(field+"."+list.name, i), "%q is neither a name nor *", item)
			}
		}
	}
	return timeFault(field+".maxAge", c.MaxAge, 0)
}

var httpRouteFields = []apiField{
	{Path: "http", Support: Partly, Meaning: "all fields except the two below; routes also apply to services whose protocol Envoy detects"},
	{Path: "http.fault", Support: Partly, Meaning: "`delay` and `abort`"},
	{Path: "http.fault.delay", Support: Partly, Meaning: "`fixedDelay` and `percentage`"},
	{Path: "http.fault.delay.exponentialDelay", Support: NoEffect, Meaning: "as with Istio; use `fixedDelay`"},
	{Path: "http.fault.abort", Support: Partly, Meaning: "`httpStatus`, `grpcStatus` and `percentage`"},
	{Path: "http.fault.abort.http2Error", Support: NoEffect, Meaning: "as with Istio; use `httpStatus` or `grpcStatus`"},
}
