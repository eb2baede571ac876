package facts

import (
	"testing"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// TestMatchesWithin: a match of a delegate must be within the delegating match.
func TestMatchesWithin(t *testing.T) {
	t.Parallel()
	exact := func(s string) *networkingv1alpha3.StringMatch {
		return &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Exact{Exact: s}}
	}
	prefix := func(s string) *networkingv1alpha3.StringMatch {
		return &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Prefix{Prefix: s}}
	}
	regex := &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Regex{Regex: "a"}}
	for _, c := range []struct {
		root, part *networkingv1alpha3.StringMatch
		want       bool
	}{
		{nil, regex, true},
		{exact("a"), nil, true},
		{exact("a"), exact("a"), true},
		{exact("a"), exact("b"), false},
		{exact("a"), prefix("a"), false},
		{prefix("/a"), prefix("/a/b"), true},
		{prefix("/a"), exact("/ab"), true},
		{prefix("/a/b"), prefix("/a"), false},
		{regex, exact("a"), false},
		{prefix("a"), regex, false},
	} {
		if got := within(c.root, c.part); got != c.want {
			t.Errorf("%v within %v: %t", c.part, c.root, got)
		}
	}
}

// TestDelegateClients: the conditions of a delegate and of the delegating route on the client hold
// both.
func TestDelegateClients(t *testing.T) {
	t.Parallel()
	type match = networkingv1alpha3.HTTPMatchRequest
	for name, c := range map[string]struct{ root, part, want *match }{
		"of one":           {&match{SourceNamespace: "a"}, &match{SourceLabels: map[string]string{"b": "c"}, Gateways: []string{"g/g"}}, &match{SourceNamespace: "a", SourceLabels: map[string]string{"b": "c"}, Gateways: []string{"g/g"}}},
		"of the root":      {&match{SourceLabels: map[string]string{"a": "b"}, Gateways: []string{"mesh"}}, &match{}, &match{SourceLabels: map[string]string{"a": "b"}, Gateways: []string{"mesh"}}},
		"labels":           {&match{SourceLabels: map[string]string{"a": "b"}}, &match{SourceLabels: map[string]string{"c": "d", "a": "b"}}, &match{SourceLabels: map[string]string{"a": "b", "c": "d"}}},
		"other labels":     {&match{SourceLabels: map[string]string{"a": "b"}}, &match{SourceLabels: map[string]string{"a": "c"}}, nil},
		"an empty label":   {&match{SourceLabels: map[string]string{"a": ""}}, &match{SourceLabels: map[string]string{"a": "c"}}, nil},
		"other namespaces": {&match{SourceNamespace: "a"}, &match{SourceNamespace: "b"}, nil},
		"common gateways":  {&match{Gateways: []string{"mesh", "g/g"}}, &match{Gateways: []string{"g/g", "g/h"}}, &match{Gateways: []string{"g/g"}}},
		"other gateways":   {&match{Gateways: []string{"mesh"}}, &match{Gateways: []string{"g/g"}}, nil},
	} {
		if got := mergeMatches(c.root, c.part); !proto.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
