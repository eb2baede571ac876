package routes

import (
	"math/rand/v2"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// TestEveryRequest: the answer for a match is that for the condition that becomes of it.
func TestEveryRequest(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	text := func() *networkingv1alpha3.StringMatch {
		value := []string{"/", "", ".*", "/a"}[rnd.IntN(4)]
		return []*networkingv1alpha3.StringMatch{
			nil,
			{},
			{MatchType: &networkingv1alpha3.StringMatch_Exact{Exact: value}},
			{MatchType: &networkingv1alpha3.StringMatch_Prefix{Prefix: value}},
			{MatchType: &networkingv1alpha3.StringMatch_Regex{Regex: value}},
		}[rnd.IntN(5)]
	}
	// Most fields are not set, so that many matches hold for every request.
	seldom := func() *networkingv1alpha3.StringMatch {
		if rnd.IntN(8) > 0 {
			return nil
		}
		return text()
	}
	of := func(name string) map[string]*networkingv1alpha3.StringMatch {
		if rnd.IntN(8) > 0 {
			return nil
		}
		return map[string]*networkingv1alpha3.StringMatch{name: text()}
	}
	every := 0
	for range 20_000 {
		m := &networkingv1alpha3.HTTPMatchRequest{
			Uri: text(), Method: seldom(), Authority: seldom(), Scheme: seldom(), IgnoreUriCase: rnd.IntN(2) == 0,
			Headers: of([]string{"a", "@request.auth.claims.a"}[rnd.IntN(2)]), WithoutHeaders: of([]string{"a", "@request.auth.claims.a"}[rnd.IntN(2)]),
			QueryParams: of("q"),
		}
		got, want := everyRequest(m), IsCatchAll(RouteMatch(m))
		if got != want {
			t.Fatalf("%v: %v, want %v", m, got, want)
		}
		if got {
			every++
		}
	}
	if every < 1000 {
		t.Errorf("only %d matches hold for every request", every)
	}
}
