package analyze

import (
	"slices"

	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// telemetryProviders finds access logs and metrics of Telemetries without a provider.
func (m *checker) telemetryProviders() {
	if len(m.Snapshot.Mesh.LogDefaults) == 0 {
		m.telemetriesWithoutProvider("accessLogging", func(t *telemetryv1alpha1.Telemetry) []telemetryEntry {
			return telemetryEntries(t.GetAccessLogging(), func(l *telemetryv1alpha1.AccessLogging) bool { return l.GetDisabled().GetValue() })
		})
	}
	if len(m.Snapshot.Mesh.MetricDefaults) == 0 {
		m.telemetriesWithoutProvider("metrics", func(t *telemetryv1alpha1.Telemetry) []telemetryEntry {
			return telemetryEntries(t.GetMetrics(), func(*telemetryv1alpha1.Metrics) bool { return false })
		})
	}
}

// telemetryEntry is an entry of a list of a Telemetry.
type telemetryEntry struct{ named, disabled bool }

// telemetryEntries returns the entries of a list.
func telemetryEntries[T interface {
	GetProviders() []*telemetryv1alpha1.ProviderRef
}](list []T, disabled func(T) bool) []telemetryEntry {
	var out []telemetryEntry
	for _, e := range list {
		out = append(out, telemetryEntry{len(e.GetProviders()) > 0, disabled(e)})
	}
	return out
}

// telemetriesWithoutProvider finds the entries of a list of Telemetries for which no provider is
// named. A provider may be in an earlier entry, or in a Telemetry with a wider scope.
func (m *checker) telemetriesWithoutProvider(list string, entries func(*telemetryv1alpha1.Telemetry) []telemetryEntry) {
	// names reports whether a Telemetry for a whole namespace names a provider.
	names := func(namespace string) bool {
		for t := range snapshot.Policies[*telemetryv1alpha1.Telemetry](m.Snapshot.Namespaces.Get(namespace), snapshot.KindTelemetry) {
			whole := len(t.Spec.GetSelector().GetMatchLabels()) == 0 && len(snapshot.TargetsOf(t.Spec)) == 0
			if whole && slices.ContainsFunc(entries(t.Spec), func(e telemetryEntry) bool { return e.named }) {
				return true
			}
		}
		return false
	}
	root := m.Snapshot.Mesh.RootNamespace
	for _, facts := range m.Snapshot.Namespaces.All() {
		wide := names(root) || facts.Name != root && names(facts.Name)
		for t := range snapshot.Policies[*telemetryv1alpha1.Telemetry](facts, snapshot.KindTelemetry) {
			named := wide
			for i, e := range entries(t.Spec) {
				named = named || e.named
				if !named && e.disabled && m.Snapshot.Mesh.AccessLog.File != "" {
					m.find(codes.InvalidTelemetryProvider, t, at("spec."+list, i)+".providers", "is empty, and MeshConfig has no defaultProviders.%s: the entry does not turn off the log of accessLogFile", list)
				}
				if !named && !e.disabled {
					m.find(codes.InvalidTelemetryProvider, t, at("spec."+list, i)+".providers", "is empty, and MeshConfig has no defaultProviders.%s: the entry has no effect", list)
				}
			}
		}
	}
}
