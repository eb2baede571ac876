package facts

import (
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

func TestMatchesLabels(t *testing.T) {
	t.Parallel()
	labels := map[string]string{"env": "prod", "team": "a"}
	expr := func(key, operator string, values ...string) *meshv1alpha1.LabelSelector {
		return &meshv1alpha1.LabelSelector{
			MatchLabels:      map[string]string{"env": "prod"},
			MatchExpressions: []*meshv1alpha1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}},
		}
	}
	for _, tt := range []struct {
		selector *meshv1alpha1.LabelSelector
		want     bool
	}{
		{&meshv1alpha1.LabelSelector{}, true},
		{&meshv1alpha1.LabelSelector{MatchLabels: map[string]string{"env": "test"}}, false},
		{expr("team", "In", "b", "a"), true},
		{expr("team", "In", "b"), false},
		{expr("other", "In", ""), false},
		{expr("team", "NotIn", "b"), true},
		{expr("team", "NotIn", "a"), false},
		{expr("other", "NotIn", "a"), true},
		{expr("team", "Exists"), true},
		{expr("other", "Exists"), false},
		{expr("team", "DoesNotExist"), false},
		{expr("other", "DoesNotExist"), true},
	} {
		if got := matchesLabels(tt.selector, labels); got != tt.want {
			t.Errorf("%v matches: %v, want %v", tt.selector, got, tt.want)
		}
	}
}
