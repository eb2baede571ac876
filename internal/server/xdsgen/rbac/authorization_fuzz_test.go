package rbac

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	"google.golang.org/protobuf/proto"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire/rules"
	"github.com/meshctl/meshctl/internal/yamldoc"
	"github.com/meshctl/meshctl/test/policymodel"
)

// FuzzAuthorizationPolicy: Envoy's rules of any policy obey the rules of Envoy's API, have a size
// in proportion to the policy, and decide as the model does. Of a policy with a mistake, they
// permit at most what they permit without it.
func FuzzAuthorizationPolicy(f *testing.F) {
	const principal = "cluster.local/ns/a/sa/x"
	for _, spec := range []string{
		`{rules: [{from: [{source: {principals: ["cluster.local/ns/a/*"], notNamespaces: ["b*"]}}], to: [{operation: {paths: ["/a/{*}/b", "/x*"], methods: [GET]}}]}]}`,
		`{action: DENY, rules: [{to: [{operation: {paths: ["/a/b"], notHosts: ["*.example.com:80"], notPorts: ["81"]}}]}]}`,
		`{action: CUSTOM, provider: {name: p}, rules: [{when: [{key: "request.headers[x-y]", values: ["a*"], notValues: ["*b"]}]}]}`,
		`{rules: [{from: [{source: {requestPrincipals: ["https://i/s", "*/s"], remoteIpBlocks: ["10.0.0.0/8"]}}], when: [{key: "request.auth.claims[r][s]", values: ["*"]}]}]}`,
		`{action: AUDIT, rules: [{from: [{source: {serviceAccounts: [x, b/y]}}, {source: {trustDomains: ["*.com"]}}]}]}`,
		`{action: DENY, selector: {matchLabels: {"a b": c}}, rules: [{to: [{operation: {paths: ["/{**}/a", "/ok"]}}]}]}`,
		`{rules: [{to: [{operation: {unknown: [a]}}]}, {when: [{key: "experimental.envoy.filters.a[b]", values: ["[c]"]}]}]}`,
		`{action: NONE, rules: {}}`,
	} {
		f.Add(spec, "a.example.com", "GET", "/a/%2e./b", "a", principal)
	}
	f.Fuzz(func(t *testing.T, spec, host, method, path, header, principal string) {
		const most = 1 << 12
		if len(spec)+len(host)+len(method)+len(path)+len(header)+len(principal) > most {
			t.Skip("too long")
		}
		doc, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte("apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: a}\nspec: " + spec), Line: 1})
		if err != nil {
			t.Skip("not YAML")
		}
		r, err := (&source.Converter{Cluster: "c1"}).Decode(doc, snapshot.Place{})
		valid := err == nil
		object := r.Object
		if !valid {
			object = r.Closed
		}
		p, ok := object.(*snapshot.AuthorizationPolicy)
		if !ok {
			t.Skip("not a policy")
		}
		for _, tcp := range []bool{false, true} {
			checkFuzzedRules(t, p, len(spec), tcp, !valid)
		}
		if !strings.HasPrefix(path, "/") || strings.Contains(path, "\n") {
			t.Skip("Envoy refuses the path")
		}
		if !valid || p.Spec.GetAction() > securityv1beta1.AuthorizationPolicy_DENY || !isComparable(p.Spec) {
			return
		}
		req := &policymodel.Request{
			Host: host, Method: method, Path: path, Headers: map[string][]string{"x_y": {header}}, Principal: principal,
			Source: netip.MustParseAddr("10.0.0.1"), Remote: netip.MustParseAddr("10.0.0.2"), To: netip.MustParseAddr("10.0.0.9"), Port: "80",
		}
		policies := []*snapshot.AuthorizationPolicy{p}
		for _, raw := range []bool{true, false} {
			if !raw && (!utf8.ValidString(path) || unescapedByEnvoy.MatchString(path)) {
				continue // no normalized path
			}
			if got, want := rulesFor(t, policies, raw).permit(t, req), policymodel.Allowed(modelOf(policies), testDomains, req); got != want {
				t.Errorf("%+v: permitted %t, the model wants %t", req, got, want)
			}
		}
	})
}

// unescapedByEnvoy matches what normalization unescapes.
var unescapedByEnvoy = regexp.MustCompile(`%(?:4[1-9A-Fa-f]|5[0-9Aa]|6[1-9A-Fa-f]|7[0-9AaEe]|3[0-9]|2[DdEe]|5[Ff])`)

// checkFuzzedRules checks Envoy's rules of a policy.
func checkFuzzedRules(t *testing.T, p *snapshot.AuthorizationPolicy, size int, tcp, closed bool) {
	t.Helper()
	a := Authorization{Action: p.Spec.GetAction(), Policies: wire.ListOf([]*snapshot.AuthorizationPolicy{p}), domains: wire.ListOf(testDomains), name: "p"}
	enforced, recorded := a.Rules(RuleMaker{network: tcp})
	for _, r := range []*rbacv3.RBAC{enforced, recorded} {
		if r == nil {
			continue
		}
		if err := rules.Check(r); err != nil {
			t.Error(err)
		}
		if got := proto.Size(r); got > 1<<12+1<<9*size {
			t.Errorf("%d bytes of rules for a policy of %d bytes", got, size)
		}
		if closed && a.Action == securityv1beta1.AuthorizationPolicy_ALLOW && len(r.GetPolicies()) > len(p.Spec.GetRules())-len(p.Doubtful)+1 {
			t.Errorf("%d rules permit, and %d of %d have a mistake", len(r.GetPolicies()), len(p.Doubtful), len(p.Spec.GetRules()))
		}
	}
}

// isComparable reports whether the model and the evaluator of the tests know all attributes of a
// policy, and compare its values as texts.
func isComparable(spec *securityv1beta1.AuthorizationPolicy) bool {
	for _, r := range spec.GetRules() {
		for _, w := range r.GetWhen() {
			if w.GetKey() != "request.headers[x-y]" {
				return false
			}
		}
	}
	return true
}
