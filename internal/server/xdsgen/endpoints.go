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

// localities returns the endpoints as the proxy is given them: those that it
// calls directly keep their address; each endpoint of another network gives its
// weight to the gateways of that network that the proxy can use. Weights are
// multiplied so that they divide evenly, which keeps the share of every endpoint.
//
// Of each priority a gateway stands in the first locality, by name, that it stands
// in for, with the weight of all of them: Envoy keeps only the first of two hosts
// with one address. So of a gateway of two priorities it uses the first, with the
// weight of that priority alone. mtlsOnly leaves out what cannot be reached by server
// name.
func (u assignments) localities(list []snapshot.Endpoint, mtlsOnly bool) []*endpointv3.LocalityLbEndpoints {
	routes := withoutDrained(u.routes(list, mtlsOnly))
	factor := divisible(routes)
	direct := make(map[group][]*endpointv3.LbEndpoint)
	far := make(map[stand]*standIn)
	for _, r := range routes {
		e, at := r.endpoint, group{r.endpoint.Demoted, r.endpoint.Locality}
		weight := clip(uint64(factor) * uint64(max(e.Weight, 1)))
		if r.gateways == nil {
			direct[at] = append(direct[at], u.lbEndpoint(e, weight))
		}
		for _, g := range r.gateways {
			s := stand{at.demoted, netip.AddrPortFrom(g.Address, uint16(g.Port))}
			far[s] = far[s].with(g, at, max(uint64(weight)/uint64(len(r.gateways)), 1))
		}
	}
	for _, s := range slices.SortedFunc(maps.Keys(far), stand.compare) {
		in := far[s]
		direct[in.at] = append(direct[in.at], gatewayEndpoint(in.gateway, clip(in.weight)))
	}
	var out []*endpointv3.LocalityLbEndpoints
	some := false // something comes before what is demoted
	for _, at := range slices.SortedFunc(maps.Keys(direct), group.compare) {
		var total uint64
		for _, lb := range direct[at] {
			total += uint64(lb.GetLoadBalancingWeight().GetValue())
		}
		l := &endpointv3.LocalityLbEndpoints{
			Locality:            localityProto(at.locality),
			LbEndpoints:         direct[at],
			LoadBalancingWeight: wrapperspb.UInt32(clip(total)),
		}
		some = some || !at.demoted
		if at.demoted && some { // Envoy wants priorities without gaps
			l.Priority = 1
		}
		out = append(out, l)
	}
	return out
}

// maxFactor keeps multiplied weights far from overflow.
const maxFactor = 1 << 16

// divisible returns a factor that makes weights divide by the number of gateways of
// each route.
func divisible(routes []route) uint32 {
	var sizes []int
	for _, r := range routes {
		if n := len(r.gateways); n > 1 && !slices.Contains(sizes, n) {
			sizes = append(sizes, n)
		}
	}
	slices.Sort(sizes)
	factor := 1
	for _, n := range slices.Backward(sizes) { // the largest first: others may divide it
		if factor%n != 0 && factor*n <= maxFactor {
			factor *= n
		}
	}
	return uint32(factor)
}

// group is where endpoints are balanced together.
type group struct {
	demoted  bool
	locality mesh.Locality
}

func (g group) compare(other group) int {
	switch {
	case g.demoted == other.demoted:
		return g.locality.Compare(other.locality)
	case g.demoted:
		return 1
	}
	return -1
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

// withoutDrained leaves out what is drained where something else is healthy.
func withoutDrained(routes []route) []route {
	drained := func(r route) bool { return r.endpoint.Drained }
	if slices.ContainsFunc(routes, drained) && slices.ContainsFunc(routes, func(r route) bool {
		return !r.endpoint.Drained && r.endpoint.Health == snapshot.Healthy
	}) {
		return slices.DeleteFunc(routes, drained)
	}
	return routes
}

// stand is the address of a gateway in one priority.
type stand struct {
	demoted bool
	address netip.AddrPort
}

// compare orders those of one priority.
func (s stand) compare(other stand) int { return s.address.Compare(other.address) }

// standIn is a gateway in the place of endpoints of its network.
type standIn struct {
	gateway snapshot.NetworkGateway
	at      group
	weight  uint64
}

// with adds the weight of an endpoint of the group; s may be nil.
func (s *standIn) with(g snapshot.NetworkGateway, at group, weight uint64) *standIn {
	if s == nil {
		return &standIn{g, at, weight}
	}
	if at.compare(s.at) < 0 {
		s.at = at
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

// clip keeps a sum within what Envoy accepts.
func clip(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }

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
