package facts

import (
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// entryExportTo returns the namespaces that see a ServiceEntry; nil means all. If
// serviceEntryVisibility applies to sidecars, its first policy that matches decides.
func (t *Tables) entryExportTo(r *derive.Reads, e *snapshot.ServiceEntry) []string {
	v := t.entryVisibility.Get(r)
	if !v.GetApplyToSidecars() {
		return t.exportTo(r, e.Cluster, e.ExportTo)
	}
	visibility := v.GetDefaultVisibility()
	for _, p := range v.GetPolicies() {
		if t.matchesRules(r, e, p.GetMatchingRules()) {
			visibility = p.GetVisibility()
			break
		}
	}
	switch visibility {
	case meshv1alpha1.ServiceEntryVisibility_NONE:
		return []string{"~"}
	case meshv1alpha1.ServiceEntryVisibility_NAMESPACE:
		return []string{"."}
	}
	return nil
}

func equalVisibility(a, b *meshv1alpha1.ServiceEntryVisibility) bool { return proto.Equal(a, b) }

func (t *Tables) matchesRules(r *derive.Reads, e *snapshot.ServiceEntry, rules []*meshv1alpha1.ServiceEntryVisibility_MatchRule) bool {
	for _, rule := range rules {
		ns, ok := t.namespaces.Get(r, ObjectKey{e.Cluster, "", e.Namespace})
		if !ok || !matchesLabels(rule.GetNamespaceSelector(), ns.Labels) {
			return false
		}
	}
	return true
}
