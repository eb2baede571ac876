package access

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/meshctl/meshctl/internal/server/xdsgen/rbac"
)

// fullMatch reports whether an expression, in RE2 syntax as Envoy's, matches a whole value. In
// Envoy, no expression matches a value that is not UTF-8.
func fullMatch(expression, value string) truth {
	if !utf8.ValidString(value) {
		return no
	}
	re, err := regexp.Compile(`\A(?:` + expression + `)\z`)
	if err != nil {
		return unknown // Envoy refuses it, or has a newer syntax
	}
	return truthOf(re.MatchString(value))
}

// matchString reports whether a value matches.
func matchString(m *matcherv3.StringMatcher, value string) truth {
	fold := func(pattern string) (string, string) {
		if m.GetIgnoreCase() {
			return lowerASCII(pattern), lowerASCII(value)
		}
		return pattern, value
	}
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		want, got := fold(p.Exact)
		return truthOf(got == want)
	case *matcherv3.StringMatcher_Prefix:
		want, got := fold(p.Prefix)
		return truthOf(strings.HasPrefix(got, want))
	case *matcherv3.StringMatcher_Suffix:
		want, got := fold(p.Suffix)
		return truthOf(strings.HasSuffix(got, want))
	case *matcherv3.StringMatcher_Contains:
		want, got := fold(p.Contains)
		return truthOf(strings.Contains(got, want))
	case *matcherv3.StringMatcher_SafeRegex:
		return fullMatch(p.SafeRegex.GetRegex(), value)
	}
	return unknown
}

// lowerASCII converts only ASCII letters, as Envoy does.
func lowerASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

// describe describes the values that match.
func describe(m *matcherv3.StringMatcher) string {
	out := ""
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		out = strconv.Quote(p.Exact)
	case *matcherv3.StringMatcher_Prefix:
		out = strconv.Quote(p.Prefix + "*")
	case *matcherv3.StringMatcher_Suffix:
		out = strconv.Quote("*" + p.Suffix)
	case *matcherv3.StringMatcher_Contains:
		out = strconv.Quote("*" + p.Contains + "*")
	case *matcherv3.StringMatcher_SafeRegex:
		out = "like " + strconv.Quote(p.SafeRegex.GetRegex())
	default:
		out = "what an extension accepts"
	}
	if m.GetIgnoreCase() {
		out += " in any case"
	}
	return out
}

// matchHeader evaluates a condition on a header. Envoy compares each of its values.
func (s *state) matchHeader(m *routev3.HeaderMatcher) finding {
	if !s.overHTTP {
		return finding{no, "the connection has no HTTP headers"}
	}
	subject := headerSubject(m.GetName())
	values, known := s.header(m.GetName())
	if !known {
		return undecidable("it depends on the " + subject)
	}
	if p, ok := m.GetHeaderMatchSpecifier().(*routev3.HeaderMatcher_PresentMatch); ok || m.GetHeaderMatchSpecifier() == nil {
		want := !ok || p.PresentMatch
		present := len(values) > 0 || m.GetTreatMissingHeaderAsEmpty()
		why := subject + " is missing"
		if len(values) > 0 {
			why = subject + " is present"
		}
		return finding{truthOf((present == want) != m.GetInvertMatch()), why}
	}
	if len(values) == 0 {
		if !m.GetTreatMissingHeaderAsEmpty() {
			return finding{no, subject + " is missing"}
		}
		values = []string{""}
	}
	f := anyOf(values, func(value string) finding {
		t, want := matchHeaderValue(m, value)
		return compared(subject, value, t, want)
	})
	if m.GetInvertMatch() {
		return f.negated()
	}
	return f
}

func headerSubject(name string) string {
	switch name {
	case ":method":
		return "method"
	case ":path":
		return "path with query"
	case ":authority", "host":
		return "host"
	}
	return "header " + name
}

func matchHeaderValue(m *routev3.HeaderMatcher, value string) (t truth, want string) {
	as := func(s *matcherv3.StringMatcher) (truth, string) { return matchString(s, value), describe(s) }
	switch p := m.GetHeaderMatchSpecifier().(type) {
	case *routev3.HeaderMatcher_StringMatch:
		return as(p.StringMatch)
	case *routev3.HeaderMatcher_ExactMatch:
		return as(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: p.ExactMatch}}) //nolint:staticcheck // other control planes use it
	case *routev3.HeaderMatcher_PrefixMatch:
		return as(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: p.PrefixMatch}}) //nolint:staticcheck // other control planes use it
	case *routev3.HeaderMatcher_SuffixMatch:
		return as(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: p.SuffixMatch}}) //nolint:staticcheck // other control planes use it
	case *routev3.HeaderMatcher_ContainsMatch:
		return as(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Contains{Contains: p.ContainsMatch}}) //nolint:staticcheck // other control planes use it
	case *routev3.HeaderMatcher_SafeRegexMatch:
		return as(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: p.SafeRegexMatch}}) //nolint:staticcheck // other control planes use it
	case *routev3.HeaderMatcher_RangeMatch:
		n, err := strconv.ParseInt(value, 10, 64)
		want := "from " + strconv.FormatInt(p.RangeMatch.GetStart(), 10) + " to below " + strconv.FormatInt(p.RangeMatch.GetEnd(), 10)
		return truthOf(err == nil && n >= p.RangeMatch.GetStart() && n < p.RangeMatch.GetEnd()), want
	}
	return unknown, "what a newer Envoy accepts"
}

// matchPath compares the path without query.
func (s *state) matchPath(m *matcherv3.PathMatcher) finding {
	path, f := s.pathOnly()
	if f != nil {
		return *f
	}
	want := describe(m.GetPath())
	if written, ok := rbac.WrittenPath(m.GetPath().GetSafeRegex().GetRegex()); ok {
		want = strconv.Quote(written)
	}
	return compared("path", path, matchString(m.GetPath(), path), want)
}

// pathOnly returns the path without query, or the reason why there is none.
func (s *state) pathOnly() (string, *finding) {
	switch {
	case !s.overHTTP:
		return "", &finding{no, "the connection has no HTTP path"}
	case s.path == "" && s.Open:
		return "", &finding{unknown, "it depends on the path"}
	case s.path == "":
		return "", &finding{no, "the request has no path"}
	}
	path, _, _ := strings.Cut(s.path, "?")
	path, _, _ = strings.Cut(path, "#")
	return path, nil
}

// matchRange compares an address.
func matchRange(subject string, ip netip.Addr, m *corev3.CidrRange) finding {
	bits := int(m.GetPrefixLen().GetValue())
	want := m.GetAddressPrefix() + "/" + strconv.Itoa(bits)
	if !ip.IsValid() {
		return undecidable("it depends on the " + subject)
	}
	of, err := netip.ParseAddr(m.GetAddressPrefix())
	if err != nil {
		return undecidable(want + " is no range")
	}
	prefix, err := of.Prefix(min(bits, of.BitLen()))
	if err != nil {
		return undecidable(want + " is no range")
	}
	t := truthOf(prefix.Contains(ip.Unmap()))
	if t == yes {
		return finding{t, subject + " " + ip.String() + " is in " + want}
	}
	return finding{t, subject + " " + ip.String() + " is not in " + want}
}
