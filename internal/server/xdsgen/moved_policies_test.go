package xdsgen

import (
	"slices"
	"testing"

	securityv1beta1 "istio.io/api/security/v1beta1"
)

// TestRequestsPolicies: a proxy that requests some filters of a protocol requests all of them, or
// its new ones are not in force yet.
func TestRequestsPolicies(t *testing.T) {
	v := extensionView{authorizations: listOf([]authorization{
		{action: securityv1beta1.AuthorizationPolicy_DENY}, {action: securityv1beta1.AuthorizationPolicy_ALLOW},
	})}
	for _, tc := range []struct {
		names []string
		want  bool
	}{
		{nil, true},
		{[]string{filterHTTPRBAC + ".deny"}, false},
		{[]string{filterHTTPRBAC + ".deny", filterNetworkRBAC + ".allow"}, false},
		{[]string{filterHTTPRBAC + ".deny", filterHTTPRBAC + ".allow"}, true},
		{[]string{filterHTTPRBAC + ".deny", filterHTTPRBAC + ".allow", filterNetworkRBAC + ".deny"}, false},
		{[]string{filterNetworkRBAC + ".deny", filterNetworkRBAC + ".allow"}, true},
	} {
		if got := RequestsPolicies(v, func(name string) bool { return slices.Contains(tc.names, name) }); got != tc.want {
			t.Errorf("%q: %t, want %t", tc.names, got, tc.want)
		}
	}
}
