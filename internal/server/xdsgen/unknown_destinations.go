package xdsgen

import (
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// unknownCluster returns the cluster of unknown destinations. The Sidecar's policy overrides
// the mesh's.
func unknownCluster(m *snapshot.Mesh, sc scope) string {
	only, proxy := m.RegistryOnly, (*networkingv1alpha3.Destination)(nil)
	if policy := sc.policy(); policy != nil {
		only, proxy = policy.GetMode() == networkingv1alpha3.OutboundTrafficPolicy_REGISTRY_ONLY, policy.GetEgressProxy()
	}
	switch {
	case only:
		return mesh.BlackHoleCluster
	case proxy != nil:
		return destinationCluster(proxy, 0)
	}
	return mesh.PassthroughCluster
}
