// Package telemetry chooses the settings of a workload's listeners: access logs, metrics, tracing, and
// the filters of policies and plugins.
package telemetry

import (
	"maps"
	"slices"
	"strings"
	"time"

	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/plugins"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/rbac"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// Settings holds the settings of the listeners of a workload in one direction.
type Settings struct {
	snapshot.ListenerSettings
	accessLogs    wire.List[snapshot.AccessLog]
	metrics       wire.List[metric]
	server        bool                                // the listeners are inbound
	Called        string                              // cluster in metrics that the generator of a listener sets; empty means the one that Envoy chooses
	Plugins       wire.List[plugins.PluginFilter]     // of WasmPlugins, and the filter that checks tokens
	Authorization wire.List[rbac.AuthorizationFilter] // of AuthorizationPolicies
	RequestsHosts bool                                // the proxy requests virtual hosts on demand
	AcceptsHTTP10 bool                                // see Node
	IdleTimeout   time.Duration                       // see Node
}

// SettingsOf returns the settings of a workload's outbound listeners, which listeners
// of gateways have, too, and of its inbound listeners. The scope has the services that the
// proxy sees.
func SettingsOf(s *snapshot.Snapshot, n proxy.Node, labels map[string]string, sc proxy.Scope, authorizations []rbac.Authorization) (client, server Settings) {
	chosen := chooseTelemetries(s, n.Namespace, labels)
	var logging [][]*telemetryv1alpha1.AccessLogging
	var tracing []*telemetryv1alpha1.Tracing
	var metrics []*telemetryv1alpha1.Metrics
	for _, t := range chosen {
		logging = append(logging, t.Spec.GetAccessLogging())
		tracing = append(tracing, t.Spec.GetTracing()...)
		metrics = append(metrics, t.Spec.GetMetrics()...)
	}
	of := func(mode telemetryv1alpha1.WorkloadMode) Settings {
		out := Settings{ListenerSettings: s.Mesh.Listeners, accessLogs: wire.ListOf(collected(s, sc, accessLogsOf(s.Mesh, logging, mode)))}
		out.Tracing = tracingOf(s, n, labels, sc, tracing, mode)
		out.AcceptsHTTP10, out.IdleTimeout = n.AcceptsHTTP10, n.IdleTimeout
		out.server = mode == telemetryv1alpha1.WorkloadMode_SERVER
		if supportsMetrics(n) {
			out.metrics = wire.ListOf(metricsOf(s.Mesh, metrics, mode))
		}
		return out
	}
	client, server = of(telemetryv1alpha1.WorkloadMode_CLIENT), of(telemetryv1alpha1.WorkloadMode_SERVER)
	client.Stats = s.Mesh.OutboundStats
	client.RequestsHosts = n.RequestsHosts
	chosenPlugins := plugins.ChoosePlugins(s, n, labels)
	checksTokens := rbac.ChecksTokens(rbac.TokenRules(s, n.Namespace, labels), authorizations)
	isGateway := n.ID.Type == mesh.Router
	client.Plugins = plugins.PluginFilters(chosenPlugins, typev1beta1.WorkloadMode_CLIENT, checksTokens && isGateway)
	server.Plugins = plugins.PluginFilters(chosenPlugins, typev1beta1.WorkloadMode_SERVER, checksTokens)
	protected := &server
	if isGateway {
		protected = &client
	}
	protected.Authorization = rbac.AuthorizationFilters(authorizations)
	return client, server
}

// chooseTelemetries returns the Telemetries that apply to a workload: the oldest without a
// selector in the root namespace, the oldest without one in the workload's namespace, and the
// oldest there that selects it. The later ones override the earlier ones.
func chooseTelemetries(s *snapshot.Snapshot, namespace string, labels map[string]string) []*snapshot.Telemetry {
	var out []*snapshot.Telemetry
	add := func(namespace string, applies func(*telemetryv1alpha1.Telemetry) bool) {
		for t := range snapshot.Policies[*telemetryv1alpha1.Telemetry](s.Namespaces.Get(namespace), snapshot.KindTelemetry) {
			if applies(t.Spec) {
				out = append(out, t)
				return
			}
		}
	}
	whole := func(t *telemetryv1alpha1.Telemetry) bool {
		return len(snapshot.TargetsOf(t)) == 0 && len(t.GetSelector().GetMatchLabels()) == 0
	}
	add(s.Mesh.RootNamespace, whole)
	if namespace != s.Mesh.RootNamespace {
		add(namespace, whole)
	}
	add(namespace, func(t *telemetryv1alpha1.Telemetry) bool {
		if targets := snapshot.TargetsOf(t); len(targets) > 0 {
			return snapshot.TargetsWorkload(targets, labels)
		}
		selector := t.GetSelector().GetMatchLabels()
		return len(selector) > 0 && snapshot.Selects(selector, labels)
	})
	return out
}

// collected returns the access logs, except logs of collectors that the proxy cannot reach. It
// sets the clusters of the collectors.
func collected(s *snapshot.Snapshot, sc proxy.Scope, logs []snapshot.AccessLog) []snapshot.AccessLog {
	var out []snapshot.AccessLog
	for _, log := range logs {
		ok := true
		if log.Collector.Service != "" {
			log.Host = log.Collector.Host()
			log.Cluster, ok = proxy.CollectorCluster(s, sc, log.Collector)
		}
		if ok {
			out = append(out, log)
		}
	}
	return out
}

// accessLogsOf returns the access logs of the listeners of a mode. As with Istio, the last
// Telemetry that names providers decides which of them count, an entry without providers
// applies to the providers of the entry before it, and the access log of MeshConfig remains
// if no known provider is enabled or disabled. Only entries for the mode count.
func accessLogsOf(m *snapshot.Mesh, telemetries [][]*telemetryv1alpha1.AccessLogging, mode telemetryv1alpha1.WorkloadMode) []snapshot.AccessLog {
	counting, filters := m.LogDefaults, make(map[string]string)
	var all []*telemetryv1alpha1.AccessLogging
	for _, entries := range telemetries {
		entries = ofMode(entries, mode)
		all = append(all, entries...)
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
	if len(all) == 0 {
		for _, name := range m.LogDefaults {
			enabled[name] = true
		}
	}
	for _, e := range all {
		if len(e.GetProviders()) > 0 {
			providers = nil
			for _, p := range e.GetProviders() {
				providers = append(providers, p.GetName())
			}
		}
		for _, name := range providers {
			if slices.Contains(counting, name) {
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

// ofMode returns the entries for listeners of a mode. Entries for the other mode do not affect
// these listeners.
func ofMode[E interface{ GetMatch() M }, M interface {
	GetMode() telemetryv1alpha1.WorkloadMode
}](entries []E, mode telemetryv1alpha1.WorkloadMode) []E {
	return slices.DeleteFunc(slices.Clone(entries), func(e E) bool { return !modeMatches(e.GetMatch().GetMode(), mode) })
}

// modeMatches reports whether an entry with the mode of is for listeners of a mode.
func modeMatches(of, mode telemetryv1alpha1.WorkloadMode) bool {
	return of == telemetryv1alpha1.WorkloadMode_CLIENT_AND_SERVER || of == mode
}
