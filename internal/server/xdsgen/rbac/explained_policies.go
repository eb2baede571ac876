package rbac

import (
	"fmt"

	securityv1beta1 "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// AttachedPolicy is a security policy that selects a workload.
type AttachedPolicy struct {
	snapshot.Policy
	Kind snapshot.Kind
	// Reason explains why the policy applies to the workload.
	Reason string
	// Unused is the reason why it has no effect on the workload, "" if it has one.
	Unused string
}

// SecurityPolicies returns the modes of mTLS of a proxy's workload and the security policies
// that select the workload, in the order in which its proxy applies them.
func SecurityPolicies(s *snapshot.Snapshot, n proxy.Node) (snapshot.MTLS, []AttachedPolicy) {
	_, labels := proxy.PodOf(s, n)
	root, ns := s.Namespaces.Get(s.Mesh.RootNamespace), s.Namespaces.Get(n.Namespace)
	out := peerAuthenticationsOf(s, n.Namespace, labels)
	n.Moving = nil
	var custom, others []AttachedPolicy
	for _, a := range ChooseAuthorizations(s, n, labels, proxy.Scope{}) {
		for p := range a.Policies.All {
			attached := AttachedPolicy{Policy: p, Kind: snapshot.KindAuthorizationPolicy, Reason: reasonFor(s, p.Namespace, p.Spec)}
			if a.Action == securityv1beta1.AuthorizationPolicy_CUSTOM {
				custom = append(custom, attached)
			} else {
				others = append(others, attached)
			}
		}
	}
	out = append(out, custom...)
	proxy.EachPolicy(s, n.Namespace, snapshot.KindRequestAuthentication, func(_ *snapshot.NamespaceFacts, p *snapshot.RequestAuthentication) {
		if proxy.IsAttached(p.Namespace, p.Spec, n.Namespace, labels) {
			out = append(out, AttachedPolicy{Policy: p, Kind: p.Kind, Reason: reasonFor(s, p.Namespace, p.Spec)})
		}
	})
	return snapshot.WorkloadMTLS(root, ns, labels), append(out, others...)
}

// peerAuthenticationsOf returns the PeerAuthentications that select a workload. Of those for
// the mesh, for the namespace and for workloads, the oldest one counts.
func peerAuthenticationsOf(s *snapshot.Snapshot, namespace string, labels map[string]string) []AttachedPolicy {
	var out []AttachedPolicy
	oldest := make(map[string]*snapshot.PeerAuthentication)
	proxy.EachPolicy(s, namespace, snapshot.KindPeerAuthentication, func(_ *snapshot.NamespaceFacts, p *snapshot.PeerAuthentication) {
		selector := p.Spec.GetSelector().GetMatchLabels()
		if !snapshot.Selects(selector, labels) {
			return
		}
		attached := AttachedPolicy{Policy: p, Kind: p.Kind, Reason: reasonFor(s, p.Namespace, p.Spec)}
		level := p.Namespace
		if len(selector) > 0 {
			level = "workloads"
		}
		switch first := oldest[level]; {
		case len(selector) > 0 && p.Namespace == s.Mesh.RootNamespace:
			attached.Unused = "in the root namespace, a PeerAuthentication with a selector has no effect"
		case first != nil:
			attached.Unused = fmt.Sprintf("%s/%s is older", first.Namespace, first.Name)
		default:
			oldest[level] = p
		}
		out = append(out, attached)
	})
	return out
}

// reasonFor explains to which workloads a policy applies.
func reasonFor(s *snapshot.Snapshot, namespace string, spec interface {
	GetSelector() *typev1beta1.WorkloadSelector
},
) string {
	if t, ok := spec.(snapshot.Targeting); ok && len(snapshot.TargetsOf(t)) > 0 {
		return "its targetRefs"
	}
	switch selector := spec.GetSelector().GetMatchLabels(); {
	case len(selector) > 0:
		return "selector " + string(snapshot.SelectorOf(selector))
	case namespace == s.Mesh.RootNamespace:
		return "all workloads of the mesh"
	}
	return "all workloads of the namespace"
}
