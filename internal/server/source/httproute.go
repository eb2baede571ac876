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
func isHeaderName(s string) bool { return mesh.IsHeaderName(s) }

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

// timeFault checks a time that may be missing.
func timeFault(field string, d *durationpb.Duration, least time.Duration) *FieldError {
	if d != nil && (d.CheckValid() != nil || d.AsDuration() > maxRouteTime) {
		return faultf(field, "is longer than %v", maxRouteTime)
	}
	return durationFault(field, d, least)
}

func headersFault(field string, h *networkingv1alpha3.Headers) *FieldError {
	var faults *FieldError
	for _, of := range []struct {
		name string
		ops  *networkingv1alpha3.Headers_HeaderOperations
	}{{"request", h.GetRequest()}, {"response", h.GetResponse()}} {
		field := field + "." + of.name
		if n := len(of.ops.GetSet()) + len(of.ops.GetAdd()) + len(of.ops.GetRemove()); n > maxRouteParts {
			faults = faults.and(faultf(field, "has %d operations, at most %d are accepted", n, maxRouteParts))
			continue
		}
		faults = allFaults(faults, headerValuesFault(field+".set", of.ops.GetSet()), headerValuesFault(field+".add", of.ops.GetAdd()))
		for i, name := range of.ops.GetRemove() {
			if !isHeaderName(name) || strings.EqualFold(name, "host") {
				faults = faults.and(faultf(at(field+".remove", i), "%q is not the name of a header that can be removed", name))
			}
		}
	}
	return faults
}

// headerValuesFault checks headers to set or to add. Istio's :authority replaces the host
// of requests.
func headerValuesFault(field string, headers map[string]string) *FieldError {
	var faults *FieldError
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		field := field + "[" + name + "]"
		if !isHeaderName(name) && !strings.EqualFold(name, ":authority") {
			faults = faults.and(faultf(field, "%q is not the name of a header", name))
		}
		faults = faults.and(textFault(field, headers[name]))
		if err := checkTextFormat(headers[name]); err != nil {
			faults = faults.and(faultf(field, "%w; write %%%% for a percent sign", err))
		}
		for _, variable := range environmentOperator.FindAllStringSubmatch(headers[name], -1) {
			if !slices.Contains(publicVariables, variable[1]) {
				faults = faults.and(faultf(field, "the environment variable %s may hold a secret of another workload's proxy: only %s can be sent",
					variable[1], strings.Join(publicVariables, ", ")))
			}
		}
	}
	return faults
}

// hostRewrites returns the fields of a route that replace the host of its requests. The first is
// the one that counts.
func hostRewrites(r *networkingv1alpha3.HTTPRoute) []string {
	var out []string
	if r.GetRewrite().GetAuthority() != "" {
		out = append(out, ".rewrite.authority")
	}
	add := func(field string, headers map[string]string) {
		for _, name := range slices.Sorted(maps.Keys(headers)) {
			if strings.EqualFold(name, ":authority") || strings.EqualFold(name, "host") {
				out = append(out, field+"["+name+"]")
			}
		}
	}
	add(".headers.request.set", r.GetHeaders().GetRequest().GetSet())
	add(".headers.request.add", r.GetHeaders().GetRequest().GetAdd())
	if len(r.GetRoute()) == 1 { // of several destinations each has its own
		of := r.GetRoute()[0].GetHeaders().GetRequest()
		add(".route[0].headers.request.set", of.GetSet())
		add(".route[0].headers.request.add", of.GetAdd())
	}
	return out
}

// environmentOperator matches the operators that read an environment variable, beside a percent
// sign that stands for itself, too.
var environmentOperator = regexp.MustCompile(`%ENVIRONMENT\(([^)]*)\)`)

// publicVariables tell what others may know of a proxy. Routes of a namespace work in the proxies of
// its clients and in shared gateways, whose environment is not its own.
var publicVariables = []string{
	"HOSTNAME", "POD_NAME", "POD_NAMESPACE", "INSTANCE_IP", "HOST_IP", "SERVICE_ACCOUNT",
	"ISTIO_META_CLUSTER_ID", "ISTIO_META_MESH_ID", "ISTIO_META_NETWORK", "ISTIO_META_OWNER", "ISTIO_META_WORKLOAD_NAME",
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

func percentageFault(field string, p *networkingv1alpha3.Percent) *FieldError {
	if v := p.GetValue(); v < 0 || v > 100 || math.IsNaN(v) {
		return faultf(field, "%v is not a percentage", v)
	}
	return nil
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
