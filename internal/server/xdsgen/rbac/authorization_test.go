package rbac

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire/rules"
	"github.com/meshctl/meshctl/test/policymodel"
)

var policySeeds = flag.Uint64("seeds", 0, "how many sets of random policies TestRandomPolicies has; 0 is 100")

// TestRandomPolicies: for random policies and requests, Envoy's rules decide as the model
// does. One DENY policy more permits nothing more, and neither does one ALLOW rule less.
func TestRandomPolicies(t *testing.T) { //nolint:paralleltest // shares patterns
	var allowed, refused int
	seeds := cmp.Or(*policySeeds, 100)
	for seed := range seeds {
		r := newRandomPolicies(seed, 18)
		policies := r.policies()
		with := append(slices.Clip(policies), r.Policy(len(policies), securityv1beta1.AuthorizationPolicy_DENY))
		less := withoutRule(policies, r.IntN(10))
		now, withDeny, withLess := rulesOf(t, policies), rulesOf(t, with), rulesOf(t, less)
		for range 40 {
			req := randomRequest(r.Random)
			got := now.permit(t, req)
			if want := policymodel.Allowed(modelOf(policies), testDomains, req); got != want {
				t.Fatalf("seed %d: %+v: permitted %t, the model wants %t, by %v", seed, req, got, want, modelOf(policies))
			}
			if got {
				allowed++
			} else {
				refused++
			}
			if !got && withDeny.permit(t, req) {
				t.Fatalf("seed %d: %+v is permitted with a DENY policy more: %v", seed, req, with)
			}
			if !got && withLess.permit(t, req) {
				t.Fatalf("seed %d: %+v is permitted with an ALLOW rule less: %v", seed, req, less)
			}
		}
	}
	if least := int(seeds); allowed < least || refused < least {
		t.Errorf("%d requests are permitted, %d refused", allowed, refused)
	}
}

// TestDoubtfulRules: a rule of an ALLOW policy that is not understood permits nothing.
func TestDoubtfulRules(t *testing.T) { //nolint:paralleltest // shares patterns
	p := &snapshot.AuthorizationPolicy{
		Meta:     snapshot.Meta{Namespace: "ns", Name: "p"},
		Spec:     &securityv1beta1.AuthorizationPolicy{Rules: []*securityv1beta1.Rule{{}}},
		Doubtful: []int{0},
	}
	if r := randomRequest(newRandomPolicies(1, 1).Random); rulesOf(t, []*snapshot.AuthorizationPolicy{p}).permit(t, r) {
		t.Errorf("%+v is permitted", r)
	}
}

var testDomains = []string{"cluster.local", "old.example.com"}

// withoutRule returns the policies without one rule of an ALLOW policy.
func withoutRule(policies []*snapshot.AuthorizationPolicy, nth int) []*snapshot.AuthorizationPolicy {
	out := slices.Clone(policies)
	for i, p := range out {
		if n := len(p.Spec.GetRules()); p.Spec.GetAction() == securityv1beta1.AuthorizationPolicy_ALLOW && n > 0 {
			less := *p
			less.Spec = &securityv1beta1.AuthorizationPolicy{Rules: slices.Delete(slices.Clone(p.Spec.GetRules()), nth%n, nth%n+1)}
			out[i] = &less
			break
		}
	}
	return out
}

func modelOf(policies []*snapshot.AuthorizationPolicy) []policymodel.Policy {
	var out []policymodel.Policy
	for _, p := range policies {
		out = append(out, policymodel.Policy{Namespace: p.Namespace, DryRun: p.DryRun, Spec: p.Spec})
	}
	return out
}

// enforced holds Envoy's rules of policies, for HTTP and for TCP, which are nil without policies.
type enforced map[bool][2]struct {
	*rbacv3.RBAC
	allows bool
}

// rulesOf returns the rules of policies, for paths that Envoy does not normalize.
func rulesOf(t *testing.T, policies []*snapshot.AuthorizationPolicy) enforced {
	t.Helper()
	return rulesFor(t, policies, true)
}

// rulesFor is rulesOf for raw or normalized paths.
func rulesFor(t *testing.T, policies []*snapshot.AuthorizationPolicy, raw bool) enforced {
	t.Helper()
	out := enforced{}
	for _, tcp := range []bool{false, true} {
		of := out[tcp]
		for i, action := range []securityv1beta1.AuthorizationPolicy_Action{securityv1beta1.AuthorizationPolicy_DENY, securityv1beta1.AuthorizationPolicy_ALLOW} {
			var some []*snapshot.AuthorizationPolicy
			for _, p := range policies {
				if p.Spec.GetAction() == action {
					some = append(some, p)
				}
			}
			a := Authorization{Action: action, Policies: wire.ListOf(some), domains: wire.ListOf(testDomains), rawPaths: raw}
			of[i].RBAC, _ = a.Rules(RuleMaker{network: tcp})
			of[i].allows = action == securityv1beta1.AuthorizationPolicy_ALLOW
			if of[i].RBAC != nil {
				if err := rules.Check(of[i].RBAC); err != nil {
					t.Fatal(err)
				}
			}
		}
		out[tcp] = of
	}
	return out
}

// permit reports whether the rules permit a request.
func (f enforced) permit(t *testing.T, r *policymodel.Request) bool {
	t.Helper()
	for _, of := range f[r.TCP] {
		if of.RBAC == nil {
			continue
		}
		matches := false
		for _, p := range of.GetPolicies() {
			e := envoy{t, r}
			matches = matches || slices.ContainsFunc(p.GetPermissions(), e.permission) && slices.ContainsFunc(p.GetPrincipals(), e.principal)
		}
		if matches != of.allows {
			return false
		}
	}
	return true
}

// patterns holds the compiled regular expressions of the tests here, which run one by one.
var patterns = make(map[string]*regexp.Regexp)

// envoy evaluates Envoy's rules.
type envoy struct {
	t *testing.T
	*policymodel.Request
}

func (e envoy) permission(p *rbacv3.Permission) bool {
	switch r := p.GetRule().(type) {
	case *rbacv3.Permission_Any:
		return true
	case *rbacv3.Permission_AndRules:
		return !slices.ContainsFunc(r.AndRules.GetRules(), func(p *rbacv3.Permission) bool { return !e.permission(p) })
	case *rbacv3.Permission_OrRules:
		return slices.ContainsFunc(r.OrRules.GetRules(), e.permission)
	case *rbacv3.Permission_NotRule:
		return !e.permission(r.NotRule)
	case *rbacv3.Permission_Header:
		return e.header(r.Header)
	case *rbacv3.Permission_UrlPath:
		return e.text(r.UrlPath.GetPath(), e.Path)
	case *rbacv3.Permission_DestinationIp:
		return contains(r.DestinationIp, e.To)
	case *rbacv3.Permission_DestinationPort:
		return fmt.Sprint(r.DestinationPort) == e.Port
	case *rbacv3.Permission_RequestedServerName:
		return e.text(r.RequestedServerName, e.ServerName)
	}
	e.t.Fatalf("permission %v", p)
	return false
}

func (e envoy) principal(p *rbacv3.Principal) bool {
	switch id := p.GetIdentifier().(type) {
	case *rbacv3.Principal_Any:
		return true
	case *rbacv3.Principal_AndIds:
		return !slices.ContainsFunc(id.AndIds.GetIds(), func(p *rbacv3.Principal) bool { return !e.principal(p) })
	case *rbacv3.Principal_OrIds:
		return slices.ContainsFunc(id.OrIds.GetIds(), e.principal)
	case *rbacv3.Principal_NotId:
		return !e.principal(id.NotId)
	case *rbacv3.Principal_Header:
		return e.header(id.Header)
	case *rbacv3.Principal_Authenticated_:
		return e.Principal != "" && e.text(id.Authenticated.GetPrincipalName(), "spiffe://"+e.Principal)
	case *rbacv3.Principal_DirectRemoteIp:
		return contains(id.DirectRemoteIp, e.Source)
	case *rbacv3.Principal_RemoteIp:
		return contains(id.RemoteIp, e.Remote)
	case *rbacv3.Principal_Metadata:
		return e.Metadata(id.Metadata) //nolint:staticcheck // see tokenPrincipal
	}
	e.t.Fatalf("principal %v", p)
	return false
}

func (e envoy) Metadata(m *matcherv3.MetadataMatcher) bool {
	if m.GetFilter() != "envoy.filters.http.jwt_authn" || m.GetPath()[0].GetKey() != "payload" {
		e.t.Fatalf("metadata %v", m)
	}
	var at any = e.Claims
	for _, segment := range m.GetPath()[1:] {
		object, _ := at.(map[string]any)
		at = object[segment.GetKey()]
	}
	return e.value(m.GetValue(), at)
}

func (e envoy) value(m *matcherv3.ValueMatcher, at any) bool {
	switch m := m.GetMatchPattern().(type) {
	case *matcherv3.ValueMatcher_StringMatch:
		text, ok := at.(string)
		return ok && e.text(m.StringMatch, text)
	case *matcherv3.ValueMatcher_ListMatch:
		list, _ := at.([]any)
		return slices.ContainsFunc(list, func(item any) bool { return e.value(m.ListMatch.GetOneOf(), item) })
	case *matcherv3.ValueMatcher_OrMatch:
		return slices.ContainsFunc(m.OrMatch.GetValueMatchers(), func(m *matcherv3.ValueMatcher) bool { return e.value(m, at) })
	}
	e.t.Fatalf("value %v", m)
	return false
}

func (e envoy) header(h *routev3.HeaderMatcher) bool {
	values, ok := e.Headers[strings.ToLower(h.GetName())]
	switch h.GetName() {
	case ":authority":
		values, ok = []string{e.Host}, true
	case ":method":
		values, ok = []string{e.Method}, true
	}
	if h.GetPresentMatch() {
		return ok
	}
	return ok && e.text(h.GetStringMatch(), strings.Join(values, ","))
}

func (e envoy) text(m *matcherv3.StringMatcher, text string) bool {
	if regex := m.GetSafeRegex(); regex != nil {
		if !utf8.ValidString(text) {
			return false // as in Envoy, also for .*
		}
		pattern := "^(?:" + regex.GetRegex() + ")$"
		re, ok := patterns[pattern]
		if !ok {
			re = regexp.MustCompile(pattern)
			patterns[pattern] = re
		}
		return re.MatchString(text)
	}
	fold := func(s string) string { return s }
	if m.GetIgnoreCase() {
		fold = strings.ToLower
	}
	switch m := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return fold(text) == fold(m.Exact)
	case *matcherv3.StringMatcher_Prefix:
		return strings.HasPrefix(fold(text), fold(m.Prefix))
	case *matcherv3.StringMatcher_Suffix:
		return strings.HasSuffix(fold(text), fold(m.Suffix))
	}
	e.t.Fatalf("text %v", m)
	return false
}

func contains(r *corev3.CidrRange, addr netip.Addr) bool {
	p, err := netip.ParseAddr(r.GetAddressPrefix())
	return err == nil && netip.PrefixFrom(p, int(r.GetPrefixLen().GetValue())).Contains(addr)
}

// randomPolicies makes policies with the values of randomRequest.
type randomPolicies struct{ policymodel.Random }

func newRandomPolicies(seed, stream uint64) randomPolicies {
	return randomPolicies{policymodel.Random{Rand: rand.New(rand.NewPCG(seed, stream)), Values: testValues}}
}

var testValues = policymodel.Values{
	Principals: []string{"cluster.local/ns/a/sa/x", "old.example.com/ns/a/sa/x", "other/ns/a/sa/x", "*/sa/x", "cluster.local/ns/a/*", "*", "*.com/ns/b/sa/y"},
	Namespaces: []string{"a", "b", "*", "a*", "*b"}, ServiceAccounts: []string{"x", "b/y"}, TrustDomains: []string{"other", "*.com"},
	Sources: []string{"10.0.0.0/8", "10.0.0.1", "10.0.0.1/32"}, Remotes: []string{"1.0.0.0/8"}, Destinations: []string{"10.0.0.9", "10.0.0.0/30"},
	Tokens:  []string{"https://i/s", "https://i/*", "*/s", "*", "i/x/s"},
	Hosts:   []string{"a.example.com", "A.example.com", "*.example.com", "a.*", "a.example.com:80", "a.example.com:*", "*"},
	Methods: []string{"GET", "G*", "*", "PUT"}, Paths: []string{"/a", "/a/*", "*/b", "*", "/{*}/b", "/a/{**}", "/a.b", "/a/{*}", "*b"}, Ports: []string{"80", "81"},
	Header: "X-Y", HeaderValues: []string{"a", "a*", "*a", "*"}, Claim: "r][s", ClaimValues: []string{"a", "a*", "*a", "*"},
}

func (r randomPolicies) policies() []*snapshot.AuthorizationPolicy {
	var out []*snapshot.AuthorizationPolicy
	for i := range r.IntN(4) {
		out = append(out, r.Policy(i, securityv1beta1.AuthorizationPolicy_Action(r.IntN(2))))
	}
	return out
}

func (r randomPolicies) Policy(i int, action securityv1beta1.AuthorizationPolicy_Action) *snapshot.AuthorizationPolicy {
	return &snapshot.AuthorizationPolicy{
		Meta: snapshot.Meta{Namespace: "a", Name: fmt.Sprint("p", i)}, DryRun: r.IntN(8) == 0, Spec: r.Spec(action),
	}
}

// randomRequest returns a request that the policies of testValues may match.
func randomRequest(r policymodel.Random) *policymodel.Request {
	addr := func(of ...string) netip.Addr { return netip.MustParseAddr(r.One(of...)) }
	out := &policymodel.Request{
		Principal: r.One("", "cluster.local/ns/a/sa/x", "old.example.com/ns/a/sa/x", "old.example.com/ns/b/sa/y", "other/ns/ab/sa/x"),
		Source:    addr("10.0.0.1", "10.0.0.2", "11.0.0.1"), Remote: addr("1.2.3.4", "10.0.0.1"), To: addr("10.0.0.9", "10.0.0.1"), Port: r.One("80", "81"),
		ServerName: r.One("", "a.example.com", "b.example.com", "a.example.com."),
	}
	if out.TCP = r.IntN(4) == 0; out.TCP {
		return out
	}
	out.Host, out.Method = r.One("a.example.com", "A.EXAMPLE.COM", "a.example.com:80", "a.example.com.", "u@a.example.com", "b"), r.One("GET", "get", "PUT", "G")
	out.Path = r.One("/a", "//a", "/a/b", "/x/b", "/a%2fb", `/a\b`, "/a/..%2fb", "/x/%2e%2e%5Cb", "/a.b", "/aXb", "/", "/a/", "/a/b/c",
		"/.%2fa", "/x/.%5Cb", "/a/.;x", "/a/..;/b", "/%2e;/a", "/a/..%3bx", "/a;x", "/a;x/b", "/;x/a", "/a/;/b", "/a;x%2fy/b", "//x/a", `/\x/a`, "///x/a/b", "//b",
		"/%61", "/a%2Eb", "/%2561", "/a%00", "/a\xff", "/x;/b", "/a/x;y/b", "/a/...", "/a%2f", "/a/;", "/x/%62;z", "/a/x;y", "/a;/x")
	out.Headers = map[string][]string{}
	if r.IntN(2) == 0 {
		out.Headers[r.One("x-y", "x-y", "x_y")] = [][]string{{"a"}, {"b"}, {"b", "a"}, {"ab, ca"}, {""}}[r.IntN(5)]
	}
	if r.IntN(2) == 0 {
		out.Claims = map[string]any{
			"iss": r.One("https://i", "i", "i/x"), "sub": r.One("s", "x/s"), "aud": []any{r.One("a", "b"), "c"}, "r": map[string]any{"s": r.One("a", "b")},
		}
	}
	return out
}
