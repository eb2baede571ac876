package server

import (
	"net/http"
	"strings"
	"testing"
)

// TestUnenforcedPoliciesAreAWarning: a security policy that applies to no proxy and appears while the
// server runs is a warning in /ready?verbose; the server stays ready.
func TestUnenforcedPoliciesAreAWarning(t *testing.T) {
	t.Parallel()
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
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
