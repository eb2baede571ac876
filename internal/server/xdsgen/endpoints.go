package xdsgen

import (
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// endpointView are the assignments of all services as proxies of one network
// see them. Proxies subscribe by name, so what a Sidecar hides is not left out
// here; what is not exported to their namespace is.
type endpointView struct {
	namespace string // empty when it makes no difference
	router    bool
	proxyless bool
	cluster   mesh.ClusterID
	network   mesh.NetworkID
	view      string // networks that are wanted, joined by commas; empty is all
	families  families
	// passthrough gateways pass TLS through by its server name.
	passthrough bool
	// A view is of the services that are reached on one node alone, or of all
	// others.
	nodeLocal bool
	node      string
}

// views are the view of all proxies that are like one on the node, and its own.
func (v endpointView) views(s *snapshot.Snapshot, node string) Views {
	out := Views{Shared: v}
	if s.NodeLocal {
		out.Own = v.on(node)
	}
	return out
}

// on is the view of the services that are reached on the node alone.
func (v endpointView) on(node string) endpointView {
	v.nodeLocal, v.node = true, node
	return v
}

func (v endpointView) Type() string { return xdswire.EndpointType }

func (v endpointView) Reads() snapshot.Kinds { return snapshot.ServiceFacts | snapshot.EndpointFacts }

func (v endpointView) Units(s *snapshot.Snapshot, yield func(string, Unit)) {
	for host := range s.Services.All() {
		v.unit(s, host, yield)
	}
}

func (v endpointView) Touched(s *snapshot.Snapshot, c *snapshot.Changes, yield func(string, Unit)) {
	for host := range c.Services {
		v.unit(s, host, yield)
	}
	for host := range c.Endpoints {
		v.unit(s, host, yield)
	}
}

func (v endpointView) unit(s *snapshot.Snapshot, host string, yield func(string, Unit)) {
	svc := s.Services.Get(host)
	if svc == nil || svc.NodeLocal != v.nodeLocal || svc.ExternalName != "" || svc.Headless && !v.router && !v.proxyless || !svc.VisibleTo(v.namespace) {
		yield(host, nil)
		return
	}
	yield(host, v.assignments(s, svc))
}

func (v endpointView) assignments(s *snapshot.Snapshot, svc *snapshot.MeshService) assignments {
	u := assignments{
		service: svc, endpoints: s.Endpoints.Get(svc.Host), gateways: s.Gateways,
		network: v.network, view: v.view, families: v.families, passthrough: v.passthrough, proxyless: v.proxyless,
	}
	if clusterLocal(svc) {
		u.cluster = v.cluster
	}
	u.nodeLocal, u.node = svc.NodeLocal, v.node
	return u
}

// assignments are the load assignments of one service: one for each port, and
// on gateways that pass TLS through one for each cluster for that.
type assignments struct {
	service   *snapshot.MeshService
	endpoints *snapshot.Endpoints
	gateways  *snapshot.Gateways
	network   mesh.NetworkID
	view      string
	families  families
	proxyless bool           // for gRPC itself
	cluster   mesh.ClusterID // the only cluster that counts; empty is all

	passthrough bool
	nodeLocal   bool
	node        string // the only node that counts, if nodeLocal
}

func (u assignments) Type() string { return xdswire.EndpointType }

func (u assignments) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var out []*xdswire.Resource
	for i := range u.service.Ports {
		port := &u.service.Ports[i]
		if port.Protocol == mesh.UDP {
			continue
		}
		var list []snapshot.Endpoint
		if u.endpoints != nil {
			list = u.endpoints.ByPort[port.Name]
		}
		name := mesh.ClusterName{Direction: mesh.Outbound, Port: port.Number, Host: u.service.Host}
		r, err := u.assignment(enc, name.String(), list, false)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
		if !u.passesThrough() {
			continue
		}
		if r, err = u.assignment(enc, name.SNI(), list, true); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// passesThrough reports whether calls by server name are passed on to the service.
func (u assignments) passesThrough() bool {
	return u.passthrough && !u.service.Headless && u.cluster == ""
}

func (u assignments) assignment(enc *xdswire.Encoder, name string, list []snapshot.Endpoint, mtlsOnly bool) (*xdswire.Resource, error) {
	return enc.Resource(xdswire.EndpointType, name, &endpointv3.ClusterLoadAssignment{
		ClusterName: name, Endpoints: u.localities(list, mtlsOnly),
	})
}

func (u assignments) lbEndpoint(e *snapshot.Endpoint, weight uint32) *endpointv3.LbEndpoint {
	health := corev3.HealthStatus_UNKNOWN // Envoy treats it as healthy
	if e.Health == snapshot.Unhealthy {
		health = corev3.HealthStatus_UNHEALTHY
	}
	if u.proxyless { // it reads no metadata
		return endpointProto(e.Address, e.Port, weight, health, false, "")
	}
	lb := endpointProto(e.Address, e.Port, weight, health, e.MTLS, e.Workload)
	if u.network != "" && e.Network != u.network {
		setNetwork(lb, e.Network)
	}
	return lb
}

func gatewayEndpoint(g snapshot.NetworkGateway, weight uint32) *endpointv3.LbEndpoint {
	lb := endpointProto(g.Address, g.Port, weight, corev3.HealthStatus_UNKNOWN, true, ";;;;"+string(g.Cluster))
	setNetwork(lb, g.Network)
	return lb
}

// setNetwork notes a network that is not the proxy's own. Nothing depends on it:
// commands show it.
func setNetwork(lb *endpointv3.LbEndpoint, network mesh.NetworkID) {
	if network == "" {
		return
	}
	if lb.GetMetadata() == nil {
		lb.Metadata = &corev3.Metadata{FilterMetadata: make(map[string]*structpb.Struct)}
	}
	lb.Metadata.FilterMetadata[mesh.MetadataNamespace] = &structpb.Struct{Fields: map[string]*structpb.Value{
		mesh.MetadataNetwork: structpb.NewStringValue(string(network)),
	}}
}

func endpointProto(addr netip.Addr, port, weight uint32, health corev3.HealthStatus, mtls bool, workload string) *endpointv3.LbEndpoint {
	md := &corev3.Metadata{FilterMetadata: make(map[string]*structpb.Struct)}
	if mtls {
		md.FilterMetadata["envoy.transport_socket_match"] = tlsModeMatch()
	}
	if workload != "" {
		md.FilterMetadata["istio"] = &structpb.Struct{Fields: map[string]*structpb.Value{
			"workload": structpb.NewStringValue(workload),
		}}
	}
	if len(md.FilterMetadata) == 0 {
		md = nil
	}
	return &endpointv3.LbEndpoint{
		HostIdentifier:      &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address(addr.String(), port)}},
		HealthStatus:        health,
		LoadBalancingWeight: wrapperspb.UInt32(weight),
		Metadata:            md,
	}
}
