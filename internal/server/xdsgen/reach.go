package xdsgen

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Obstacle is why a proxy is not given an endpoint of a service that it is given,
// in a word; empty when it is.
type Obstacle string

// The obstacles.
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
)

// String says it in words, as what goes on after the endpoint, and what to do.
func (o Obstacle) String() string {
	switch o {
	case ObstacleCluster:
		return "it is in another cluster, and this service is of each cluster alone"
	case ObstacleNode:
		return "it is not on the proxy's node, and this service has internalTrafficPolicy Local"
	case ObstacleView:
		return "its network is not in the proxy's ISTIO_META_REQUESTED_NETWORK_VIEW"
	case ObstaclePlaintext:
		return "it takes no mTLS, by which alone gateways pass calls on: its pod has no label " + mesh.LabelTLSMode + "=" + mesh.TLSModeIstio +
			", or a PeerAuthentication disables mTLS"
	case ObstacleHealth:
		return "it is not ready, and its gateway would not use it"
	case ObstacleNoGateway:
		return "it is in another network, which has no gateway that can be used"
	case ObstaclePrivate:
		return "it is in another network, whose gateway does not pass calls on to it: its Service is not exported to the gateway's namespace, see its annotation " +
			mesh.AnnotationExportTo
	case ObstacleFamily:
		return "the gateways of its network have no address of an IP version that the proxy speaks"
	case ObstacleProxyless:
		return "it is in another network, and gRPC without a proxy cannot go through gateways"
	case ObstacleTwin:
		return "it has the address of another one, which gRPC refuses"
	case ObstacleDrained:
		return "its cluster is drained, and others can take its load: see meshctl multicluster undrain"
	}
	return string(o)
}

// Reach is how a proxy reaches an endpoint, or why it is not given it.
type Reach struct {
	Endpoint *snapshot.Endpoint
	// Gateways are those that it goes through; none is directly.
	Gateways []snapshot.NetworkGateway
	Obstacle Obstacle
	// Passthrough is why a gateway does not pass calls on to it that come by server
	// name, as those from other networks do; empty when it does, and for sidecars.
	Passthrough Obstacle
}

// PortReach is how a proxy reaches the endpoints of one port of a service.
type PortReach struct {
	Port      *snapshot.ServicePort
	Endpoints []Reach
}

// ReachOf tells how a proxy reaches the endpoints of a service, by the rules by which
// its assignments are made. missing says why it is not given any of the service.
func ReachOf(s *snapshot.Snapshot, n Node, svc *snapshot.MeshService) (ports []PortReach, missing string) {
	pod, labels := podOf(s, n)
	visible := VisibilityOf(s, n)
	switch {
	case svc.ExternalName != "":
		return nil, "it is another name of " + svc.ExternalName + ", and no endpoints belong to it"
	case !svc.VisibleTo(n.Namespace):
		return nil, "it is not exported to namespace " + n.Namespace + ": see its annotation " + mesh.AnnotationExportTo
	case visible.Sidecar != nil && !visible.Sees(svc):
		return nil, "the egress hosts of Sidecar " + visible.Sidecar.Namespace + "/" + visible.Sidecar.Name + " do not have it"
	case svc.Headless && n.ID.Type == mesh.Sidecar && !n.Proxyless:
		return nil, "it is headless: calls go on to the address that the application has resolved"
	}
	v := endpointViewOf(s, n, labels)
	if svc.NodeLocal {
		v = v.on(nodeOf(pod))
	}
	u := v.assignments(s, svc)
	for i := range svc.Ports {
		port := &svc.Ports[i]
		if port.Protocol == mesh.UDP {
			continue
		}
		var list []snapshot.Endpoint
		if u.endpoints != nil {
			list = u.endpoints.ByPort[port.Name]
		}
		reach := u.reach(list, false)
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

// reach tells of each endpoint of a list, as localities assigns them.
func (u assignments) reach(list []snapshot.Endpoint, mtlsOnly bool) []Reach {
	used := u.routes(list, mtlsOnly)
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
		r, obstacle := u.route(e, mtlsOnly)
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

// route is how the proxy reaches an endpoint: directly when there are no
// gateways.
type route struct {
	endpoint *snapshot.Endpoint
	gateways []snapshot.NetworkGateway
}

// routes are those to all endpoints that the proxy may use.
func (u assignments) routes(list []snapshot.Endpoint, mtlsOnly bool) []route {
	out := make([]route, 0, len(list))
	var seen map[netip.AddrPort]struct{}
	if u.proxyless {
		seen = make(map[netip.AddrPort]struct{}, len(list))
	}
	for i := range list {
		r, obstacle := u.route(&list[i], mtlsOnly)
		if obstacle != "" {
			continue
		}
		if u.proxyless { // gRPC refuses an assignment that has an address twice
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

// route is that to an endpoint, or what stands in its way.
func (u assignments) route(e *snapshot.Endpoint, mtlsOnly bool) (route, Obstacle) {
	switch {
	case u.cluster != "" && e.Cluster != u.cluster:
		return route{}, ObstacleCluster
	case u.nodeLocal && (u.node == "" || e.Node != u.node):
		return route{}, ObstacleNode
	case !u.wants(e.Network):
		return route{}, ObstacleView
	case mtlsOnly && !e.MTLS:
		return route{}, ObstaclePlaintext
	}
	gateways, obstacle := u.via(e)
	switch {
	case len(gateways) == 0 && obstacle == "":
		return route{endpoint: e}, ""
	case u.proxyless:
		// gRPC offers neither the server name nor the protocol by which a
		// gateway passes TLS through.
		return route{}, ObstacleProxyless
	case obstacle != "":
		return route{}, obstacle
	// Plaintext has no server name to be routed by, and an endpoint that
	// the far gateway would not use must not draw load there.
	case !e.MTLS:
		return route{}, ObstaclePlaintext
	case e.Health != snapshot.Healthy:
		return route{}, ObstacleHealth
	}
	return route{e, gateways}, ""
}

// wants reports whether the proxy's network view includes the network.
// Endpoints whose network is not known are always visible.
func (u assignments) wants(n mesh.NetworkID) bool {
	if u.view == "" || n == "" {
		return true
	}
	return slices.Contains(strings.Split(u.view, ","), string(n))
}

// via returns the gateways through which the proxy reaches an endpoint, or the
// obstacle when no gateway of the endpoint's network can be used. It returns
// neither when the proxy calls the endpoint at its own address.
func (u assignments) via(e *snapshot.Endpoint) ([]snapshot.NetworkGateway, Obstacle) {
	all := u.gateways.For(e.Network, e.Cluster)
	switch {
	case u.network == e.Network, len(all) == 0 && sameNetwork(u.network, e.Network):
		return nil, ""
	case len(all) == 0:
		return nil, ObstacleNoGateway
	}
	var out []snapshot.NetworkGateway
	obstacle := ObstacleFamily
	for i := range all {
		switch {
		case !u.service.PassedOnBy(&all[i], e.Cluster):
			obstacle = ObstaclePrivate
		case familyOf(all[i].Address)&u.families != 0:
			out = append(out, all[i])
		}
	}
	if len(out) == 0 {
		return nil, obstacle
	}
	return out, ""
}

// sameNetwork reports whether the networks of a proxy and of an endpoint may be
// one: a network that is not known may be any. Different names mean that only a
// gateway leads from one to the other, also while none is known: in the proxy's
// own network the address of the endpoint may belong to a stranger.
func sameNetwork(proxy, endpoint mesh.NetworkID) bool {
	return proxy == endpoint || proxy == "" || endpoint == ""
}

// headlessReaches reports whether a proxy of the cluster and network reaches the
// endpoint of a headless service, which gateways do not stand in for, at its own
// address.
func headlessReaches(svc *snapshot.MeshService, e *snapshot.Endpoint, c mesh.ClusterID, n mesh.NetworkID) bool {
	return sameNetwork(n, e.Network) && (e.Cluster == c || !clusterLocal(svc))
}
