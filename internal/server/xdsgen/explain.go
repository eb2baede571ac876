package xdsgen

import (
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Target is a port of a service, on which a workload is called.
type Target struct {
	Service *snapshot.MeshService
	Port    snapshot.ServicePort
	Number  uint32 // of the workload's port
}

// Targets are those of a proxy, by the services of its own cluster.
func Targets(s *snapshot.Snapshot, n Node) []Target {
	pod, labels := podOf(s, n)
	var out []Target
	for _, t := range serviceTargets(s, n, pod, labels) {
		svc := s.Services.Get(t.Host)
		if svc == nil {
			continue
		}
		port := snapshot.ServicePort{Number: t.Service, Protocol: t.Protocol}
		if p := svc.Port(t.Service); p != nil {
			port = *p
		}
		out = append(out, Target{Service: svc, Port: port, Number: t.Port})
	}
	return out
}

// Sight is what a proxy may see.
type Sight struct {
	// Sidecar is the one that applies to it, nil without any.
	Sidecar *snapshot.Sidecar
	// Sees reports whether it is given a service.
	Sees func(*snapshot.MeshService) bool
}

// SightOf is that of a proxy. No Sidecar applies to gateways.
func SightOf(s *snapshot.Snapshot, n Node) Sight {
	sc := scope{namespace: n.Namespace}
	if n.ID.Type == mesh.Sidecar {
		_, labels := podOf(s, n)
		sc.sidecar = chooseSidecar(s, n.Namespace, labels)
	}
	return Sight{Sidecar: sc.sidecar, Sees: sc.sees}
}

// NetworkOf is the network that a proxy is in.
func NetworkOf(s *snapshot.Snapshot, n Node) mesh.NetworkID {
	_, labels := podOf(s, n)
	return networkOf(s, n, labels)
}

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
	sight := SightOf(s, n)
	switch {
	case svc.ExternalName != "":
		return nil, "it is another name of " + svc.ExternalName + ", and no endpoints belong to it"
	case !svc.VisibleTo(n.Namespace):
		return nil, "it is not exported to namespace " + n.Namespace + ": see its annotation " + mesh.AnnotationExportTo
	case sight.Sidecar != nil && !sight.Sees(svc):
		return nil, "the egress hosts of Sidecar " + sight.Sidecar.Namespace + "/" + sight.Sidecar.Name + " do not have it"
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
