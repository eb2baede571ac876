package analyze

import (
	"slices"

	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// serverModes finds the entries of WasmPlugins, TrafficExtensions and Telemetries with mode SERVER
// whose workloads are all gateways: the connections of a gateway have mode CLIENT, as with Istio.
func (m *checker) serverModes() {
	for _, facts := range m.Snapshot.Namespaces.All() {
		for _, kind := range []snapshot.Kind{snapshot.KindWasmPlugin, snapshot.KindTrafficExtension} {
			for p := range snapshot.Policies[*extensionsv1alpha1.WasmPlugin](facts, kind) {
				for i, e := range p.Spec.GetMatch() {
					m.serverMode(p, p.Spec, at("spec.match", i), e.GetMode() == typev1beta1.WorkloadMode_SERVER)
				}
			}
		}
		for t := range snapshot.Policies[*telemetryv1alpha1.Telemetry](facts, snapshot.KindTelemetry) {
			for i, e := range t.Spec.GetAccessLogging() {
				m.serverMode(t, t.Spec, at("spec.accessLogging", i)+".match", e.GetMatch().GetMode() == telemetryv1alpha1.WorkloadMode_SERVER)
			}
			for i, e := range t.Spec.GetTracing() {
				m.serverMode(t, t.Spec, at("spec.tracing", i)+".match", e.GetMatch().GetMode() == telemetryv1alpha1.WorkloadMode_SERVER)
			}
			for i, e := range t.Spec.GetMetrics() {
				for j, o := range e.GetOverrides() {
					m.serverMode(t, t.Spec, at(at("spec.metrics", i)+".overrides", j)+".match", o.GetMatch().GetMode() == telemetryv1alpha1.WorkloadMode_SERVER)
				}
			}
		}
	}
}

// attached is the content of a policy that has a selector or references.
type attached interface {
	snapshot.Targeting
	GetSelector() *typev1beta1.WorkloadSelector
}

func (m *checker) serverMode(o snapshot.Object, spec attached, field string, isServer bool) {
	if isServer && m.onlyGateways(o.Key().Namespace, spec) {
		m.findExtra(codes.NoEffect, o, field+".mode", "SERVER has no effect: all workloads are gateways, whose connections have mode CLIENT")
	}
}

// onlyGateways reports whether all workloads of a policy are gateways.
func (m *checker) onlyGateways(namespace string, spec attached) bool {
	if len(snapshot.TargetsOf(spec)) > 0 {
		return true // only Gateways of the Kubernetes Gateway API can be referred to
	}
	if namespace == m.Snapshot.Mesh.RootNamespace {
		namespace = ""
	}
	workloads := m.selected(namespace, spec.GetSelector().GetMatchLabels())
	return len(workloads) > 0 && !slices.ContainsFunc(workloads, func(w *snapshot.Pod) bool {
		_, isGateway := m.gatewayServers()[w]
		return !isGateway && w.Labels[mesh.LabelGatewayName] == ""
	})
}
