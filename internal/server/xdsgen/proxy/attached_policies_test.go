package proxy

import (
	"maps"
	"testing"

	securityv1beta1 "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestAbsentLabelsAttachNothing: a policy that no other value of a label attaches to a workload is
// not attached because the label is absent or empty, unless the policy names an empty value, and
// then only by the empty one.
func TestAbsentLabelsAttachNothing(t *testing.T) {
	t.Parallel()
	const key = "app"
	ref := func(kind, name string) []*typev1beta1.PolicyTargetReference {
		return []*typev1beta1.PolicyTargetReference{{Group: "gateway.networking.k8s.io", Kind: kind, Name: name}}
	}
	var policies []*securityv1beta1.AuthorizationPolicy
	for _, value := range []string{"", "a", snapshot.AnyTarget} {
		policies = append(policies,
			&securityv1beta1.AuthorizationPolicy{Selector: &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{key: value}}},
			&securityv1beta1.AuthorizationPolicy{Selector: &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{mesh.LabelGatewayName: value}}},
			&securityv1beta1.AuthorizationPolicy{TargetRefs: ref("Gateway", value)},
			&securityv1beta1.AuthorizationPolicy{TargetRef: ref("Gateway", value)[0]},
			&securityv1beta1.AuthorizationPolicy{TargetRefs: ref("", value)},
			&securityv1beta1.AuthorizationPolicy{TargetRefs: ref("GatewayClass", value)},
			&securityv1beta1.AuthorizationPolicy{TargetRefs: []*typev1beta1.PolicyTargetReference{{Kind: "Gateway", Name: value}, {}}},
		)
	}
	whole := map[string]string{key: "other", mesh.LabelGatewayName: "other"}
	for _, p := range policies {
		for label := range whole {
			less := maps.Clone(whole)
			delete(less, label)
			if IsAttached("shop", p, "shop", less) && !IsAttached("shop", p, "shop", whole) {
				t.Errorf("%v is attached to %v", p, less)
			}
			less[label] = ""
			if _, named := p.GetSelector().GetMatchLabels()[label]; !named && IsAttached("shop", p, "shop", less) && !IsAttached("shop", p, "shop", whole) {
				t.Errorf("%v is attached to %v", p, less)
			}
		}
		if IsAttached("shop", p, "shop", nil) {
			t.Errorf("%v is attached to a workload without labels", p)
		}
		if len(snapshot.TargetsOf(p)) > 0 && IsAttached("root", p, "shop", whole) {
			t.Errorf("%v of the root namespace is attached to a workload of another", p)
		}
	}
}
