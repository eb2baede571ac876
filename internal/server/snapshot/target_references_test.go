package snapshot

import (
	"testing"

	typev1beta1 "istio.io/api/type/v1beta1"
)

// TestAbsentLabelMatchesNoReference: a workload without the label of a Gateway, or with an empty
// one, is selected by no reference to a Gateway, not even by one without name.
func TestAbsentLabelMatchesNoReference(t *testing.T) {
	t.Parallel()
	const label = "gateway.networking.k8s.io/gateway-name"
	for _, name := range []string{"", "g", AnyTarget} {
		r := []*typev1beta1.PolicyTargetReference{{Group: groupGateway, Kind: "Gateway", Name: name}}
		filter := &EnvoyFilter{Gateways: []string{name}}
		for text, labels := range map[string]map[string]string{"no labels": nil, "other labels": {"app": "a"}, "empty label": {label: ""}} {
			if TargetsWorkload(r, labels) {
				t.Errorf("%q selects a workload with %s", name, text)
			}
			if filter.Selects(labels) {
				t.Errorf("EnvoyFilter of %q selects a workload with %s", name, text)
			}
		}
		if got, want := TargetsWorkload(r, map[string]string{label: "g"}), name != ""; got != want {
			t.Errorf("%q selects Gateway g: %t", name, got)
		}
	}
}
