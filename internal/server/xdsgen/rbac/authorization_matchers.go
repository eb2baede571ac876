package rbac

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
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

// Servers decode a path in different ways. A refusing field matches all of these forms:
const (
	// slash is a slash in any form.
	slash = `(?:/|\\|%2[Ff]|%5[Cc])`
	// between stands for a slash of the value: several slashes, each with parameters before it, which
	// servers in Java remove.
	between = `(?:(?:;[^/]*)?` + slash + `)+`
	// authority is a host at the start, as in a URL without a scheme.
	authority = `(?:[/\\]{2,}[^/\\]*)?`
	// tail is what servers ignore at the end.
	tail = `(?:;[^/]*|` + slash + `)*`
)

// Permitting fields match these forms:
const (
	// templateSegment is a segment that {*} stands for.
	templateSegment = `(?:[^/\\%;]|%(?:[^25/]|2[^Ff/]|5[^Cc/]))(?:[^/\\%]|%(?:[^25/]|2[^Ff/]|5[^Cc/]))*`
	// suffixSegment stands for the * before a suffix. The segment in which the suffix begins is
	// neither a host nor has parameters.
	suffixSegment = `(?:.*[^/\\].*)?/[^;/]*`
)

// pathMatcher returns the matcher of a path. To permit, it matches no form that a server may take
// for another path.
func pathMatcher(value string, refuses, raw bool) *matcherv3.StringMatcher {
	if refuses {
		return regexMatcher(refusedPath(value, raw))
	}
	suffix, isSuffix := strings.CutPrefix(value, "*")
	switch {
	case snapshot.IsPathTemplate(value):
		return regexMatcher(strings.NewReplacer(`\{\*\}`, templateSegment, `\{\*\*\}`, ".*").Replace(quoted(value)))
	case isSuffix && suffix != "" && suffix[0] != '/':
		return regexMatcher(suffixSegment + quoted(suffix))
	}
	return valueMatcher(value, false)
}

// refusedPath returns the pattern of a path to refuse. Envoy has not normalized raw paths.
func refusedPath(value string, raw bool) string {
	if value == "*" {
		return ".+"
	}
	start, end := "", tail
	if value[0] == '/' {
		start = authority
	}
	if snapshot.IsPathTemplate(value) {
		for {
			before, operator, ok := strings.Cut(value, "{")
			if start += anyForm(before, raw); !ok {
				return start + end
			}
			operator, value, _ = strings.Cut(operator, "}")
			if operator == "*" {
				start += "[^/]+"
			} else {
				start += ".*"
			}
		}
	}
	fixed, isSuffix := strings.CutPrefix(value, "*")
	if isSuffix {
		start = ".*"
	} else if prefix, ok := strings.CutSuffix(value, "*"); ok {
		fixed, end = prefix, ".*"
	}
	return start + anyForm(fixed, raw) + end
}

// anyForm returns the pattern of a text in a path. Servers unescape characters that normalization
// leaves, which of raw paths are all.
func anyForm(text string, raw bool) string {
	text = escape.ReplaceAllStringFunc(text, func(e string) string {
		b, _ := strconv.ParseUint(e[1:], 16, 8)
		return string([]byte{byte(b)})
	})
	var out strings.Builder
	for wasSlash := false; text != ""; {
		r, size := utf8.DecodeRuneInString(text)
		char, isSlash := text[:size], r == '/' || r == '\\'
		switch {
		case isSlash && !wasSlash:
			out.WriteString(between)
		case isSlash:
		case r == utf8.RuneError && size == 1:
			out.WriteString(escaped(char))
		case raw || !isUnreserved(r):
			out.WriteString("(?:" + quoted(char) + "|" + escaped(char) + ")")
		default:
			out.WriteString(quoted(char))
		}
		text, wasSlash = text[size:], isSlash
	}
	return out.String()
}

// escape is an escaped byte of a path.
var escape = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)

// isUnreserved reports whether Envoy unescapes a character when it normalizes a path.
func isUnreserved(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-._~", r)
}

// escaped returns the pattern of a text whose bytes are escaped.
func escaped(text string) string {
	var out strings.Builder
	for _, b := range []byte(text) {
		out.WriteByte('%')
		for _, digit := range fmt.Sprintf("%02x", b) {
			if upper := unicode.ToUpper(digit); upper != digit {
				out.WriteString("[" + string(upper) + string(digit) + "]")
			} else {
				out.WriteRune(digit)
			}
		}
	}
	return out.String()
}

// doubtful is the pattern of the paths that doubtfulPath matches, but for bytes.
const doubtful = ".*" + slash + `(?:\.|%2[Ee]){1,2}(?:(?:` + slash + `|;|%3[Bb]).*)?|.*%00.*`

// doubtfulPath matches paths that servers resolve in different ways: a segment of dots that
// normalization leaves, because a slash beside it has another form or parameters follow, a zero
// byte, and bytes that no regular expression matches.
func doubtfulPath(raw bool) *rbacv3.Permission {
	m := pathPermission(regexMatcher(doubtful))
	if !raw {
		return m
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: &rbacv3.Permission_Set{
		Rules: []*rbacv3.Permission{m, notPermission(pathPermission(regexMatcher(".*")))},
	}}}
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

// namedHeaderMatcher is headerValueMatcher for the headers of a name. To refuse, host, method and path
// match in the same forms as the fields for them.
func namedHeaderMatcher(name, value string, refuses, rawPaths bool) *matcherv3.StringMatcher {
	if refuses {
		switch strings.ToLower(name) {
		case "host", ":authority":
			return hostMatcher(value, refuses)
		case ":method":
			return valueMatcher(value, refuses)
		case ":path":
			return regexMatcher("(?:" + refusedPath(value, rawPaths) + "|" + doubtful + ")(?:[?#].*)?")
		}
	}
	return headerValueMatcher(value, refuses)
}

// headerNames returns the names of headers that a condition is about.
func headerNames(name string, refuses bool) []string {
	if !refuses {
		return []string{name}
	}
	return snapshot.FormsOfHeader(name)
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
	return wire.CidrRange(p.Masked())
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
		Metadata: metadataMatcher(FilterJWT, m, append([]string{metadataClaims}, path...)...), //nolint:staticcheck // every Envoy reads it
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
