package snapshot

import (
	"slices"

	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
)

// AnyTarget stands for every kind or name in a reference of a security policy that is not fully
// understood. No reference of a user has it.
const AnyTarget = "*"

// groupGateway is the API group of a Gateway of the Kubernetes Gateway API.
const groupGateway = "gateway.networking.k8s.io"

// Targeting is a policy that may refer to the objects to which it applies.
type Targeting interface {
	GetTargetRef() *typev1beta1.PolicyTargetReference
	GetTargetRefs() []*typev1beta1.PolicyTargetReference
}

// TargetsOf returns the references of a policy to the objects to which it applies.
func TargetsOf(t Targeting) []*typev1beta1.PolicyTargetReference {
	if r := t.GetTargetRef(); r != nil {
		return append(slices.Clip(t.GetTargetRefs()), r)
	}
	return t.GetTargetRefs()
}

// TargetsWorkload reports whether one of the references selects a workload of the policy's
// namespace with these labels: it names the Gateway of the workload.
func TargetsWorkload(targets []*typev1beta1.PolicyTargetReference, labels map[string]string) bool {
	return slices.ContainsFunc(targets, func(r *typev1beta1.PolicyTargetReference) bool {
		if r.GetKind() == AnyTarget {
			return true
		}
		gateway := labels[mesh.LabelGatewayName]
		return gateway != "" && r.GetKind() == "Gateway" && r.GetGroup() == groupGateway && (r.GetName() == gateway || r.GetName() == AnyTarget)
	})
}
