package xdsgen

import (
	"slices"

	"google.golang.org/protobuf/proto"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// eachPolicy calls yield for the policies of a kind of the root namespace and of another
// namespace, of each the oldest first.
func eachPolicy[S proto.Message](s *snapshot.Snapshot, namespace string, kind snapshot.Kind, yield func(*snapshot.NamespaceFacts, *snapshot.Config[S])) {
	names := []string{s.Mesh.RootNamespace}
	if namespace != s.Mesh.RootNamespace {
		names = append(names, namespace)
	}
	for _, name := range names {
		ns := s.Namespaces.Get(name)
		for p := range snapshot.Policies[S](ns, kind) {
			yield(ns, p)
		}
	}
}

// attachment names the workloads of a policy, by their labels or by references.
type attachment interface {
	targeting
	GetSelector() *typev1beta1.WorkloadSelector
}

// isAttached reports whether a policy of a namespace, which is the root namespace or the
// workload's own, is for a workload.
func isAttached(of string, spec attachment, namespace string, labels map[string]string) bool {
	if targets := targetsOf(spec); len(targets) > 0 {
		return of == namespace && targetsGateway(targets, labels)
	}
	return snapshot.Selects(spec.GetSelector().GetMatchLabels(), labels)
}

// groupGateway is the API group of a Gateway of the Kubernetes Gateway API.
const groupGateway = "gateway.networking.k8s.io"

// targeting is a policy that may refer to the objects to which it applies.
type targeting interface {
	GetTargetRef() *typev1beta1.PolicyTargetReference
	GetTargetRefs() []*typev1beta1.PolicyTargetReference
}

// targetsOf returns the references of a policy to the objects to which it applies.
func targetsOf(t targeting) []*typev1beta1.PolicyTargetReference {
	if r := t.GetTargetRef(); r != nil {
		return append(slices.Clip(t.GetTargetRefs()), r)
	}
	return t.GetTargetRefs()
}

// targetsGateway reports whether one of the references names the Gateway of a workload.
func targetsGateway(targets []*typev1beta1.PolicyTargetReference, labels map[string]string) bool {
	return slices.ContainsFunc(targets, func(r *typev1beta1.PolicyTargetReference) bool {
		return r.GetKind() == "Gateway" && r.GetGroup() == groupGateway && r.GetName() == labels[mesh.LabelGatewayName]
	})
}
