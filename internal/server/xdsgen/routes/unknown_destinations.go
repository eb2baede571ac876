package routes

import (
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// UnknownCluster returns the cluster of unknown destinations. The Sidecar's policy overrides
// the mesh's.
func UnknownCluster(m *snapshot.Mesh, sc proxy.Scope) string {
	only, proxy := m.RegistryOnly, (*networkingv1alpha3.Destination)(nil)
	if policy := sc.Policy(); policy != nil {
		only, proxy = policy.GetMode() == networkingv1alpha3.OutboundTrafficPolicy_REGISTRY_ONLY, policy.GetEgressProxy()
	}
	switch {
	case only:
		return mesh.BlackHoleCluster
	case proxy != nil:
		return DestinationCluster(proxy, 0)
	}
	return mesh.PassthroughCluster
}
