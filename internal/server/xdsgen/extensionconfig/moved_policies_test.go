package extensionconfig

import (
	"slices"
	"testing"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/xdsgen/rbac"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// TestRequestsPolicies: a proxy that requests some filters of a protocol requests all of them, or
// its new ones are not in force yet.
func TestRequestsPolicies(t *testing.T) {
	v := View{Authorizations: wire.ListOf([]rbac.Authorization{
		{Action: securityv1beta1.AuthorizationPolicy_DENY}, {Action: securityv1beta1.AuthorizationPolicy_ALLOW},
	})}
	for _, tc := range []struct {
		names []string
		want  bool
	}{
		{nil, true},
		{[]string{rbac.FilterHTTPRBAC + ".deny"}, false},
		{[]string{rbac.FilterHTTPRBAC + ".deny", rbac.FilterNetworkRBAC + ".allow"}, false},
		{[]string{rbac.FilterHTTPRBAC + ".deny", rbac.FilterHTTPRBAC + ".allow"}, true},
		{[]string{rbac.FilterHTTPRBAC + ".deny", rbac.FilterHTTPRBAC + ".allow", rbac.FilterNetworkRBAC + ".deny"}, false},
		{[]string{rbac.FilterNetworkRBAC + ".deny", rbac.FilterNetworkRBAC + ".allow"}, true},
	} {
		if got := RequestsPolicies(v, func(name string) bool { return slices.Contains(tc.names, name) }); got != tc.want {
			t.Errorf("%q: %t, want %t", tc.names, got, tc.want)
		}
	}
}
