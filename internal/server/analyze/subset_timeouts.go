package analyze

import (
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// subsetTimeouts finds the timeouts of TCP connections in the policies of subsets of a service without
// HTTP. Listeners close such connections, and know only the policy of the whole rule.
func (m *checker) subsetTimeouts(d *snapshot.DestinationRule, host string) {
	svc := m.service(host, d.Namespace)
	if svc == nil || slices.ContainsFunc(svc.Ports, func(p snapshot.ServicePort) bool { return p.Protocol.IsHTTP() || p.Protocol == mesh.Auto }) {
		return
	}
	for i, s := range d.Spec.GetSubsets() {
		field := at("spec.subsets", i) + ".trafficPolicy"
		m.subsetTimeout(d, field, s.GetTrafficPolicy().GetConnectionPool())
		for j, p := range s.GetTrafficPolicy().GetPortLevelSettings() {
			m.subsetTimeout(d, at(field+".portLevelSettings", j), p.GetConnectionPool())
		}
	}
}

func (m *checker) subsetTimeout(d *snapshot.DestinationRule, field string, pool *networkingv1alpha3.ConnectionPoolSettings) {
	const reason = "has no effect: no port of the service has HTTP, and the policy of the whole rule decides about TCP connections"
	if pool.GetTcp().GetIdleTimeout() != nil {
		m.findExtra(codes.NoEffect, d, field+".connectionPool.tcp.idleTimeout", "%s", reason)
	}
	if pool.GetTcp().GetMaxConnectionDuration() != nil {
		m.findExtra(codes.NoEffect, d, field+".connectionPool.tcp.maxConnectionDuration", "%s", reason)
	}
}
