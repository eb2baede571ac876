package xdsgen

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

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
	cluster   mesh.ClusterID
	network   mesh.NetworkID
	view      string // networks that are wanted, joined by commas; empty is all
	families  families
}

func (v endpointView) Type() string { return xdswire.EndpointType }

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
	if svc == nil || svc.ExternalName != "" || svc.Headless && !v.router || !svc.VisibleTo(v.namespace) {
		yield(host, nil)
		return
	}
	u := assignments{
		service: svc, endpoints: s.Endpoints.Get(host), gateways: s.Gateways,
		network: v.network, view: v.view, families: v.families, router: v.router,
	}
	if clusterLocal(svc) {
		u.cluster = v.cluster
	}
	yield(host, u)
}

// assignments are the load assignments of one service: one for each port, and
// on gateways one for each pass-through cluster.
type assignments struct {
	service   *snapshot.MeshService
	endpoints *snapshot.Endpoints
	gateways  *snapshot.Gateways
	network   mesh.NetworkID
	view      string
	families  families
	router    bool
	cluster   mesh.ClusterID // the only cluster that counts; empty is all
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
		if !u.router || u.service.Headless || u.cluster != "" {
			continue
		}
		if r, err = u.assignment(enc, name.SNI(), list, true); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

func (u assignments) assignment(enc *xdswire.Encoder, name string, list []snapshot.Endpoint, mtlsOnly bool) (*xdswire.Resource, error) {
	return enc.Resource(xdswire.EndpointType, name, &endpointv3.ClusterLoadAssignment{
		ClusterName: name, Endpoints: u.localities(list, mtlsOnly),
	})
}

// localities is the heart of several networks: endpoints that the proxy
// reaches directly keep their address; each endpoint of another network gives
// its weight to the gateways of that network. Weights are multiplied so that
// they divide evenly, which keeps the share of every endpoint what it was.
//
// A gateway stands in the first locality, by name, that it stands in for, with
// the weight of all of them: Envoy keeps only the first of two hosts with one
// address. mtlsOnly leaves out what cannot be reached by server name.
func (u assignments) localities(list []snapshot.Endpoint, mtlsOnly bool) []*endpointv3.LocalityLbEndpoints {
	factor := uint32(1)
	if u.gateways != nil {
		factor = max(u.gateways.LCM, 1)
	}
	direct := make(map[mesh.Locality][]*endpointv3.LbEndpoint)
	far := make(map[netip.AddrPort]*standIn)
	for i := range list {
		e := &list[i]
		if u.cluster != "" && e.Cluster != u.cluster || !u.wants(e.Network) || mtlsOnly && !e.MTLS {
			continue
		}
		gateways, near := u.via(e)
		switch {
		case near:
			direct[e.Locality] = append(direct[e.Locality], lbEndpoint(e, factor))
		// Plaintext has no server name to be routed by, and an endpoint that
		// the far gateway would not use must not draw load there.
		case e.MTLS && e.Health == snapshot.Healthy:
			for _, g := range gateways {
				at := netip.AddrPortFrom(g.Address, uint16(g.Port))
				far[at] = far[at].with(g, e.Locality, max(uint64(factor)/uint64(len(gateways)), 1))
			}
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(far), netip.AddrPort.Compare) {
		s := far[at]
		direct[s.locality] = append(direct[s.locality], gatewayEndpoint(s.gateway, clip(s.weight)))
	}
	var out []*endpointv3.LocalityLbEndpoints
	for _, loc := range slices.SortedFunc(maps.Keys(direct), mesh.Locality.Compare) {
		var total uint64
		for _, lb := range direct[loc] {
			total += uint64(lb.GetLoadBalancingWeight().GetValue())
		}
		out = append(out, &endpointv3.LocalityLbEndpoints{
			Locality:            localityProto(loc),
			LbEndpoints:         direct[loc],
			LoadBalancingWeight: wrapperspb.UInt32(clip(total)),
		})
	}
	return out
}

// standIn is a gateway in the place of endpoints of its network.
type standIn struct {
	gateway  snapshot.NetworkGateway
	locality mesh.Locality
	weight   uint64
}

// with adds the weight of an endpoint of the locality; s may be nil.
func (s *standIn) with(g snapshot.NetworkGateway, l mesh.Locality, weight uint64) *standIn {
	if s == nil {
		return &standIn{g, l, weight}
	}
	if l.Compare(s.locality) < 0 {
		s.locality = l
	}
	s.weight += weight
	return s
}

// wants reports whether the proxy's network view includes the network.
// Endpoints whose network is not known are always visible.
func (u assignments) wants(n mesh.NetworkID) bool {
	if u.view == "" || n == "" {
		return true
	}
	return slices.Contains(strings.Split(u.view, ","), string(n))
}

// via is how the proxy reaches an endpoint: directly, or through one of the
// gateways. Neither when its network has only gateways of an IP version that
// the proxy does not speak.
func (u assignments) via(e *snapshot.Endpoint) (gateways []snapshot.NetworkGateway, direct bool) {
	if u.gateways == nil {
		return nil, true
	}
	all := u.gateways.For(e.Network, e.Cluster)
	if len(all) == 0 || u.network == e.Network {
		return nil, true
	}
	for _, g := range all {
		if familyOf(g.Address)&u.families != 0 {
			gateways = append(gateways, g)
		}
	}
	return gateways, false
}

// clip keeps a sum within what Envoy accepts.
func clip(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }

func lbEndpoint(e *snapshot.Endpoint, weight uint32) *endpointv3.LbEndpoint {
	health := corev3.HealthStatus_UNKNOWN // Envoy treats it as healthy
	if e.Health == snapshot.Unhealthy {
		health = corev3.HealthStatus_UNHEALTHY
	}
	return endpointProto(e.Address, e.Port, weight, health, e.MTLS, e.Workload)
}

func gatewayEndpoint(g snapshot.NetworkGateway, weight uint32) *endpointv3.LbEndpoint {
	return endpointProto(g.Address, g.Port, weight, corev3.HealthStatus_UNKNOWN, true, ";;;;"+string(g.Cluster))
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

func address(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func pipe(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}

func localityProto(l mesh.Locality) *corev3.Locality {
	return &corev3.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.Subzone}
}
