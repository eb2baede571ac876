package analyze

import (
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// relativePatches finds the patches that name a filter which another EnvoyFilter of the same
// priority adds.
func (m *checker) relativePatches() {
	type filter struct {
		place networkingv1alpha3.EnvoyFilter_ApplyTo
		name  string
	}
	var all []*snapshot.EnvoyFilter
	added := map[filter][]*snapshot.EnvoyFilter{}
	for _, facts := range m.Snapshot.Namespaces.All() {
		for _, f := range facts.EnvoyFilters {
			all = append(all, f)
			for _, p := range f.Patches {
				if named, ok := p.Value.(interface{ GetName() string }); ok && adds(p) {
					key := filter{p.Spec.GetApplyTo(), named.GetName()}
					added[key] = append(added[key], f)
				}
			}
		}
	}
	for _, f := range all {
		for _, p := range f.Patches {
			name := filterOf(p)
			for _, other := range added[filter{p.Spec.GetApplyTo(), name}] {
				if name == "" || other == f || other.Priority != f.Priority || !m.bothApply(f, other) {
					continue
				}
				m.find(codes.EnvoyFilterUsesRelativeOperation, f, at("spec.configPatches", p.Index)+".patch.operation",
					"%s needs filter %s, which EnvoyFilter %s of the same priority adds: the older object is applied first", p.Spec.GetPatch().GetOperation(), name, nameOf(other))
				break
			}
		}
	}
}

// adds reports whether a patch adds its value.
func adds(p *snapshot.Patch) bool {
	switch p.Spec.GetPatch().GetOperation() {
	case networkingv1alpha3.EnvoyFilter_Patch_ADD, networkingv1alpha3.EnvoyFilter_Patch_INSERT_FIRST,
		networkingv1alpha3.EnvoyFilter_Patch_INSERT_BEFORE, networkingv1alpha3.EnvoyFilter_Patch_INSERT_AFTER:
		return true
	}
	return false
}

// filterOf returns the name of the filter that a patch needs, or "".
func filterOf(p *snapshot.Patch) string {
	l := p.Spec.GetMatch().GetListener()
	switch p.Spec.GetApplyTo() {
	case networkingv1alpha3.EnvoyFilter_HTTP_FILTER:
		return l.GetFilterChain().GetFilter().GetSubFilter().GetName()
	case networkingv1alpha3.EnvoyFilter_NETWORK_FILTER:
		return l.GetFilterChain().GetFilter().GetName()
	case networkingv1alpha3.EnvoyFilter_LISTENER_FILTER:
		return l.GetListenerFilter()
	}
	return ""
}

// bothApply reports whether two EnvoyFilters may apply to one proxy.
func (m *checker) bothApply(a, b *snapshot.EnvoyFilter) bool {
	root := m.Snapshot.Mesh.RootNamespace
	if a.Namespace != b.Namespace && a.Namespace != root && b.Namespace != root {
		return false
	}
	return !contradicts(a.Selector, b.Selector)
}
