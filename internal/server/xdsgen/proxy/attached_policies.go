package proxy

import (
	"google.golang.org/protobuf/proto"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// EachPolicy calls yield for the policies of a kind of the root namespace and of another
// namespace, of each the oldest first.
func EachPolicy[S proto.Message](s *snapshot.Snapshot, namespace string, kind snapshot.Kind, yield func(*snapshot.NamespaceFacts, *snapshot.Config[S])) {
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
	snapshot.Targeting
	GetSelector() *typev1beta1.WorkloadSelector
}

// IsAttached reports whether a policy of a namespace, which is the root namespace or the
// workload's own, is for a workload.
func IsAttached(of string, spec attachment, namespace string, labels map[string]string) bool {
	if targets := snapshot.TargetsOf(spec); len(targets) > 0 {
		return of == namespace && snapshot.TargetsWorkload(targets, labels)
	}
	return snapshot.Selects(spec.GetSelector().GetMatchLabels(), labels)
}
