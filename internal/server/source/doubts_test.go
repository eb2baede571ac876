package source_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// warningsOf returns the fields of the warnings of a kind about an object, which is valid.
func warningsOf(t *testing.T, text string, kind fields.ProblemKind) []string {
	t.Helper()
	doc, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte(text), Line: 1})
	if err != nil {
		t.Fatal(err)
	}
	c := &source.Converter{Cluster: "c1"}
	r, err := c.Decode(doc, snapshot.Place{})
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := doc.JSON()
	if err != nil {
		t.Fatal(err)
	}
	fromAPI := r
	if r.Key.Kind != snapshot.KindMeshSettings {
		if fromAPI, err = c.DecodeJSON(asJSON); err != nil {
			t.Fatal(err)
		}
	}
	fieldsOf := func(r source.Result) []string {
		var out []string
		for _, w := range r.Warnings {
			if w.Kind == kind {
				out = append(out, w.Field)
			}
		}
		return out
	}
	if !slices.Equal(fieldsOf(r), fieldsOf(fromAPI)) {
		t.Errorf("%s: the file has %q, the API %q", text, fieldsOf(r), fieldsOf(fromAPI))
	}
	if r.Security && r.Unenforced(nil, false) != (kind == fields.Unused && len(fieldsOf(r)) > 0) {
		t.Errorf("%s: a policy in force counts as one that is not", text)
	}
	return fieldsOf(r)
}

// TestEmptyListsOfRules: empty lists of a rule that permits are reported, wherever they are.
func TestEmptyListsOfRules(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: a}\nspec: "
	for spec, want := range map[string][]string{
		"{rules: [{from: []}]}": {"spec.rules[0].from"},
		"{rules: [{from: null, to: [{operation: {methods: [GET]}}]}]}":             {"spec.rules[0].from"},
		"{action: ALLOW, rules: [{}, {to: [], when: []}]}":                         {"spec.rules[1].to", "spec.rules[1].when"},
		"{rules: [{from: [{source: {namespaces: [], ipBlocks: [10.0.0.1]}}]}]}":    {"spec.rules[0].from[0].source.namespaces"},
		"{rules: [{to: [{operation: {methods: [GET], notPaths: []}}]}]}":           {"spec.rules[0].to[0].operation.notPaths"},
		"{rules: [{when: [{key: source.namespace, values: [], notValues: [a]}]}]}": {"spec.rules[0].when[0].values"},
		"{rules: []}":                         nil,
		"{rules: [{}]}":                       nil,
		"{action: DENY, rules: [{from: []}]}": nil,
		"{rules: [{from: [{source: {namespaces: [a]}}]}]}": nil,
	} {
		if got := warningsOf(t, head+spec, fields.EmptyList); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", spec, got, want)
		}
	}
}

// TestPrivateKeysInKeySets: a private key in a RequestAuthentication is reported; a secret key, which
// has no public part, is not.
func TestPrivateKeysInKeySets(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: p, namespace: a}\nspec: {jwtRules: [{issuer: i, jwks: '{\"keys\": ["
	public := `{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`
	private := strings.TrimSuffix(public, "}") + `, "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"}`
	secret := `{"kty": "oct", "k": "` + strings.Repeat("abcd", 16) + `"}`
	for keys, want := range map[string][]string{public: nil, secret: nil, private: {"spec.jwtRules[0].jwks"}, public + "," + private: {"spec.jwtRules[0].jwks"}} {
		if got := warningsOf(t, head+keys+"]}'}]}", fields.PrivateKey); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", keys, got, want)
		}
	}
}

// TestServicesOfProviders: a provider whose service is no host is not used, and reported.
func TestServicesOfProviders(t *testing.T) {
	t.Parallel()
	for service, want := range map[string]int{
		"opa.policy.svc.cluster.local": 0, "policy/opa.policy.svc.cluster.local": 0, "Opa.example.com": 0, "opa": 0, "10.0.0.1": 0,
		"opa:9000": 1, "a/b/opa": 1, "http://opa": 1, "/opa": 1, "A_b/opa": 1, "opa/": 1, "*.opa": 1,
	} {
		for _, provider := range []string{"zipkin", "opentelemetry", "envoyOtelAls", "envoyExtAuthzGrpc", "envoyExtAuthzHttp"} {
			text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'extensionProviders: [{name: p, " + provider + ": {service: \"" + service + "\", port: 9000}}]'}"
			if got := warningsOf(t, text, fields.Unused); len(got) != want {
				t.Errorf("%s with the service %s: %q", provider, service, got)
			}
		}
	}
}
