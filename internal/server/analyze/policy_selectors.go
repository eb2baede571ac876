package analyze

import (
	"slices"

	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	securityv1beta1 "istio.io/api/security/v1beta1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// policyKind describes the policies of a kind of which a workload uses only the oldest one.
type policyKind struct {
	kind snapshot.Kind
	// selector is the field of the selector, and labels returns it.
	selector string
	labels   func(snapshot.Policy) map[string]string
	// unselected is the code of a policy that selects nothing, twice the code of several
	// policies without a selector, and overlap the code of several that select one workload.
	unselected, twice, overlap codes.Code
}

var policyKinds = []policyKind{
	{
		snapshot.KindSidecar, "spec.workloadSelector.labels",
		func(p snapshot.Policy) map[string]string {
			s, _ := p.Content().(*networkingv1alpha3.Sidecar)
			return s.GetWorkloadSelector().GetLabels()
		},
		codes.ReferencedResourceNotFound, codes.MultipleSidecarsWithoutWorkloadSelectors, codes.ConflictingSidecarWorkloadSelectors,
	},
	{
		snapshot.KindPeerAuthentication, "spec.selector.matchLabels",
		func(p snapshot.Policy) map[string]string {
			s, _ := p.Content().(*securityv1beta1.PeerAuthentication)
			return s.GetSelector().GetMatchLabels()
		},
		codes.NoMatchingWorkloadsFound, codes.ConflictingPeerAuthentications, codes.ConflictingPeerAuthentications,
	},
	{
		snapshot.KindTelemetry, "spec.selector.matchLabels",
		func(p snapshot.Policy) map[string]string {
			s, _ := p.Content().(*telemetryv1alpha1.Telemetry)
			return s.GetSelector().GetMatchLabels()
		},
		codes.ReferencedResourceNotFound, codes.MultipleTelemetriesWithoutWorkloadSelectors, codes.ConflictingTelemetryWorkloadSelectors,
	},
}

// policies checks the selectors of policies, and of other objects that select workloads of
// their namespace.
func (m *checker) policies() {
	for _, facts := range m.Snapshot.Namespaces.All() {
		for _, k := range policyKinds {
			m.policiesOf(k, facts.Policies[k.kind])
		}
		namespace := facts.Name
		if namespace == m.Snapshot.Mesh.RootNamespace {
			namespace = ""
		}
		for _, f := range facts.EnvoyFilters {
			m.selects(codes.NoMatchingWorkloadsFound, f, "spec.workloadSelector.labels", namespace, f.Selector)
		}
		for p := range snapshot.Policies[*securityv1beta1.RequestAuthentication](facts, snapshot.KindRequestAuthentication) {
			m.selects(codes.NoMatchingWorkloadsFound, p, "spec.selector.matchLabels", namespace, p.Spec.GetSelector().GetMatchLabels())
		}
		for _, kind := range []snapshot.Kind{snapshot.KindWasmPlugin, snapshot.KindTrafficExtension} {
			for p := range snapshot.Policies[*extensionsv1alpha1.WasmPlugin](facts, kind) {
				m.selects(codes.NoMatchingWorkloadsFound, p, "spec.selector.matchLabels", namespace, p.Spec.GetSelector().GetMatchLabels())
			}
		}
		for p := range snapshot.Policies[*networkingv1beta1.ProxyConfig](facts, snapshot.KindProxyConfig) {
			m.selects(codes.NoMatchingWorkloadsFound, p, "spec.selector.matchLabels", p.Namespace, p.Spec.GetSelector().GetMatchLabels())
		}
		for _, p := range facts.Policies[snapshot.KindAuthorizationPolicy] {
			if p, ok := p.(*snapshot.AuthorizationPolicy); ok {
				m.authorization(p, namespace)
			}
		}
	}
	for _, d := range until(m, m.rules) {
		m.selects(codes.NoMatchingWorkloadsFound, d, "spec.workloadSelector.matchLabels", d.Namespace, d.Spec.GetWorkloadSelector().GetMatchLabels())
	}
	for _, e := range until(m, m.entries) {
		m.selects(codes.NoMatchingWorkloadsFound, e, "spec.workloadSelector.labels", e.Namespace, e.Selector)
	}
}

// selects finds a selector that selects no workload. In a mesh without workloads, such as a
// directory of configuration only, it finds nothing.
func (m *checker) selects(code codes.Code, o snapshot.Object, field, namespace string, selector map[string]string) []*snapshot.Pod {
	if len(selector) == 0 || len(m.workloads) == 0 {
		return nil
	}
	found := m.selected(namespace, selector)
	if len(found) == 0 {
		m.findFix(code, o, m.correctLabel(o, field, namespace, selector), field, "selects no workload: there is none with the labels %s", labelText(selector))
	}
	return found
}

// correctLabel returns how to correct a selector with one label, whose value is like that of workloads.
func (m *checker) correctLabel(o snapshot.Object, field, namespace string, selector map[string]string) string {
	if len(selector) != 1 {
		return ""
	}
	for key, value := range selector {
		var values []string
		for _, w := range m.selected(namespace, nil) {
			if v := w.Labels[key]; v != "" && !slices.Contains(values, v) {
				values = append(values, v)
			}
		}
		return m.correct(o, field+"["+key+"]", value, values)
	}
	return ""
}

// policiesOf checks the policies of a kind in one namespace, oldest first.
func (m *checker) policiesOf(k policyKind, all []snapshot.Policy) {
	var whole snapshot.Policy
	first := map[*snapshot.Pod]snapshot.Policy{}
	for _, p := range all {
		labels := k.labels(p)
		if len(labels) == 0 {
			if whole != nil {
				m.findFix(k.twice, p, m.deletion(p), "", "%s %s has no selector, either, and comes before this one, which therefore has no effect", p.Key().Kind, nameOf(whole))
			} else {
				whole = p
			}
			continue
		}
		reported := false
		for _, w := range m.selects(k.unselected, p, k.selector, p.Key().Namespace, labels) {
			if other := first[w]; other == nil {
				first[w] = p
			} else if !reported {
				m.find(k.overlap, p, k.selector, "%s %s selects workload %s, too, and comes before this one, which therefore has no effect there", p.Key().Kind, nameOf(other), nameOf(w))
				reported = true
			}
		}
	}
}

// sidecars checks the egress hosts of Sidecars.
func (m *checker) sidecars() {
	for _, facts := range m.Snapshot.Namespaces.All() {
		for sc := range snapshot.Policies[*networkingv1alpha3.Sidecar](facts, snapshot.KindSidecar) {
			for i, e := range sc.Spec.GetEgress() {
				for j, host := range e.GetHosts() {
					if !m.matchesService(host, sc.Namespace) {
						m.find(codes.SidecarHostWithoutService, sc, at(at("spec.egress", i)+".hosts", j), "%q matches no service that namespace %s sees", host, sc.Namespace)
					}
				}
			}
		}
	}
}

// matchesService reports whether an egress host matches a service that a namespace sees. A
// host that means everything or nothing always does.
func (m *checker) matchesService(egress, own string) bool {
	entry := snapshot.ParseEgressHost(egress, own)
	namespace, host := entry.Namespace, entry.Host
	if host == "*" && (namespace == "*" || namespace == own || namespace == m.Snapshot.Mesh.RootNamespace) {
		return true
	}
	for _, svc := range m.Snapshot.Services.All() {
		if (namespace == "*" || namespace == svc.Namespace) && snapshot.HostsOverlap(host, svc.Host) && svc.VisibleTo(own) {
			return true
		}
	}
	return false
}
