package xdsgen

import (
	"cmp"
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
// here.
type endpointView struct {
	router   bool
	cluster  mesh.ClusterID
	network  mesh.NetworkID
	view     string // networks that are wanted, joined by commas; empty is all
	families families
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
	if svc == nil || svc.ExternalName != "" || svc.Headless && !v.router {
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
		names := map[string]bool{name.String(): false}
		order := []string{name.String()}
		if u.router && !u.service.Headless && u.cluster == "" {
			names[name.SNI()] = true
			order = append(order, name.SNI())
		}
		for _, n := range order {
			r, err := enc.Resource(xdswire.EndpointType, n, &endpointv3.ClusterLoadAssignment{
				ClusterName: n,
				Endpoints:   u.localities(list, names[n]),
			})
			if err != nil {
				return nil, err
			}
			out = append(out, r)
		}
	}
	return out, nil
}

// localities groups the endpoints and puts gateways in the place of those of
// other networks. mtlsOnly leaves out what cannot be reached by server name.
func (u assignments) localities(list []snapshot.Endpoint, mtlsOnly bool) []*endpointv3.LocalityLbEndpoints {
	groups := make(map[mesh.Locality][]*snapshot.Endpoint)
	for i := range list {
		e := &list[i]
		if u.cluster != "" && e.Cluster != u.cluster || !u.wants(e.Network) || mtlsOnly && !e.MTLS {
			continue
		}
		groups[e.Locality] = append(groups[e.Locality], e)
	}
	var out []*endpointv3.LocalityLbEndpoints
	for _, loc := range slices.SortedFunc(maps.Keys(groups), mesh.Locality.Compare) {
		lbs, total := u.splitHorizon(groups[loc])
		if len(lbs) == 0 {
			continue
		}
		out = append(out, &endpointv3.LocalityLbEndpoints{
			Locality:            localityProto(loc),
			LbEndpoints:         lbs,
			LoadBalancingWeight: wrapperspb.UInt32(total),
		})
	}
	return out
}

// wants reports whether the proxy's network view includes the network.
// Endpoints whose network is not known are always visible.
func (u assignments) wants(n mesh.NetworkID) bool {
	if u.view == "" || n == "" {
		return true
	}
	return slices.Contains(strings.Split(u.view, ","), string(n))
}

// splitHorizon is the heart of several networks: endpoints of the proxy's own
// network keep their address; each endpoint of another network gives its
// weight to the gateways of that network. Weights are multiplied so that they
// divide evenly, which keeps the share of every endpoint what it was.
func (u assignments) splitHorizon(list []*snapshot.Endpoint) ([]*endpointv3.LbEndpoint, uint32) {
	factor := uint32(1)
	if u.gateways != nil {
		factor = max(u.gateways.LCM, 1)
	}
	var out []*endpointv3.LbEndpoint
	var total uint64
	stands := make(map[snapshot.NetworkGateway]uint64)
	for _, e := range list {
		gateways, direct := u.via(e)
		switch {
		case direct:
			out = append(out, lbEndpoint(e, factor))
			total += uint64(factor)
		// Plaintext has no server name to be routed by, and an endpoint that
		// the far gateway would not use must not draw load there.
		case e.MTLS && e.Health == snapshot.Healthy:
			for _, g := range gateways {
				stands[g] += max(uint64(factor)/uint64(len(gateways)), 1)
			}
		}
	}
	for _, g := range slices.SortedFunc(maps.Keys(stands), compareGateways) {
		out = append(out, gatewayEndpoint(g, clip(stands[g])))
		total += stands[g]
	}
	return out, clip(total)
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

func compareGateways(x, y snapshot.NetworkGateway) int {
	return cmp.Or(x.Address.Compare(y.Address), cmp.Compare(x.Port, y.Port),
		cmp.Compare(x.Network, y.Network), cmp.Compare(x.Cluster, y.Cluster))
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

func localityProto(l mesh.Locality) *corev3.Locality {
	return &corev3.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.Subzone}
}
