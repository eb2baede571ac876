package analyze

import (
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// TestComparisonsAreBounded: the parts of matches count, such as address ranges, not only the matches.
func TestComparisonsAreBounded(t *testing.T) {
	t.Parallel()
	routes := make([]*networkingv1alpha3.TCPRoute, 200)
	for i := range routes {
		routes[i] = &networkingv1alpha3.TCPRoute{Match: []*networkingv1alpha3.L4MatchAttributes{{DestinationSubnets: make([]string, 200)}}}
	}
	compared := 0
	rules := rulesOf(routes, func(r *networkingv1alpha3.TCPRoute) ([]*networkingv1alpha3.L4MatchAttributes, bool) {
		return r.GetMatch(), false
	},
		func(a, b *networkingv1alpha3.L4MatchAttributes) bool {
			compared += len(a.GetDestinationSubnets()) * len(b.GetDestinationSubnets())
			return false
		}, &networkingv1alpha3.L4MatchAttributes{})
	if compared == 0 || compared > maxComparisons || len(rules) != len(routes) {
		t.Errorf("%d comparisons of %d rules, want at most %d", compared, len(rules), maxComparisons)
	}
}
