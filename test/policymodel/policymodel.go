// Package policymodel decides for tests what AuthorizationPolicies permit. It follows
// docs/security-policy.md and shares no code with the generator of Envoy's configuration.
package policymodel

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	securityv1beta1 "istio.io/api/security/v1beta1"
)

// Policy is a policy that applies to a workload.
type Policy struct {
	Namespace string
	DryRun    bool
	Spec      *securityv1beta1.AuthorizationPolicy
}

// Request is a request of HTTP or a connection of TCP.
type Request struct {
	TCP bool // the fields up to Claims are not set
	// Path is normalized, without a query.
	Host, Method, Path string
	Headers            map[string][]string // names are in lower case
	Claims             map[string]any      // of a valid token; nil if there is none
	// Principal is the identity of the client without spiffe://; empty if it has none.
	Principal          string
	Source, Remote, To netip.Addr
	Port               string
	ServerName         string
}

// Allowed reports whether policies permit a request. The action CUSTOM is one of DENY:
// no provider permits anything.
func Allowed(policies []Policy, domains []string, r *Request) bool {
	permits, permitted := false, false
	for _, p := range policies {
		if p.DryRun || p.Spec.GetAction() == securityv1beta1.AuthorizationPolicy_AUDIT {
			continue
		}
		allow := p.Spec.GetAction() == securityv1beta1.AuthorizationPolicy_ALLOW
		m := matcher{Request: r, namespace: p.Namespace, domains: domains, allow: allow}
		matches := slices.ContainsFunc(p.Spec.GetRules(), m.rule)
		if !allow && matches {
			return false
		}
		permits, permitted = permits || allow, permitted || allow && matches
	}
	return !permits || permitted
}

type matcher struct {
	*Request
	namespace string
	domains   []string
	allow     bool
}

// field is a condition: test reports whether a value matches, in doubt or only for certain.
type field struct {
	http           bool
	values, others []string
	test           func(value string, inDoubt bool) bool
}

func (m matcher) rule(rule *securityv1beta1.Rule) bool {
	if m.TCP && m.allow && usesHTTP(rule) {
		return false
	}
	any := func(n int, match func(i int) bool) bool {
		for i := range n {
			if match(i) {
				return true
			}
		}
		return n == 0
	}
	for _, w := range rule.GetWhen() {
		if !m.holds(m.attribute(w)) {
			return false
		}
	}
	return any(len(rule.GetTo()), func(i int) bool { return m.operation(rule.GetTo()[i].GetOperation()) }) &&
		any(len(rule.GetFrom()), func(i int) bool { return m.source(rule.GetFrom()[i].GetSource()) })
}

func usesHTTP(rule *securityv1beta1.Rule) bool {
	for _, t := range rule.GetTo() {
		o := t.GetOperation()
		if len(o.GetHosts())+len(o.GetNotHosts())+len(o.GetMethods())+len(o.GetNotMethods())+len(o.GetPaths())+len(o.GetNotPaths()) > 0 {
			return true
		}
	}
	for _, f := range rule.GetFrom() {
		if len(f.GetSource().GetRequestPrincipals())+len(f.GetSource().GetNotRequestPrincipals()) > 0 {
			return true
		}
	}
	return slices.ContainsFunc(rule.GetWhen(), func(w *securityv1beta1.Condition) bool { return strings.HasPrefix(w.GetKey(), "request.") })
}

// holds reports whether a condition holds. A match of values is in doubt where it refuses: in
// a DENY policy, and among the excluded values of an ALLOW policy.
func (m matcher) holds(f field) bool {
	if f.http && m.TCP {
		return true // a rule of DENY without the condition
	}
	if len(f.values) > 0 && !slices.ContainsFunc(f.values, func(v string) bool { return f.test(v, !m.allow) }) {
		return false
	}
	return !slices.ContainsFunc(f.others, func(v string) bool { return f.test(v, m.allow) })
}

func (m matcher) all(fields ...field) bool {
	return !slices.ContainsFunc(fields, func(f field) bool { return !m.holds(f) })
}

func (m matcher) operation(o *securityv1beta1.Operation) bool {
	return m.all(
		field{true, o.GetHosts(), o.GetNotHosts(), m.host},
		field{true, o.GetMethods(), o.GetNotMethods(), func(v string, inDoubt bool) bool { return text(v, m.Method, inDoubt) }},
		field{true, o.GetPaths(), o.GetNotPaths(), m.path},
		field{false, o.GetPorts(), o.GetNotPorts(), func(v string, _ bool) bool { return v == m.Port }},
	)
}

func (m matcher) source(s *securityv1beta1.Source) bool {
	return m.all(
		field{false, s.GetPrincipals(), s.GetNotPrincipals(), m.principal},
		field{false, s.GetNamespaces(), s.GetNotNamespaces(), m.namespaceOf},
		field{false, s.GetServiceAccounts(), s.GetNotServiceAccounts(), m.account},
		field{false, s.GetTrustDomains(), s.GetNotTrustDomains(), m.domain},
		field{false, s.GetIpBlocks(), s.GetNotIpBlocks(), within(m.Source)},
		field{false, s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks(), within(m.Remote)},
		field{true, s.GetRequestPrincipals(), s.GetNotRequestPrincipals(), m.requestPrincipal},
	)
}

func (m matcher) attribute(w *securityv1beta1.Condition) field {
	name, rest, _ := strings.Cut(w.GetKey(), "[")
	args := strings.Split(strings.TrimSuffix(rest, "]"), "][")
	f := field{http: strings.HasPrefix(name, "request."), values: w.GetValues(), others: w.GetNotValues()}
	switch name {
	case "source.ip":
		f.test = within(m.Source)
	case "remote.ip":
		f.test = within(m.Remote)
	case "destination.ip":
		f.test = within(m.To)
	case "destination.port":
		f.test = func(v string, _ bool) bool { return v == m.Port }
	case "source.principal":
		f.test = m.principal
	case "source.namespace":
		f.test = m.namespaceOf
	case "source.serviceAccount":
		f.test = m.account
	case "connection.sni":
		f.test = func(v string, inDoubt bool) bool {
			name := strings.ToLower(m.ServerName)
			return wild(strings.ToLower(v), name) || inDoubt && wild(strings.ToLower(v), strings.TrimSuffix(name, "."))
		}
	case "request.headers":
		f.test = func(v string, inDoubt bool) bool { return m.header(strings.ToLower(args[0]), v, inDoubt) }
	case "request.auth.principal":
		f.test = m.requestPrincipal
	case "request.auth.audiences":
		f.test = m.claim("aud")
	case "request.auth.presenter":
		f.test = m.claim("azp")
	case "request.auth.claims":
		f.test = m.claim(args...)
	default:
		panic("policymodel: attribute " + w.GetKey())
	}
	return f
}

// wild compares a text with a value: exact, a prefix, a suffix, or any text.
func wild(value, is string) bool {
	switch {
	case value == "*":
		return is != ""
	case value[0] == '*':
		return strings.HasSuffix(is, value[1:])
	case value[len(value)-1] == '*':
		return strings.HasPrefix(is, value[:len(value)-1])
	}
	return is == value
}

func text(value, is string, foldCase bool) bool {
	if foldCase {
		return wild(strings.ToLower(value), strings.ToLower(is))
	}
	return wild(value, is)
}

func within(addr netip.Addr) func(string, bool) bool {
	return func(v string, _ bool) bool {
		if p, err := netip.ParsePrefix(v); err == nil {
			return p.Contains(addr)
		}
		a, err := netip.ParseAddr(v)
		return err == nil && a == addr
	}
}

// identity returns the parts of the principal of a Kubernetes service account:
// <trust domain>/ns/<namespace>/sa/<account>.
func (m matcher) identity() (namespace, account string, ok bool) {
	parts := strings.Split(m.Principal, "/")
	if len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" {
		return "", "", false
	}
	return parts[2], parts[4], true
}

func (m matcher) principal(v string, _ bool) bool {
	if m.Principal == "" {
		return false
	}
	if wild(v, m.Principal) {
		return true
	}
	domain, rest, _ := strings.Cut(v, "/")
	if strings.Count(v, "/") != 4 || domain == "*" {
		return false
	}
	ours := domain == "cluster.local" || slices.ContainsFunc(m.domains, func(d string) bool { return wild(domain, d) })
	return ours && slices.ContainsFunc(m.domains, func(d string) bool { return wild(d+"/"+rest, m.Principal) })
}

func (m matcher) namespaceOf(v string, _ bool) bool {
	namespace, _, ok := m.identity()
	return ok && segments(v, namespace)
}

func (m matcher) domain(v string, _ bool) bool {
	domain, _, ok := strings.Cut(m.Principal, "/")
	return ok && segments(v, domain)
}

// segments compares a text with a value that has wildcards anywhere.
func segments(value, is string) bool {
	first, rest, wildcard := strings.Cut(value, "*")
	if !wildcard {
		return value == is
	}
	if !strings.HasPrefix(is, first) {
		return false
	}
	for i := len(first); i <= len(is); i++ {
		if segments(rest, is[i:]) {
			return true
		}
	}
	return false
}

func (m matcher) account(v string, _ bool) bool {
	namespace, account, ok := m.identity()
	if !strings.Contains(v, "/") {
		v = m.namespace + "/" + v
	}
	return ok && v == namespace+"/"+account
}

// host compares the host of a request. In doubt, its user, port and last dot do not count.
func (m matcher) host(v string, inDoubt bool) bool {
	v, host := strings.ToLower(v), strings.ToLower(m.Host)
	if wild(v, host) {
		return true
	}
	if !inDoubt {
		return false
	}
	bare, port, hasPort := strings.Cut(host[strings.LastIndex(host, "@")+1:], ":")
	bare = strings.TrimSuffix(bare, ".")
	return wild(v, bare) || hasPort && wild(v, bare+":"+port)
}

// doubtful reports whether servers resolve a path in different ways: it has a segment of dots, a zero
// byte or bytes that are not UTF-8.
func doubtful(path string) bool {
	for segment := range strings.SplitSeq(slashes.Replace(path), "/") {
		name, _, _ := strings.Cut(unescapedDots.Replace(segment), ";")
		if name == "." || name == ".." {
			return true
		}
	}
	return strings.Contains(path, "%00") || !utf8.ValidString(path)
}

var (
	slashes       = strings.NewReplacer(`\`, "/", "%2f", "/", "%2F", "/", "%5c", "/", "%5C", "/")
	unescapedDots = strings.NewReplacer("%2e", ".", "%2E", ".", "%3b", ";", "%3B", ";")
)

func (m matcher) path(v string, inDoubt bool) bool {
	template := strings.Contains(v, "{*}") || strings.Contains(v, "{**}")
	switch {
	case doubtful(m.Path):
		return inDoubt
	case v == "*":
		return m.Path != ""
	case inDoubt:
		return newPathReader(m.Path).reads(v, template)
	case template:
		return permittedTemplate(strings.Split(v, "/"), m.Path)
	case v[0] == '*' && v[1] != '/':
		return permittedSuffix(v[1:], m.Path)
	}
	return wild(v, m.Path)
}

// permittedSuffix reports whether a path ends in a suffix for every server: the segment in which the
// suffix begins has no parameters before it, and is no host.
func permittedSuffix(suffix, path string) bool {
	before, ok := strings.CutSuffix(path, suffix)
	if !ok {
		return false
	}
	i := strings.LastIndexByte(before, '/')
	return i >= 0 && !strings.Contains(before[i:], ";") && (i == 0 || strings.Trim(before[:i], `/\`) != "")
}

// permittedTemplate compares a path with the segments of a template. An operator matches no slash in
// another form and no segment with only parameters.
func permittedTemplate(segments []string, path string) bool {
	if segments[0] == "{**}" {
		return strings.HasSuffix(path, strings.Join(append([]string{""}, segments[1:]...), "/"))
	}
	first, rest, more := strings.Cut(path, "/")
	switch {
	case segments[0] == "{*}" && (first == "" || first[0] == ';' || slashes.Replace(first) != first):
		return false
	case segments[0] != "{*}" && segments[0] != first, more != (len(segments) > 1):
		return false
	}
	return !more || permittedTemplate(segments[1:], rest)
}

// pathReader reads a path as all servers do at once: at holds the places up to which one of them may
// have read.
type pathReader struct {
	path string
	at   []bool
}

func newPathReader(path string) *pathReader {
	r := &pathReader{path, make([]bool, len(path)+1)}
	r.at[0] = true
	return r
}

// reads reports whether a server may read the whole path as a value.
func (r *pathReader) reads(v string, template bool) bool {
	if v[0] == '/' {
		r.host()
	}
	prefix := false
	if !template && v[0] == '*' {
		r.all("")
		v = v[1:]
	} else if !template {
		v, prefix = strings.CutSuffix(v, "*")
	}
	for v != "" {
		before, operator := v, ""
		if i := strings.IndexByte(v, '{'); template && i >= 0 {
			before, operator, _ = strings.Cut(v, v[i:i+strings.IndexByte(v[i:], '}')+1])
			operator = v[i : len(v)-len(operator)]
		}
		r.text(before)
		switch operator {
		case "{*}":
			r.oneOrMore(func() { r.any("/") })
		case "{**}":
			r.all("")
		}
		v = v[len(before)+len(operator):]
	}
	if prefix {
		r.all("")
	}
	for range r.path {
		r.optionally(func() { r.some(slashForms...) })
		r.parameters()
	}
	return r.at[len(r.path)]
}

// text reads a text, each of whose characters may be escaped.
func (r *pathReader) text(text string) {
	var plain []byte
	for i := 0; i < len(text); i++ {
		if n, err := strconv.ParseUint(text[min(i+1, len(text)):min(i+3, len(text))], 16, 8); err == nil && text[i] == '%' && i+2 < len(text) {
			plain = append(plain, byte(n))
			i += 2
		} else {
			plain = append(plain, text[i])
		}
	}
	for i, b := range plain {
		switch isSlash := b == '/' || b == '\\'; {
		case isSlash && i > 0 && (plain[i-1] == '/' || plain[i-1] == '\\'):
		case isSlash:
			r.oneOrMore(func() {
				r.parameters()
				r.some(slashForms...)
			})
		default:
			r.some(string([]byte{b}), fmt.Sprintf("%%%02x", b), fmt.Sprintf("%%%02X", b), fmt.Sprintf("%%%X%x", b>>4, b&15), fmt.Sprintf("%%%x%X", b>>4, b&15))
		}
	}
}

var slashForms = []string{"/", `\`, "%2f", "%2F", "%5c", "%5C"}

// some reads one of some texts.
func (r *pathReader) some(texts ...string) {
	next := make([]bool, len(r.at))
	for i, here := range r.at {
		for _, text := range texts {
			if here && strings.HasPrefix(r.path[i:], text) {
				next[i+len(text)] = true
			}
		}
	}
	r.at = next
}

// any reads one byte that is not among some.
func (r *pathReader) any(but string) {
	next := make([]bool, len(r.at))
	for i := range r.path {
		next[i+1] = r.at[i] && strings.IndexByte(but, r.path[i]) < 0
	}
	r.at = next
}

// all reads any number of bytes that are not among some.
func (r *pathReader) all(but string) {
	for i := range len(r.path) {
		r.at[i+1] = r.at[i+1] || r.at[i] && strings.IndexByte(but, r.path[i]) < 0
	}
}

// parameters reads the parameters of a segment, if there are any.
func (r *pathReader) parameters() {
	r.optionally(func() {
		r.some(";")
		r.all("/")
	})
}

// host reads two slashes and a host, if there are any.
func (r *pathReader) host() {
	r.optionally(func() {
		r.some("/", `\`)
		r.oneOrMore(func() { r.some("/", `\`) })
		r.all(`/\`)
	})
}

// optionally reads something or nothing.
func (r *pathReader) optionally(read func()) {
	before := r.at
	r.at = slices.Clone(before)
	read()
	r.join(before)
}

// oneOrMore reads something once or repeatedly.
func (r *pathReader) oneOrMore(read func()) {
	read()
	for range r.path {
		before := r.at
		r.at = slices.Clone(before)
		read()
		if r.join(before); slices.Equal(r.at, before) {
			return
		}
	}
}

func (r *pathReader) join(places []bool) {
	for i, here := range places {
		r.at[i] = r.at[i] || here
	}
}

// header compares a header. Repeated headers are one list; in doubt, each item counts, and an
// underscore in the name is a dash.
func (m matcher) header(name, v string, inDoubt bool) bool {
	for other, all := range m.Headers {
		if same := other == name || inDoubt && sameVariable(name, other); same && listMatches(v, strings.Join(all, ","), inDoubt) {
			return true
		}
	}
	return false
}

// sameVariable reports whether servers with variables of CGI take two names of headers for one. Of
// long names only those are known that have one kind of separator.
func sameVariable(name, other string) bool {
	dashes := func(s string) string { return strings.ReplaceAll(s, "_", "-") }
	if dashes(name) != dashes(other) {
		return false
	}
	return strings.Count(dashes(other), "-") <= 4 || !strings.Contains(other, "_") || !strings.Contains(other, "-")
}

func listMatches(v, joined string, inDoubt bool) bool {
	if v == "*" || wild(v, joined) {
		return true
	}
	return inDoubt && slices.ContainsFunc(strings.Split(joined, ","), func(item string) bool { return wild(v, strings.Trim(item, " \t")) })
}

func (m matcher) claim(path ...string) func(string, bool) bool {
	return func(v string, _ bool) bool {
		var at any = m.Claims
		for _, key := range path {
			object, _ := at.(map[string]any)
			at = object[key]
		}
		switch at := at.(type) {
		case string:
			return wild(v, at)
		case []any:
			return slices.ContainsFunc(at, func(item any) bool { s, ok := item.(string); return ok && wild(v, s) })
		}
		return false
	}
}

func (m matcher) requestPrincipal(v string, _ bool) bool {
	issuer, _ := m.Claims["iss"].(string)
	subject, _ := m.Claims["sub"].(string)
	return issuer != "" && subject != "" && wild(v, fmt.Sprintf("%s/%s", issuer, subject))
}
