package server

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	jwtauthnv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/kube"
)

// policyDefinitions returns definitions of the kinds of security policies that accept everything.
func policyDefinitions() string {
	var out strings.Builder
	out.WriteString("{apiVersion: v1, kind: Namespace, metadata: {name: apps}}\n---\n")
	for _, kind := range []string{"AuthorizationPolicy", "RequestAuthentication", "PeerAuthentication"} {
		plural := strings.ReplaceAll(strings.ToLower(kind)+"s", "ys", "ies")
		fmt.Fprintf(&out, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]s.security.istio.io}
spec:
  group: security.istio.io
  scope: Namespaced
  names: {kind: %[1]s, plural: %[2]s, singular: %[3]s}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
---
`, kind, plural, strings.ToLower(kind))
	}
	return out.String()
}

// TestInvalidPoliciesOfAPI: policies of a Kubernetes API that become invalid permit no more than
// before, and are reported. The same holds for a control plane that starts later and knows no valid
// version of them.
func TestInvalidPoliciesOfAPI(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Start(t)
	c.Apply(t, policyDefinitions())
	c.Kubectl(t, "", "wait", "--for=condition=established", "--timeout=60s", "crd", "--all")
	policy := func(name, spec string) string {
		return fmt.Sprintf("{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: %s, namespace: apps}, spec: %s}\n---\n", name, spec)
	}
	peers := func(mode string) string {
		return "{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: default, namespace: apps}, spec: {mtls: {mode: " + mode + "}}}\n"
	}
	tokens := func(second string) string {
		const keys = `jwks: '{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}'`
		return "---\n{apiVersion: security.istio.io/v1, kind: RequestAuthentication, metadata: {name: tokens, namespace: apps}, spec: {jwtRules: [{issuer: a, " +
			keys + "}, {" + second + ", " + keys + "}]}}\n"
	}
	const permits = `{rules: [{to: [{operation: {paths: [/a]}}]}, {to: [{operation: {paths: [/b]}}]}]}`
	c.Apply(t, policy("readers", permits)+policy("editors", permits)+
		policy("no-admin", `{action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]}`)+
		policy("no-delete", `{action: DENY, rules: [{to: [{operation: {methods: [DELETE]}}]}]}`)+peers("PERMISSIVE")+tokens("issuer: b"))
	// run starts a control plane, and returns it with its log and a proxy.
	run := func(t *testing.T) (*Server, *text, *testProxy) {
		t.Helper()
		logs := new(text)
		s := start(t, func(cfg *Config) {
			cfg.ConfigDir, cfg.KubeAccess = "", c.Config()
			cfg.Log = slog.New(slog.NewTextHandler(logs, nil))
		})
		p := connectIn(t, s, "web", "apps")
		p.subscribeAll(t)
		return s, logs, p
	}
	invalid := policy("readers", strings.Replace(permits, "[/b]", "[/b], ports: [many]", 1)) +
		policy("editors", strings.Replace(permits, "[/b]", "[/b], unless: x", 1)) +
		policy("no-admin", `{action: DENY, rules: [{to: [{operation: {paths: [/admin], ports: [many]}}]}]}`) +
		policy("no-delete", `{action: DENI, rules: [{to: [{operation: {methods: [DELETE]}}]}]}`) + peers("STRICKT") + tokens("issuer: ''")
	objects := []string{"AuthorizationPolicy apps/readers", "AuthorizationPolicy apps/editors", "AuthorizationPolicy apps/no-admin", "AuthorizationPolicy apps/no-delete", "PeerAuthentication apps/default", "RequestAuthentication apps/tokens"}
	reported := func(t *testing.T, s *Server, logs *text) {
		t.Helper()
		waitFor(t, "a report of each object", func() bool {
			code, body := get(t, s, "/ready?verbose")
			return code == http.StatusOK && !slices.ContainsFunc(objects, func(o string) bool {
				return !strings.Contains(body, o) || !strings.Contains(logs.String(), o)
			})
		})
	}
	t.Run("while the control plane runs", func(t *testing.T) {
		s, logs, p := run(t)
		p.wantRules(t, []string{"editors[0]", "editors[1]", "readers[0]", "readers[1]"}, []string{"no-admin[0]", "no-delete[0]"}, "a", "b")
		p.wantPlaintext(t, true)
		c.Apply(t, invalid)
		reported(t, s, logs)
		again := connectIn(t, s, "again", "apps")
		again.subscribeAll(t)
		// What may be of a later version counts at once, and permits less.
		again.wantRules(t, []string{"editors[0]", "readers[0]", "readers[1]"}, []string{"no-admin[0]", "no-delete[0]"}, "a", "b")
		again.wantPlaintext(t, false)
	})
	t.Run("after a restart", func(t *testing.T) {
		s, logs, p := run(t)
		p.wantRules(t, []string{"editors[0]", "readers[0]"}, []string{"no-admin[0]", "no-delete[0]"}, "a", "nobody")
		p.wantPlaintext(t, false)
		reported(t, s, logs)
	})
}

// wantRules checks the names of the rules in the proxy's extensions for HTTP, and the issuers of its
// tokens.
func (p *testProxy) wantRules(t *testing.T, allow, deny []string, issuers ...string) {
	t.Helper()
	const tokens = "envoy.filters.http.jwt_authn"
	want := map[string][]string{"envoy.filters.http.rbac.allow": allow, "envoy.filters.http.rbac.deny": deny, tokens: issuers}
	p.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.ExtensionType, ResourceNamesSubscribe: slices.Sorted(maps.Keys(want))})
	resp := p.next(t)
	if resp.GetTypeUrl() != xdswire.ExtensionType {
		t.Fatalf("sent %s, want extensions", resp.GetTypeUrl())
	}
	got := make(map[string][]string)
	for _, r := range resp.GetResources() {
		extension := new(corev3.TypedExtensionConfig)
		if err := r.GetResource().UnmarshalTo(extension); err != nil {
			t.Fatal(err)
		}
		config, err := extension.GetTypedConfig().UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		switch config := config.(type) {
		case *httprbacv3.RBAC:
			for name := range config.GetRules().GetPolicies() {
				got[r.GetName()] = append(got[r.GetName()], strings.NewReplacer("ns[apps]-policy[", "", "]-rule[", "[").Replace(name))
			}
		case *jwtauthnv3.JwtAuthentication:
			for _, provider := range config.GetProviders() {
				got[r.GetName()] = append(got[r.GetName()], provider.GetIssuer())
			}
		}
		slices.Sort(got[r.GetName()])
	}
	if !maps.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("rules %v, want %v", got, want)
	}
}

// wantPlaintext checks whether the listener for redirected connections accepts plaintext.
func (p *testProxy) wantPlaintext(t *testing.T, want bool) {
	t.Helper()
	plain := 0
	for _, r := range p.listeners {
		listener := new(listenerv3.Listener)
		if err := r.GetResource().UnmarshalTo(listener); err != nil {
			t.Fatal(err)
		}
		for _, c := range listener.GetFilterChains() {
			if listener.GetName() == "virtualInbound" && c.GetTransportSocket() == nil && !strings.HasSuffix(c.GetName(), "-blackhole") {
				plain++
			}
		}
	}
	if got := plain > 0; got != want {
		t.Errorf("the proxy accepts plaintext: %t, want %t", got, want)
	}
}
