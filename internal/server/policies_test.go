package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestUnenforcedPoliciesAreAWarning: an ignored security policy that applies to no proxy and appears
// while the server runs is a warning in /ready?verbose; the server stays ready.
func TestUnenforcedPoliciesAreAWarning(t *testing.T) {
	t.Parallel()
	var dir string
	s := start(t, func(c *Config) {
		dir, c.IgnorePolicies = c.ConfigDir, true
		write(t, dir, "service.yaml", serviceYAML(1))
	})
	const warning = "\nwarning: cluster cluster1 has security policies that are not enforced: AuthorizationPolicy apps/deny-all\n"
	if _, body := get(t, s, "/ready?verbose"); strings.Contains(body, "warning") {
		t.Errorf("/ready?verbose says %s", body)
	}
	write(t, dir, "policy.yaml", "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: deny-all, namespace: apps}\nspec: {targetRefs: [{kind: Service, name: web}], action: DENY, rules: [{}]}\n")
	waitFor(t, "warning", func() bool {
		code, body := get(t, s, "/ready?verbose")
		return code == http.StatusOK && strings.Contains(body, warning)
	})
}

// TestPoliciesOfTenantsDoNotPreventAStart: a server starts with security policies that no proxy can
// enforce, and their namespace refuses.
func TestPoliciesOfTenantsDoNotPreventAStart(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: security.istio.io/v1\nmetadata: {name: p, namespace: apps}\n"
	for name, policy := range map[string]string{
		"Service":      head + "kind: AuthorizationPolicy\nspec: {targetRefs: [{kind: Service, name: web}], rules: [{}]}\n",
		"no name":      head + "kind: AuthorizationPolicy\nspec: {targetRefs: [{kind: Service}], action: DENY, rules: [{}]}\n",
		"misspelt":     head + "kind: AuthorisationPolicy\nspec: {action: DENY, rules: [{}]}\n",
		"version":      strings.Replace(head, "/v1", "/v9", 1) + "kind: AuthorizationPolicy\nspec: {rules: [{}]}\n",
		"no selection": head + "kind: PeerAuthentication\nspec: {selector: {matchLabels: {a: '*'}}, mtls: {mode: DISABLE}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, func(c *Config) {
				write(t, c.ConfigDir, "service.yaml", serviceYAML(1))
				write(t, c.ConfigDir, "policy.yaml", policy)
			})
			waitFor(t, "the server", func() bool {
				code, _ := get(t, s, "/ready")
				return code == http.StatusOK
			})
		})
	}
}

// refusalYAML returns an AuthorizationPolicy for all workloads of a namespace.
func refusalYAML(namespace string, number int, path string) string {
	return fmt.Sprintf(`apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: policy-%d, namespace: %s}
spec: {action: DENY, rules: [{to: [{operation: {paths: [%q]}}]}]}
---
`, number, namespace, path)
}

// TestPolicyIsGeneratedOnce: with 1,000 policies in 200 namespaces, a changed policy generates the
// extensions for HTTP and TCP of the workloads that it selects, once, and nothing else.
func TestPolicyIsGeneratedOnce(t *testing.T) {
	const namespaces, each = 200, 5
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
		write(t, dir, "service.yaml", serviceYAML(1))
		write(t, dir, "slice.yaml", sliceYAML(1, "10.1.0.1"))
		for n := range namespaces {
			var text strings.Builder
			for i := range each {
				text.WriteString(refusalYAML(fmt.Sprint("apps-", n), i, "/a"))
			}
			write(t, dir, fmt.Sprintf("policies-%d.yaml", n), text.String())
		}
	})
	const inHTTP, inTCP = "envoy.filters.http.rbac.deny", "envoy.filters.network.rbac.deny"
	var all []*testProxy
	for i := range 20 {
		p := connectIn(t, s, fmt.Sprint("proxy-", i), fmt.Sprint("apps-", i%10))
		p.subscribeAll(t)
		p.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.ExtensionType, ResourceNamesSubscribe: []string{inHTTP, inTCP}})
		if got := p.next(t); got.GetTypeUrl() != xdswire.ExtensionType || len(got.GetResources()) != 2 {
			t.Fatalf("sent %s with %d resources, want two extensions", got.GetTypeUrl(), len(got.GetResources()))
		}
		all = append(all, p)
	}
	check := generationCheck(t, s, xdswire.ExtensionType)
	write(t, dir, "policies-3.yaml", refusalYAML("apps-3", 0, "/b")+refusalYAML("apps-3", 1, "/a")+refusalYAML("apps-3", 2, "/a")+refusalYAML("apps-3", 3, "/a")+refusalYAML("apps-3", 4, "/a"))
	check("another path", []*testProxy{all[3], all[13]}, map[string]float64{"ECDS": 2}, inHTTP)
	write(t, dir, "policies-150.yaml", refusalYAML("apps-150", 0, "/b"))
	write(t, dir, "policies-4.yaml", refusalYAML("apps-4", 0, "/b"))
	check("policies of a namespace without proxies, and of another", []*testProxy{all[4], all[14]}, map[string]float64{"ECDS": 2}, inHTTP, inTCP)
	for _, p := range all {
		if len(p.frames) > 0 {
			t.Errorf("sent %s besides", p.next(t).GetTypeUrl())
		}
	}
}
