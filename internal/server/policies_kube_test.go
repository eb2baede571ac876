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
	const permits = `{rules: [{to: [{operation: {paths: [/a]}}]}, {to: [{operation: {paths: [/b]}}]}]}`
	c.Apply(t, policy("readers", permits)+policy("editors", permits)+
		policy("no-admin", `{action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]}`)+
		policy("no-delete", `{action: DENY, rules: [{to: [{operation: {methods: [DELETE]}}]}]}`)+peers("PERMISSIVE"))
	// run starts a control plane, and returns it with its log and a proxy.
	run := func(t *testing.T) (*Server, *text, *proxy) {
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
		policy("no-delete", `{action: DENI, rules: [{to: [{operation: {methods: [DELETE]}}]}]}`) + peers("STRICKT")
	objects := []string{"AuthorizationPolicy apps/readers", "AuthorizationPolicy apps/editors", "AuthorizationPolicy apps/no-admin", "AuthorizationPolicy apps/no-delete", "PeerAuthentication apps/default"}
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
		p.wantRules(t, []string{"editors[0]", "editors[1]", "readers[0]", "readers[1]"}, []string{"no-admin[0]", "no-delete[0]"})
		c.Apply(t, invalid)
		reported(t, s, logs)
		again := connectIn(t, s, "again", "apps")
		again.subscribeAll(t)
		// What may be of a later version counts at once, and permits less.
		again.wantRules(t, []string{"editors[0]", "readers[0]", "readers[1]"}, []string{"no-admin[0]", "no-delete[0]"})
	})
	t.Run("after a restart", func(t *testing.T) {
		s, logs, p := run(t)
		p.wantRules(t, []string{"editors[0]", "readers[0]"}, []string{"no-admin[0]", "no-delete[0]"})
		reported(t, s, logs)
	})
}

// wantRules checks the names of the rules in the proxy's extensions for HTTP.
func (p *proxy) wantRules(t *testing.T, allow, deny []string) {
	t.Helper()
	want := map[string][]string{"envoy.filters.http.rbac.allow": allow, "envoy.filters.http.rbac.deny": deny}
	p.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.ExtensionType, ResourceNamesSubscribe: slices.Sorted(maps.Keys(want))})
	resp := p.next(t)
	if resp.GetTypeUrl() != xdswire.ExtensionType {
		t.Fatalf("sent %s, want extensions", resp.GetTypeUrl())
	}
	got := make(map[string][]string)
	for _, r := range resp.GetResources() {
		extension, filter := new(corev3.TypedExtensionConfig), new(httprbacv3.RBAC)
		if err := r.GetResource().UnmarshalTo(extension); err != nil {
			t.Fatal(err)
		}
		if err := extension.GetTypedConfig().UnmarshalTo(filter); err != nil {
			t.Fatal(err)
		}
		for name := range filter.GetRules().GetPolicies() {
			got[r.GetName()] = append(got[r.GetName()], strings.NewReplacer("ns[apps]-policy[", "", "]-rule[", "[").Replace(name))
		}
		slices.Sort(got[r.GetName()])
	}
	if !maps.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("rules %v, want %v", got, want)
	}
}
