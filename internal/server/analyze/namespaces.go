package analyze

import (
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// namespaces finds the namespaces in exportTo, and in the sources of AuthorizationPolicies, that do not
// exist. A mesh whose Namespaces are not
// known, such as a directory without them, has none to compare with.
func (m *checker) namespaces() {
	known := map[string]bool{}
	for _, ns := range list[*snapshot.Namespace](m, snapshot.KindNamespace) {
		known[ns.Name] = true
	}
	if len(known) == 0 {
		return
	}
	for key := range m.objects {
		known[key.Namespace] = true
	}
	check := func(o snapshot.Object, field string, to []string) {
		for i, namespace := range to {
			if mesh.IsDNSLabel(namespace) && !known[namespace] {
				if field == "" {
					m.find(UnknownNamespace, o, "metadata.annotations["+mesh.AnnotationExportTo+"]", "names the namespace %s, which does not exist", namespace)
				} else {
					m.find(UnknownNamespace, o, at(field, i), "names the namespace %s, which does not exist", namespace)
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
	for _, p := range list[*snapshot.AuthorizationPolicy](m, snapshot.KindAuthorizationPolicy) {
		for i, r := range p.Spec.GetRules() {
			rule := at("spec.rules", i)
			for j, f := range r.GetFrom() {
				source := at(rule+".from", j) + ".source"
				check(p, source+".namespaces", f.GetSource().GetNamespaces())
				check(p, source+".notNamespaces", f.GetSource().GetNotNamespaces())
			}
			for j, w := range r.GetWhen() {
				if w.GetKey() == "source.namespace" {
					check(p, at(rule+".when", j)+".values", w.GetValues())
					check(p, at(rule+".when", j)+".notValues", w.GetNotValues())
				}
			}
		}
	}
	for _, all := range m.services {
		for _, s := range all {
			check(s, "", s.ExportTo)
		}
	}
}

// networks finds the clusters of meshNetworks that do not exist, if the mesh has several.
func (m *checker) networks() {
	if m.Settings == nil || len(m.clusters) < 2 {
		return
	}
	for name, n := range m.Settings.Networks.GetNetworks() {
		for _, e := range n.GetEndpoints() {
			if registry := e.GetFromRegistry(); registry != "" && !m.clusters[mesh.ClusterID(registry)] {
				m.find(UnknownMeshNetworksServiceRegistry, m.Settings, "data.meshNetworks", "network %s has the cluster %s, which does not exist", name, registry)
			}
		}
	}
}
