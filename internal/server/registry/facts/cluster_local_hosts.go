package facts

import (
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
)

// localRule is a pattern of hosts that are called only within a cluster, or are not.
type localRule struct {
	pattern string
	local   bool
}

// localRules returns the rules of serviceSettings, the most specific one first. Kubernetes'
// own services and control planes differ by cluster, unless a setting says otherwise.
func (t *Tables) localRules(r *derive.Reads) []localRule {
	var out []localRule
	settings := meshConfig(t.MeshSettings.Get(r))
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
	slices.SortStableFunc(out, func(a, b localRule) int {
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
func (t *Tables) isClusterLocal(r *derive.Reads, host string) bool {
	for _, rule := range t.localHosts.Get(r) {
		prefix, suffix, wild := strings.Cut(rule.pattern, "*")
		if rule.pattern == host || wild && len(host) >= len(prefix)+len(suffix) && strings.HasPrefix(host, prefix) && strings.HasSuffix(host, suffix) {
			return rule.local
		}
	}
	return false
}
