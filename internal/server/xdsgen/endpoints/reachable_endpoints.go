package endpoints

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// Obstacle is the reason why a proxy does not get an endpoint of a service, in one word. It
// is empty if the proxy gets the endpoint.
type Obstacle string

// The values of Obstacle.
const (
	ObstacleCluster   Obstacle = "cluster-local"
	ObstacleNode      Obstacle = "node-local"
	ObstacleView      Obstacle = "network-view"
	ObstaclePlaintext Obstacle = "plaintext"
	ObstacleHealth    Obstacle = "unhealthy"
	ObstacleNoGateway Obstacle = "no-gateway"
	ObstaclePrivate   Obstacle = "not-exported"
	ObstacleFamily    Obstacle = "ip-family"
	ObstacleProxyless Obstacle = "grpc"
	ObstacleTwin      Obstacle = "same-address"
	ObstacleDrained   Obstacle = "drained"
	ObstacleAddress   Obstacle = "no-address"
	ObstacleUnready   Obstacle = "not-ready"
	ObstacleLocality  Obstacle = "locality"
)

// String describes the obstacle of an endpoint, "it", and its fix.
func (o Obstacle) String() string {
	switch o {
	case ObstacleCluster:
		return "it is in another cluster, and clients call this service only in their own cluster"
	case ObstacleNode:
		return "it is not on the proxy's node, and this service has internalTrafficPolicy Local"
	case ObstacleView:
		return "its network is not in the proxy's ISTIO_META_REQUESTED_NETWORK_VIEW"
	case ObstaclePlaintext:
		return "it does not accept mTLS, which gateways require: its pod has no label " + mesh.LabelTLSMode + "=" + mesh.TLSModeIstio +
			", or a PeerAuthentication or a DestinationRule disables mTLS"
	case ObstacleHealth:
		return "it is not ready, and its gateway would not use it"
	case ObstacleNoGateway:
		return "it is in another network, which has no usable gateway"
	case ObstaclePrivate:
		return "it is in another network, whose gateway does not pass calls on to it: its Service is not exported to the gateway's namespace, see its annotation " +
			mesh.AnnotationExportTo
	case ObstacleFamily:
		return "it has no address of an IP version that the proxy has, and neither has a gateway of its network"
	case ObstacleProxyless:
		return "it is in another network, and gRPC without a proxy cannot go through gateways"
	case ObstacleTwin:
		return "another endpoint has the same address, which gRPC refuses"
	case ObstacleDrained:
		return "its cluster is drained, and others can take its load: see meshctl multicluster undrain"
	case ObstacleAddress:
		return "its ServiceEntry gives it no address, and no gateway leads to it"
	case ObstacleUnready:
		return "it is not ready, and minHealthPercent of a DestinationRule leaves such endpoints out"
	case ObstacleLocality:
		return "a localityLbSetting distributes the load of the proxy's locality to other localities"
	}
	return string(o)
}

// Reach describes how a proxy reaches an endpoint, or why it does not get it.
type Reach struct {
	Endpoint *snapshot.Endpoint
	// Gateways lead to the endpoint. If there are none, the proxy calls it directly.
	Gateways []snapshot.NetworkGateway
	Obstacle Obstacle
	// Passthrough is the reason why a gateway does not forward calls by server name, such
	// as calls from other networks, to the endpoint. It is empty for sidecars.
	Passthrough Obstacle
}

// PortReach describes how a proxy reaches the endpoints of one port of a service.
type PortReach struct {
	Port      *snapshot.ServicePort
	Endpoints []Reach
}

// ReachOf describes how a proxy reaches the endpoints of a service, by the same rules as
// its EDS resources. missing is the reason if the proxy gets no endpoints of the service.
func ReachOf(s *snapshot.Snapshot, n proxy.Node, svc *snapshot.MeshService) (ports []PortReach, missing string) {
	pod, labels := proxy.PodOf(s, n)
	visible := proxy.VisibilityOf(s, n)
	switch {
	case svc.ExternalName != "":
		return nil, "it is another name of " + svc.ExternalName + ", and no endpoints belong to it"
	case !svc.VisibleTo(n.Namespace):
		return nil, "it is not exported to namespace " + n.Namespace + ": see its annotation " + mesh.AnnotationExportTo
	case visible.Sidecar != nil && !visible.Sees(svc):
		return nil, "the egress hosts of Sidecar " + visible.Sidecar.Namespace + "/" + visible.Sidecar.Name + " do not have it"
	case svc.Headless && n.ID.Type == mesh.Sidecar && !n.Proxyless:
		return nil, "it is headless: calls go on to the address that the application has resolved"
	case svc.Resolution == snapshot.ByDestination:
		return nil, "its ServiceEntry has resolution NONE: calls go on to the address that the application has resolved"
	case svc.Resolution.DNS():
		return nil, "proxies resolve the names of its endpoints, which are in their clusters"
	}
	v := ViewOf(s, n, pod, labels)
	if svc.NodeLocal {
		v = v.on(proxy.NodeOf(pod))
	}
	u := v.assignments(s, svc)
	for i := range svc.Ports {
		port := &svc.Ports[i]
		if port.Protocol == mesh.UDP {
			continue
		}
		policy := wire.ValueOf(WholeAndSubsets(u.subsets)[0].Ports, port.Number) // of the whole service
		withTLS := EndpointSubset{Ports: onlyPort(port.Number, endpointPolicy{TLS: policy.TLS})}
		list := u.endpointsOf(port)
		reach := u.reach(withTLS.Of(list, port.Number), false)
		for i := range reach {
			switch r := &reach[i]; {
			case r.Obstacle != "":
			case policy.Ready && r.Endpoint.Health != snapshot.Healthy:
				r.Obstacle = ObstacleUnready
			case policy.Locality.excludes(r.Endpoint.Locality):
				r.Obstacle = ObstacleLocality
			}
		}
		if u.passesThrough() {
			for i, r := range u.reach(list, true) {
				reach[i].Passthrough = r.Obstacle
			}
		}
		ports = append(ports, PortReach{port, reach})
	}
	if len(ports) == 0 {
		return nil, "it has no TCP port, and proxies take nothing else"
	}
	return ports, ""
}

// reach describes how the proxy reaches each endpoint of a list, like localities.
func (u Assignments) reach(list []snapshot.Endpoint, mtlsOnly bool) []Reach {
	used := u.paths(list, mtlsOnly)
	taken := make(map[*snapshot.Endpoint]bool, len(used))
	for _, r := range used {
		taken[r.endpoint] = true
	}
	given := make(map[*snapshot.Endpoint]bool, len(used))
	for _, r := range withoutDrained(used) {
		given[r.endpoint] = true
	}
	out := make([]Reach, len(list))
	for i := range list {
		e := &list[i]
		r, obstacle := u.path(e, mtlsOnly)
		switch {
		case obstacle != "" || given[e]:
		case taken[e]:
			obstacle = ObstacleDrained
		default:
			obstacle = ObstacleTwin
		}
		out[i] = Reach{Endpoint: e, Gateways: r.gateways, Obstacle: obstacle}
	}
	return out
}

// path leads to an endpoint, directly if there are no gateways.
type path struct {
	endpoint *snapshot.Endpoint
	gateways []snapshot.NetworkGateway
}

// paths returns the paths to the endpoints that the proxy gets.
func (u Assignments) paths(list []snapshot.Endpoint, mtlsOnly bool) []path {
	out := make([]path, 0, len(list))
	var seen map[netip.AddrPort]struct{}
	if u.proxyless {
		seen = make(map[netip.AddrPort]struct{}, len(list))
	}
	for i := range list {
		r, obstacle := u.path(&list[i], mtlsOnly)
		if obstacle != "" {
			continue
		}
		if u.proxyless { // gRPC refuses an assignment with one address twice
			addr := netip.AddrPortFrom(r.endpoint.Address, uint16(r.endpoint.Port))
			if _, twice := seen[addr]; twice {
				continue
			}
			seen[addr] = struct{}{}
		}
		out = append(out, r)
	}
	return out
}

// path returns the path to an endpoint, or the obstacle.
func (u Assignments) path(e *snapshot.Endpoint, mtlsOnly bool) (path, Obstacle) {
	switch {
	case u.cluster != "" && e.Cluster != u.cluster:
		return path{}, ObstacleCluster
	case u.nodeLocal && (u.node == "" || e.Node != u.node):
		return path{}, ObstacleNode
	case !u.wants(e.Network):
		return path{}, ObstacleView
	case mtlsOnly && !e.MTLS:
		return path{}, ObstaclePlaintext
	}
	gateways, obstacle := u.via(e)
	if len(gateways) == 0 && obstacle == "" {
		return path{endpoint: e}, u.direct(e)
	}
	switch {
	case u.proxyless:
		// gRPC sends neither the server name nor the ALPN protocol that gateways need.
		return path{}, ObstacleProxyless
	case obstacle != "":
		return path{}, obstacle
	// Gateways route by the server name of TLS. An endpoint that they would not use must
	// not add to their weight.
	case !e.MTLS:
		return path{}, ObstaclePlaintext
	case e.Health != snapshot.Healthy:
		return path{}, ObstacleHealth
	}
	return path{e, gateways}, ""
}

// direct returns the obstacle to calling an endpoint at its own address.
func (u Assignments) direct(e *snapshot.Endpoint) Obstacle {
	switch {
	case !e.Address.IsValid() && (e.Target == "" || u.proxyless):
		return ObstacleAddress
	case e.Address.IsValid() && u.families != 0 && proxy.FamilyOf(e.Address)&u.families == 0:
		return ObstacleFamily
	}
	return ""
}

// wants reports whether the proxy's network view includes the network. Every view includes
// the unknown network.
func (u Assignments) wants(n mesh.NetworkID) bool {
	if u.view == "" || n == "" {
		return true
	}
	return slices.Contains(strings.Split(u.view, ","), string(n))
}

// via returns the gateways that lead to an endpoint, or the obstacle if no gateway of its
// network is usable. It returns neither if the proxy calls the endpoint directly.
func (u Assignments) via(e *snapshot.Endpoint) ([]snapshot.NetworkGateway, Obstacle) {
	var all []snapshot.NetworkGateway
	if u.network != e.Network && !u.gateways.Empty() {
		all = snapshot.GatewaysFor(u.gateways.All, e.Network, e.Cluster)
	}
	switch {
	case len(all) == 0 && sameNetwork(u.network, e.Network):
		return nil, ""
	case len(all) == 0:
		return nil, ObstacleNoGateway
	}
	var out []snapshot.NetworkGateway
	obstacle := ObstacleFamily
	for i := range all {
		switch {
		case !u.Service.PassedOnBy(&all[i], e.Cluster):
			obstacle = ObstaclePrivate
		case proxy.FamilyOf(all[i].Address)&u.families != 0:
			out = append(out, all[i])
		}
	}
	if len(out) == 0 {
		return nil, obstacle
	}
	return out, ""
}

// sameNetwork reports whether a proxy and an endpoint may be in one network. An unknown
// network may be any. From one known network to another only a gateway leads, even if no
// gateway is known: in the proxy's network another host may have the endpoint's address.
func sameNetwork(proxy, endpoint mesh.NetworkID) bool {
	return proxy == endpoint || proxy == "" || endpoint == ""
}

// HeadlessReaches reports whether a proxy reaches an endpoint of a headless service at its
// own address. Gateways do not forward calls to headless services.
func HeadlessReaches(svc *snapshot.MeshService, e *snapshot.Endpoint, c mesh.ClusterID, n mesh.NetworkID) bool {
	return sameNetwork(n, e.Network) && (e.Cluster == c || !clusterLocal(svc))
}
