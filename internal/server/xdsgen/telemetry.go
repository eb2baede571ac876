package xdsgen

import (
	"iter"
	"maps"
	"slices"
	"strings"

	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// listenerSettings returns the settings of a workload's outbound listeners, which listeners
// of gateways have, too, and of its inbound listeners.
func listenerSettings(s *snapshot.Snapshot, namespace string, labels map[string]string) (client, server snapshot.ListenerSettings) {
	logging := chooseLogging(s, namespace, labels)
	client = withAccessLogs(s.Mesh.Listeners, accessLogsOf(s.Mesh, logging, telemetryv1alpha1.WorkloadMode_CLIENT))
	server = withAccessLogs(s.Mesh.Listeners, accessLogsOf(s.Mesh, logging, telemetryv1alpha1.WorkloadMode_SERVER))
	client.Stats = s.Mesh.OutboundStats
	return client, server
}

// chooseLogging returns the access logging of the Telemetries that apply to a workload: the
// oldest without a selector in the root namespace, the oldest without one in the workload's
// namespace, and the oldest there that selects it. The later ones override the earlier ones.
func chooseLogging(s *snapshot.Snapshot, namespace string, labels map[string]string) [][]*telemetryv1alpha1.AccessLogging {
	var out [][]*telemetryv1alpha1.AccessLogging
	add := func(namespace string, applies func(selector map[string]string) bool) {
		for t := range telemetries(s.Namespaces.Get(namespace)) {
			if applies(t.Spec.GetSelector().GetMatchLabels()) {
				if logging := t.Spec.GetAccessLogging(); len(logging) > 0 {
					out = append(out, logging)
				}
				return
			}
		}
	}
	whole := func(selector map[string]string) bool { return len(selector) == 0 }
	add(s.Mesh.RootNamespace, whole)
	if namespace != s.Mesh.RootNamespace {
		add(namespace, whole)
	}
	add(namespace, func(selector map[string]string) bool { return len(selector) > 0 && snapshot.Selects(selector, labels) })
	return out
}

// telemetries iterates over the Telemetries of a namespace. Those with a target apply to no
// workload.
func telemetries(ns *snapshot.NamespaceFacts) iter.Seq[*snapshot.Telemetry] {
	return func(yield func(*snapshot.Telemetry) bool) {
		for t := range snapshot.Policies[*telemetryv1alpha1.Telemetry](ns, snapshot.KindTelemetry) {
			if t.Spec.GetTargetRef() == nil && len(t.Spec.GetTargetRefs()) == 0 && !yield(t) {
				return
			}
		}
	}
}

// accessLogsOf returns the access logs of the listeners of a mode. As with Istio, the last
// Telemetry that names providers decides which of them count, an entry without providers
// applies to the providers of the entry before it, and the access log of MeshConfig remains
// if no known provider is enabled or disabled.
func accessLogsOf(m *snapshot.Mesh, telemetries [][]*telemetryv1alpha1.AccessLogging, mode telemetryv1alpha1.WorkloadMode) []snapshot.AccessLog {
	counting, filters := m.LogDefaults, make(map[string]string)
	for _, entries := range telemetries {
		var named []string
		for _, e := range entries {
			for _, p := range e.GetProviders() {
				named = append(named, p.GetName())
				filters[p.GetName()] = e.GetFilter().GetExpression()
			}
		}
		if len(named) > 0 {
			counting = named
		}
	}
	enabled, providers := make(map[string]bool), m.LogDefaults
	if len(telemetries) == 0 {
		for _, name := range m.LogDefaults {
			enabled[name] = true
		}
	}
	for _, e := range slices.Concat(telemetries...) {
		if len(e.GetProviders()) > 0 {
			providers = nil
			for _, p := range e.GetProviders() {
				providers = append(providers, p.GetName())
			}
		}
		for _, name := range providers {
			if slices.Contains(counting, name) && modeMatches(e.GetMatch(), mode) {
				enabled[name] = !e.GetDisabled().GetValue()
			}
		}
	}
	var out []snapshot.AccessLog
	known := false
	for _, name := range slices.Sorted(maps.Keys(enabled)) {
		log, ok := m.LogProviders[strings.ToLower(name)]
		if known = known || ok; ok && enabled[name] {
			log.Filter = filters[name]
			out = append(out, log)
		}
	}
	if !known {
		return meshAccessLogs(m)
	}
	return out
}

func modeMatches(match *telemetryv1alpha1.AccessLogging_LogSelector, mode telemetryv1alpha1.WorkloadMode) bool {
	return match.GetMode() == telemetryv1alpha1.WorkloadMode_CLIENT_AND_SERVER || match.GetMode() == mode
}
