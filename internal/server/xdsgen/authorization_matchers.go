package xdsgen

import (
	"net/netip"
	"regexp"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// A value of a rule is exact, a prefix with * at its end, a suffix with * at its start, or *
// for any value but an empty one. Everything else in it stands for itself. Regular expressions match whole
// values.

// valueMatcher returns the matcher of a value.
func valueMatcher(value string, ignoreCase bool) *matcherv3.StringMatcher {
	return prefixedMatcher("", value, ignoreCase)
}

// prefixedMatcher returns the matcher of a prefix and a value. Values that start with * match
// with any prefix.
func prefixedMatcher(prefix, value string, ignoreCase bool) *matcherv3.StringMatcher {
	m := &matcherv3.StringMatcher{IgnoreCase: ignoreCase}
	if suffix, ok := strings.CutPrefix(value, "*"); ok {
		if suffix == "" {
			return regexMatcher(".+")
		}
		m.MatchPattern = &matcherv3.StringMatcher_Suffix{Suffix: suffix}
	} else if start, ok := strings.CutSuffix(value, "*"); ok {
		m.MatchPattern = &matcherv3.StringMatcher_Prefix{Prefix: prefix + start}
	} else {
		m.MatchPattern = &matcherv3.StringMatcher_Exact{Exact: prefix + value}
	}
	return m
}

func regexMatcher(pattern string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: pattern}}}
}

// patternMatcher returns the matcher of a value whose fixed part has several forms.
func patternMatcher(value string, forms func(fixed string) (pattern string)) *matcherv3.StringMatcher {
	if suffix, ok := strings.CutPrefix(value, "*"); ok {
		if suffix == "" {
			return regexMatcher(".+")
		}
		return regexMatcher(".*" + forms(suffix))
	}
	if start, ok := strings.CutSuffix(value, "*"); ok {
		return regexMatcher(forms(start) + ".*")
	}
	return regexMatcher(forms(value))
}

// quoted returns a regular expression that matches exactly the text.
func quoted(text string) string { return regexp.QuoteMeta(text) }

// segmentPattern returns a regular expression for a value with wildcards anywhere, which do
// not match slashes.
func segmentPattern(value string) string {
	return strings.ReplaceAll(quoted(value), `\*`, "[^/]*")
}

// hostMatcher returns the matcher of a host. The case does not matter. To refuse, it also
// matches the host with a dot at its end, with any port unless the value has one, and behind
// the name of a user.
func hostMatcher(value string, refuses bool) *matcherv3.StringMatcher {
	if !refuses {
		return valueMatcher(value, true)
	}
	prefix := strings.HasSuffix(value, "*")
	return patternMatcher(value, func(fixed string) string {
		host, port := fixed, ""
		if i := strings.LastIndexByte(fixed, ':'); i > strings.LastIndexByte(fixed, ']') {
			host, port = fixed[:i], fixed[i:]
		}
		pattern := "(?i:" + quoted(strings.TrimSuffix(host, ".")) + ")"
		if !strings.HasPrefix(value, "*") {
			pattern = "(?:.*@)?" + pattern
		}
		switch {
		case port != "":
			return pattern + `\.?` + quoted(port)
		case prefix:
			return pattern
		}
		return pattern + `\.?(?::[0-9]*)?`
	})
}

// serverNameMatcher returns the matcher of a server name of TLS. The case does not matter. To
// refuse, it also matches the name with a dot at its end.
func serverNameMatcher(value string, refuses bool) *matcherv3.StringMatcher {
	if !refuses || strings.HasSuffix(value, "*") {
		return valueMatcher(value, true)
	}
	return patternMatcher(value, func(fixed string) string { return "(?i:" + quoted(strings.TrimSuffix(fixed, ".")) + `)\.?` })
}

// slash matches a slash in all forms that a server may take for one.
const slash = `(?:/|\\|%2[Ff]|%5[Cc])`

// pathMatcher returns the matcher of a path. To refuse, each slash of the value matches
// several slashes of any form. To permit, the operators of a template match no slash in
// another form.
func pathMatcher(value string, refuses bool) *matcherv3.StringMatcher {
	between, segment := "/", `(?:[^/\\%]|%(?:[^25/]|2[^Ff/]|5[^Cc/]))+`
	if refuses {
		between, segment = slash+"+", "[^/]+"
	}
	forms := func(fixed string) string { return strings.ReplaceAll(quoted(fixed), "/", between) }
	switch {
	case snapshot.IsPathTemplate(value):
		pattern := strings.NewReplacer(`\{\*\}`, segment, `\{\*\*\}`, ".*").Replace(forms(value))
		return regexMatcher(pattern)
	case refuses:
		return patternMatcher(value, forms)
	}
	return valueMatcher(value, false)
}

// hiddenTraversal matches paths with a segment ".." that normalization leaves, because a
// slash beside it has another form. A server that decodes it would see another path.
func hiddenTraversal() *rbacv3.Permission {
	return pathPermission(regexMatcher(".*" + slash + `(?:\.|%2[Ee]){2}(?:` + slash + ".*)?"))
}

func pathPermission(m *matcherv3.StringMatcher) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_UrlPath{UrlPath: &matcherv3.PathMatcher{
		Rule: &matcherv3.PathMatcher_Path{Path: m},
	}}}
}

// headerValueMatcher returns the matcher of a header. To refuse, it also matches a list that
// has the value, as Envoy joins headers of one name by commas.
func headerValueMatcher(value string, refuses bool) *matcherv3.StringMatcher {
	if !refuses {
		return valueMatcher(value, false)
	}
	return patternMatcher(value, func(fixed string) string {
		pattern := quoted(fixed)
		if !strings.HasPrefix(value, "*") {
			pattern = `(?:.*,)?[ \t]*` + pattern
		}
		if !strings.HasSuffix(value, "*") {
			pattern += `[ \t]*(?:,.*)?`
		}
		return pattern
	})
}

// headerMatcher returns the matcher of a header with a value.
func headerMatcher(name, value string, m *matcherv3.StringMatcher) *routev3.HeaderMatcher {
	if value == "*" {
		return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}}
	}
	return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: m}}
}

func headerPermission(name, value string, m *matcherv3.StringMatcher) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: headerMatcher(name, value, m)}}
}

// authenticated matches the identity in the certificate of a client.
func authenticated(m *matcherv3.StringMatcher) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{Authenticated: &rbacv3.Principal_Authenticated{PrincipalName: m}}}
}

// rangeOf returns a range of addresses, or a single address, that the source has checked.
func rangeOf(value string) *corev3.CidrRange {
	p, err := netip.ParsePrefix(value)
	if err != nil {
		addr, err := netip.ParseAddr(value)
		if err != nil {
			panic("xdsgen: " + err.Error())
		}
		addr = addr.Unmap()
		p = netip.PrefixFrom(addr, addr.BitLen())
	}
	return cidrRange(p.Masked())
}

// claim matches a claim of the token that is a string, or a list that has the string.
func claim(m *matcherv3.StringMatcher, path ...string) *rbacv3.Principal {
	return tokenPrincipal(textOrList(m), path...)
}

// textOrList matches a string, or a list that has the string.
func textOrList(m *matcherv3.StringMatcher) *matcherv3.ValueMatcher {
	text := stringValue(m)
	list := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{ListMatch: &matcherv3.ListMatcher{
		MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: text},
	}}}
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_OrMatch{
		OrMatch: &matcherv3.OrMatcher{ValueMatchers: []*matcherv3.ValueMatcher{text, list}},
	}}
}

func stringValue(m *matcherv3.StringMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: m}}
}

func tokenPrincipal(m *matcherv3.ValueMatcher, path ...string) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Metadata{
		Metadata: metadataMatcher(filterJWT, m, append([]string{metadataClaims}, path...)...), //nolint:staticcheck // every Envoy reads it
	}}
}

func metadataMatcher(filter string, m *matcherv3.ValueMatcher, path ...string) *matcherv3.MetadataMatcher {
	out := &matcherv3.MetadataMatcher{Filter: filter, Value: m}
	for _, key := range path {
		out.Path = append(out.Path, &matcherv3.MetadataMatcher_PathSegment{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key}})
	}
	return out
}

// requestPrincipal matches <issuer>/<subject> of the token. Both may have slashes, so each
// slash of the value may be the one between them.
func requestPrincipal(value string) *rbacv3.Principal {
	both := func(issuer, subject string) *rbacv3.Principal {
		return allPrincipals(
			tokenPrincipal(stringValue(valueMatcher(issuer, false)), "iss"),
			tokenPrincipal(stringValue(valueMatcher(subject, false)), "sub"),
		)
	}
	suffix, isSuffix := strings.CutPrefix(value, "*")
	prefix, isPrefix := strings.CutSuffix(value, "*")
	some := []*rbacv3.Principal{{Identifier: &rbacv3.Principal_NotId{NotId: &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}}}}}
	switch {
	case value == "*":
		return both("*", "*")
	case isSuffix:
		some[0] = both("*", value)
	case isPrefix:
		some[0] = both(value, "*")
	}
	fixed := value
	if isSuffix {
		fixed = suffix
	} else if isPrefix {
		fixed = prefix
	}
	for i := range len(fixed) {
		if fixed[i] != '/' {
			continue
		}
		issuer, subject := fixed[:i], fixed[i+1:]
		if isSuffix {
			issuer = "*" + issuer
		} else if isPrefix {
			subject += "*"
		}
		if issuer != "" && subject != "" {
			some = append(some, both(issuer, subject))
		}
	}
	return anyPrincipal(some...)
}

// filterMetadata matches metadata of a filter: with a value in brackets a list that has it,
// else a string.
func filterMetadata(filter, key, value string) *matcherv3.MetadataMatcher {
	inner, open := strings.CutPrefix(value, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	if !open || !closed {
		return metadataMatcher(filter, stringValue(valueMatcher(value, false)), key)
	}
	return metadataMatcher(filter, &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{ListMatch: &matcherv3.ListMatcher{
		MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: stringValue(valueMatcher(inner, false))},
	}}}, key)
}
