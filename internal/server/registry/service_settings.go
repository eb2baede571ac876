package registry

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/order"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// exportDefault returns defaultServiceExportTo of a cluster, or nil for all namespaces.
func (t *tables) exportDefault(r *derive.Reads, id mesh.ClusterID) ([]string, bool) {
	to := meshConfig(t.settingsOf(r, id)).GetDefaultServiceExportTo()
	if slices.Contains(to, "*") {
		to = nil
	}
	return to, true
}

// exportTo returns the namespaces that see a service of a cluster, whose object has this
// exportTo; nil means all.
func (t *tables) exportTo(r *derive.Reads, c mesh.ClusterID, own []string) []string {
	if own != nil {
		return own
	}
	to, _ := t.exportDefaults.Get(r, c)
	return to
}

// entryExportTo returns the namespaces that see a ServiceEntry; nil means all. If
// serviceEntryVisibility applies to sidecars, its first policy that matches decides.
func (t *tables) entryExportTo(r *derive.Reads, e *snapshot.ServiceEntry) []string {
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

func (t *tables) matchesRules(r *derive.Reads, e *snapshot.ServiceEntry, rules []*meshv1alpha1.ServiceEntryVisibility_MatchRule) bool {
	for _, rule := range rules {
		ns, ok := t.namespaces.Get(r, objectKey{e.Cluster, "", e.Namespace})
		if !ok || !matchesLabels(rule.GetNamespaceSelector(), ns.Labels) {
			return false
		}
	}
	return true
}

// localRule is a pattern of hosts that are called only within a cluster, or are not.
type localRule struct {
	pattern string
	local   bool
}

// localRules returns the rules of serviceSettings, the most specific one first. Kubernetes'
// own services and control planes differ by cluster, unless a setting says otherwise.
func (t *tables) localRules(r *derive.Reads) []localRule {
	var out []localRule
	settings := meshConfig(t.meshSettings.Get(r))
	for _, s := range settings.GetServiceSettings() {
		for _, host := range s.GetHosts() {
			out = append(out, localRule{strings.ToLower(host), s.GetSettings().GetClusterLocal()})
		}
	}
	out = append(out,
		localRule{"*.kube-system.svc." + mesh.DefaultDomain, true},
		localRule{mesh.ServiceHost("kubernetes", "default", mesh.DefaultDomain), true})
	for _, host := range controlPlaneHosts(settings.GetDefaultConfig().GetDiscoveryAddress()) {
		out = append(out, localRule{host + "." + mesh.DefaultDomain, true})
	}
	order.Stable(out, func(a, b localRule) int {
		if len(a.pattern) != len(b.pattern) {
			return len(b.pattern) - len(a.pattern)
		}
		return 0
	})
	return out
}

// controlPlaneHosts returns patterns of the names, without domain, of the control planes at a
// discovery address, all revisions.
func controlPlaneHosts(discovery string) []string {
	host := "istiod." + mesh.DefaultSystemNamespace + ".svc"
	if given, _, ok := strings.Cut(strings.ToLower(discovery), ":"); ok {
		host = strings.TrimSuffix(given, "."+mesh.DefaultDomain)
	}
	name, rest, _ := strings.Cut(host, ".")
	return []string{host, name + "-*." + rest}
}

// isClusterLocal reports whether clients call only endpoints of their own cluster.
func (t *tables) isClusterLocal(r *derive.Reads, host string) bool {
	for _, rule := range t.localHosts.Get(r) {
		prefix, suffix, wild := strings.Cut(rule.pattern, "*")
		if rule.pattern == host || wild && len(host) >= len(prefix)+len(suffix) && strings.HasPrefix(host, prefix) && strings.HasSuffix(host, suffix) {
			return rule.local
		}
	}
	return false
}
