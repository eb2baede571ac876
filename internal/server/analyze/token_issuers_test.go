package analyze_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/load"
)

// TestTokenIssuers: a condition on tokens that no RequestAuthentication of the workloads can meet is
// reported, and others are not.
func TestTokenIssuers(t *testing.T) {
	t.Parallel()
	const mesh = `
{apiVersion: v1, kind: Pod, metadata: {name: a-1, namespace: shop, labels: {app: a}}, spec: {containers: []}, status: {podIP: 10.1.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b-1, namespace: shop, labels: {app: b}}, spec: {containers: []}, status: {podIP: 10.1.0.2}}
---
{apiVersion: security.istio.io/v1, kind: RequestAuthentication, metadata: {name: tokens, namespace: shop}, spec: {selector: {matchLabels: {app: a}}, jwtRules: [{issuer: "https://one.example", jwksUri: "https://one.example/keys"}, {issuer: two@example, jwksUri: "https://two.example/keys"}]}}
---
{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: users, namespace: shop}, spec: {SELECTrules: [{RULE}]}}
`
	const from = `from: [{source: {%s}}]`
	for name, tt := range map[string]struct{ selector, rule, want string }{
		"any principal":                       {"a", fmt.Sprintf(from, `requestPrincipals: ["*"]`), ""},
		"a principal of an issuer":            {"a", fmt.Sprintf(from, `requestPrincipals: ["https://one.example/bob"]`), ""},
		"the subjects of an issuer":           {"a", fmt.Sprintf(from, `requestPrincipals: ["two@example/*"]`), ""},
		"the prefix of an issuer":             {"a", fmt.Sprintf(from, `requestPrincipals: ["https://one.*"]`), ""},
		"a subject of any issuer":             {"a", fmt.Sprintf(from, `requestPrincipals: ["*/bob"]`), ""},
		"without a selector":                  {"", fmt.Sprintf(from, `requestPrincipals: ["https://one.example/bob"]`), ""},
		"another issuer":                      {"a", fmt.Sprintf(from, `requestPrincipals: ["https://other.test/bob"]`), `Error MSH0125 "https://other.test/bob" matches no request: the RequestAuthentications of the workloads accept only tokens of https://one.example, two@example`},
		"a misspelled issuer":                 {"a", fmt.Sprintf(from, `requestPrincipals: ["https://onee.example/bob"]`), `did you mean https://one.example/bob?`},
		"an issuer with a slash too much":     {"a", fmt.Sprintf(from, `requestPrincipals: ["https://one.example//bob", "https://one.examp"]`), `Warning MSH0125 "https://one.examp" matches no request`},
		"one of several":                      {"a", fmt.Sprintf(from, `requestPrincipals: ["two@example/*", "three@example.org/*"]`), `Warning MSH0125 "three@example.org/*"`},
		"an issuer that is only a host":       {"a", fmt.Sprintf(from, `notRequestPrincipals: ["one.example/*"]`), `"one.example/*" matches no request`},
		"a workload without tokens":           {"b", fmt.Sprintf(from, `requestPrincipals: ["*"]`), `"*" matches no request: no RequestAuthentication applies to the workloads of the policy`},
		"a principal in when":                 {"a", `when: [{key: request.auth.principal, values: ["https://other.test/bob"]}]`, `"https://other.test/bob" matches no request`},
		"a claim":                             {"a", `when: [{key: "request.auth.claims[groups]", values: [admin]}]`, ""},
		"a claim of a workload without token": {"b", `when: [{key: "request.auth.claims[groups]", values: [admin]}]`, `no RequestAuthentication applies`},
		"the claim of an issuer":              {"a", `when: [{key: "request.auth.claims[iss]", values: ["https://one.example"]}]`, ""},
		"the claim of another issuer":         {"a", `when: [{key: "request.auth.claims[iss]", values: ["https://other.test"]}]`, `"https://other.test" matches no request`},
		"a header":                            {"b", `when: [{key: "request.headers[a]", values: [b]}]`, ""},
		"a selector of no pod":                {"c", fmt.Sprintf(from, `requestPrincipals: ["*"]`), ""},
	} {
		selector := ""
		if tt.selector != "" {
			selector = "selector: {matchLabels: {app: " + tt.selector + "}}, "
		}
		text := strings.NewReplacer("SELECT", selector, "RULE", tt.rule).Replace(mesh)
		found := ""
		for _, f := range check(t, []load.Cluster{{ID: "east", Files: []load.File{{Name: "mesh.yaml", Text: []byte(text)}}}}) {
			if f.Code == "MSH0125" {
				found += fmt.Sprintf("%s %s %s\n", f.Severity(), f.Code, f.Message)
			}
		}
		if tt.want == "" && found != "" || !strings.Contains(found, tt.want) {
			t.Errorf("%s: want %q, found %q", name, tt.want, found)
		}
	}
}
