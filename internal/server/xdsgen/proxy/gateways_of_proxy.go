package proxy

import (
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// PassesByName reports whether a proxy passes TLS on to services by server name: a Gateway
// object that selects it has a server with mode AUTO_PASSTHROUGH.
func PassesByName(s *snapshot.Snapshot, labels map[string]string) bool {
	return slices.ContainsFunc(GatewaysOf(s, labels), func(gw *snapshot.Gateway) bool {
		return slices.ContainsFunc(gw.Spec.GetServers(), IsAutoPassthrough)
	})
}

// IsAutoPassthrough reports whether a server passes TLS on by server name.
func IsAutoPassthrough(s *networkingv1alpha3.Server) bool {
	return s.GetTls().GetMode() == networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH
}

// GatewaysOf returns the Gateway objects that select a workload, oldest first.
func GatewaysOf(s *snapshot.Snapshot, labels map[string]string) []*snapshot.Gateway {
	var out []*snapshot.Gateway
	for _, gw := range s.GatewayConfigs {
		if snapshot.Selects(gw.Spec.GetSelector(), labels) {
			out = append(out, gw)
		}
	}
	return out
}
