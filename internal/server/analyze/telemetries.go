package analyze

import (
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// telemetryProviders finds access logs of Telemetries without a provider.
func (m *checker) telemetryProviders() {
	if len(m.Snapshot.Mesh.LogDefaults) > 0 {
		return
	}
	root := m.Snapshot.Mesh.RootNamespace
	for _, facts := range m.Snapshot.Namespaces.All() {
		wide := m.namesLogProvider(root) || facts.Name != root && m.namesLogProvider(facts.Name)
		for t := range snapshot.Policies[*telemetryv1alpha1.Telemetry](facts, snapshot.KindTelemetry) {
			named := wide
			for i, l := range t.Spec.GetAccessLogging() {
				named = named || len(l.GetProviders()) > 0
				if !named && !l.GetDisabled().GetValue() {
					m.find(InvalidTelemetryProvider, t, at("spec.accessLogging", i)+".providers", "is empty, and MeshConfig has no defaultProviders.accessLogging: the entry has no effect")
				}
			}
		}
	}
}

// namesLogProvider reports whether a Telemetry for a whole namespace names a provider of
// access logs.
func (m *checker) namesLogProvider(namespace string) bool {
	for t := range snapshot.Policies[*telemetryv1alpha1.Telemetry](m.Snapshot.Namespaces.Get(namespace), snapshot.KindTelemetry) {
		if len(t.Spec.GetSelector().GetMatchLabels()) > 0 || t.Spec.GetTargetRef() != nil || len(t.Spec.GetTargetRefs()) > 0 {
			continue
		}
		for _, l := range t.Spec.GetAccessLogging() {
			if len(l.GetProviders()) > 0 {
				return true
			}
		}
	}
	return false
}
