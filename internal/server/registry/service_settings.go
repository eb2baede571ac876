package registry

import (
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/order"
	"github.com/meshctl/meshctl/internal/server/derive"
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

// localRule is a pattern of hosts that are called only within a cluster, or are not.
type localRule struct {
	pattern string
	local   bool
}

// localRules returns the rules of serviceSettings, the most specific one first. Kubernetes'
// own services differ by cluster, unless a setting says otherwise.
func (t *tables) localRules(r *derive.Reads) []localRule {
	var out []localRule
	for _, s := range meshConfig(t.meshSettings.Get(r)).GetServiceSettings() {
		for _, host := range s.GetHosts() {
			out = append(out, localRule{strings.ToLower(host), s.GetSettings().GetClusterLocal()})
		}
	}
	out = append(out,
		localRule{"*.kube-system.svc." + mesh.DefaultDomain, true},
		localRule{mesh.ServiceHost("kubernetes", "default", mesh.DefaultDomain), true})
	order.Stable(out, func(a, b localRule) int {
		if len(a.pattern) != len(b.pattern) {
			return len(b.pattern) - len(a.pattern)
		}
		return 0
	})
	return out
}

// isClusterLocal reports whether clients call only endpoints of their own cluster.
func (t *tables) isClusterLocal(r *derive.Reads, host string) bool {
	for _, rule := range t.localHosts.Get(r) {
		if suffix, wild := strings.CutPrefix(rule.pattern, "*"); rule.pattern == host || wild && strings.HasSuffix(host, suffix) {
			return rule.local
		}
	}
	return false
}
