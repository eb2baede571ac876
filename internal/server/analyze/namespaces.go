package analyze

import (
	"maps"
	"slices"
	"strings"

	securityv1beta1 "istio.io/api/security/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// exports holds the namespace of an object and the namespaces to which it is exported; none means all.
type exports struct {
	own string
	to  []string
}

// overlap reports whether some namespace sees both objects.
func (e exports) overlap(other exports) bool {
	return e.all() || other.all() || slices.ContainsFunc(e.to, func(ns string) bool { return other.includes(e.name(ns)) })
}

func (e exports) includes(namespace string) bool {
	return slices.ContainsFunc(e.to, func(ns string) bool { return e.name(ns) == namespace })
}

func (e exports) all() bool { return len(e.to) == 0 || slices.Contains(e.to, "*") }

func (e exports) name(namespace string) string {
	if namespace == "." {
		return e.own
	}
	return namespace
}

// width orders the objects that a namespace sees: first those of its own that no other namespace
// sees, then those that are exported to it by name, then those for all.
func (e exports) width() int {
	switch {
	case e.all():
		return 2
	case len(e.to) == 1 && e.includes(e.own):
		return 0
	}
	return 1
}

// knownNamespaces returns the namespaces that exist, sorted, or nil if the Namespaces of the mesh are not
// known, as in a directory without them. The namespaces of every cluster and of the control plane exist.
func (m *checker) knownNamespaces() []string {
	known := map[string]bool{}
	for _, ns := range list[*snapshot.Namespace](m, snapshot.KindNamespace) {
		known[ns.Name] = true
	}
	if len(known) == 0 {
		return nil
	}
	for key := range m.objects {
		known[key.Namespace] = true
	}
	for _, ns := range []string{metav1.NamespaceDefault, mesh.DefaultSystemNamespace, m.Snapshot.Mesh.RootNamespace, metav1.NamespaceSystem, "kube-public", "kube-node-lease"} {
		known[ns] = true
	}
	delete(known, "") // of objects without a namespace
	return slices.Sorted(maps.Keys(known))
}

// namespaces finds the namespaces in exportTo, and in the sources of AuthorizationPolicies, that do
// not exist.
func (m *checker) namespaces() {
	names := m.knownNamespaces()
	if len(names) == 0 {
		return
	}
	check := func(o snapshot.Object, field string, to []string) {
		for i, namespace := range to {
			if mesh.IsDNSLabel(namespace) && !has(names, namespace) {
				if field == "" {
					m.find(codes.UnknownNamespace, o, "metadata.annotations["+mesh.AnnotationExportTo+"]", "names the namespace %s, which does not exist", namespace)
				} else {
					m.findFix(codes.UnknownNamespace, o, m.correct(o, at(field, i), namespace, names), at(field, i), "names the namespace %s, which does not exist", namespace)
				}
			}
		}
	}
	for _, v := range until(m, m.virtual) {
		check(v, "spec.exportTo", v.ExportTo)
	}
	for _, d := range until(m, m.rules) {
		check(d, "spec.exportTo", d.Spec.GetExportTo())
	}
	for _, e := range until(m, m.entries) {
		check(e, "spec.exportTo", e.ExportTo)
	}
	for _, all := range m.services {
		for _, s := range all {
			check(s, "", s.ExportTo)
		}
	}
	m.sourceNamespaces(names)
}

// has reports whether a sorted list has a name.
func has(sorted []string, name string) bool {
	_, found := slices.BinarySearch(sorted, name)
	return found
}

// sourceNamespaces finds the sources of AuthorizationPolicies with a namespace that does not
// exist. An asterisk at one end stands for any text.
func (m *checker) sourceNamespaces(known []string) {
	check := func(p *snapshot.AuthorizationPolicy, field string, of []string) {
		for i, pattern := range of {
			if pattern != "" && !slices.ContainsFunc(known, func(namespace string) bool { return matches(pattern, namespace) }) {
				m.findFix(codes.ReferencedResourceNotFound, p, m.correct(p, at(field, i), pattern, known), at(field, i), "no namespace %s exists: no request comes from it", pattern)
			}
		}
	}
	m.eachSource(sourceField{"namespaces", "notNamespaces", "source.namespace", func(s *securityv1beta1.Source) (values, not []string) {
		return s.GetNamespaces(), s.GetNotNamespaces()
	}}, check)
}

// matches reports whether a value of an AuthorizationPolicy, which may have an asterisk at one end,
// matches a text.
func matches(value, text string) bool {
	if prefix, ok := strings.CutSuffix(value, "*"); ok {
		return strings.HasPrefix(text, prefix)
	}
	suffix, ok := strings.CutPrefix(value, "*")
	return ok && strings.HasSuffix(text, suffix) || value == text
}

// networks finds the clusters of meshNetworks that do not exist, if the mesh has several.
func (m *checker) networks() {
	if m.Settings == nil || len(m.clusters) < 2 {
		return
	}
	for name, n := range m.Settings.Networks.GetNetworks() {
		for _, e := range n.GetEndpoints() {
			if registry := e.GetFromRegistry(); registry != "" && !m.clusters[mesh.ClusterID(registry)] {
				m.find(codes.UnknownMeshNetworksServiceRegistry, m.Settings, "data.meshNetworks", "network %s has the cluster %s, which does not exist", name, registry)
			}
		}
	}
}
