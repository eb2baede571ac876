package routes

import (
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
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

// catchAll returns the virtual host for unknown hosts. It passes requests on to a cluster, or
// refuses them if that is BlackHoleCluster.
func catchAll(cluster string) *routev3.VirtualHost {
	name := "allow_any"
	route := &routev3.Route{Match: wire.EveryPath}
	if cluster == mesh.BlackHoleCluster {
		name = "block_all"
		route.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 502}}
	} else {
		route.Action = &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
			Timeout:          wire.NoTime,
			MaxGrpcTimeout:   wire.NoTime, //nolint:staticcheck // see defaultAction
		}}
	}
	route.Name = name
	return &routev3.VirtualHost{Name: name, Domains: []string{"*"}, IncludeRequestAttemptCount: true, Routes: []*routev3.Route{route}}
}
