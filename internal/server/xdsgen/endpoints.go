package xdsgen

import (
	"net/netip"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// endpointView is the view of the load assignments of all services for proxies with the
// same way to endpoints. It has services that a Sidecar hides, because proxies subscribe
// by name, but no services that are not exported to the namespace.
type endpointView struct {
	scope     scope
	client    snapshot.RuleClient
	router    bool
	proxyless bool
	cluster   mesh.ClusterID
	network   mesh.NetworkID
	view      string // requested networks, joined by commas; empty means all
	families  families
	place     place
	// passthrough reports whether this is for gateways that pass TLS through.
	passthrough bool
	// The view has either the NodeLocal services, for one node, or all other services.
	nodeLocal bool
	node      string
}

// views returns the view of public services, which proxies on all nodes and in all
// namespaces share, the view of private services, and the view for the node.
func (v endpointView) views(s *snapshot.Snapshot, node string) Views {
	public, private := v, v
	public.scope, private.scope.only = scope{only: publicServices}, privateServices
	out := Views{Shared: public}
	if s.Private {
		out.Private = private
	}
	if s.NodeLocal {
		out.Own = v.on(node)
	}
	return out
}

// on returns the view of the NodeLocal services for a node.
func (v endpointView) on(node string) endpointView {
	v.nodeLocal, v.node = true, node
	return v
}

func (v endpointView) Type() string { return xdswire.EndpointType }

func (v endpointView) Keys() Keys {
	return Keys{ServiceFacts: snapshot.ServiceFacts | snapshot.EndpointFacts | snapshot.RuleFacts | snapshot.GatewayFacts | snapshot.MeshFacts, scope: v.scope}
}

func (v endpointView) Unit(s *snapshot.Snapshot, k Key) Unit {
	return v.serviceUnit(s, s.Services.Get(k.Name))
}

func (v endpointView) serviceUnit(s *snapshot.Snapshot, svc *snapshot.MeshService) Unit {
	if svc == nil || svc.NodeLocal != v.nodeLocal || svc.ExternalName != "" || svc.Resolution.DNS() || toDestination(svc) && !v.router && !v.proxyless || !v.scope.sees(svc) {
		return nil
	}
	return v.assignments(s, svc)
}

func (v endpointView) assignments(s *snapshot.Snapshot, svc *snapshot.MeshService) assignments {
	u := assignments{
		service: svc, endpoints: s.Endpoints.Get(svc.Key),
		network: v.network, view: v.view, families: v.families, passthrough: v.passthrough, proxyless: v.proxyless,
		subsets: endpointSubsets(s.Mesh, svc, s.Rules.Get(svc.Key).For(v.client), v.place),
	}
	if clusterLocal(svc) {
		u.cluster = v.cluster
	}
	u.nodeLocal, u.node = svc.NodeLocal, v.node
	u.gateways = v.gateways(s, u.endpoints)
	return u
}

// gateways returns the gateways of the endpoints' networks other than the proxy's own.
func (v endpointView) gateways(s *snapshot.Snapshot, e *snapshot.Endpoints) list[snapshot.NetworkGateway] {
	var out []snapshot.NetworkGateway
	if e != nil {
		for _, n := range e.Networks {
			if n != v.network {
				out = append(out, s.Gateways.ByNetwork[n]...)
			}
		}
	}
	return listOf(out)
}

// endpointSubset is the part of a DestinationRule that decides which endpoints a cluster
// has, and which a client prefers.
type endpointSubset struct {
	Name   string // empty for the whole service
	Labels list[entry[string, string]]
	// Ports holds the policies of ports that have one.
	Ports list[entry[uint32, endpointPolicy]]
}

type endpointPolicy struct {
	TLS ruledTLS
	// Ready reports whether endpoints that are not ready are left out.
	Ready    bool
	Locality localityPolicy
}

// ruledTLS sets whether a rule turns mTLS of the mesh on or off.
type ruledTLS uint8

const (
	tlsByEndpoint ruledTLS = iota // the endpoints decide
	tlsOff
	tlsOn
)

// endpointPolicyOf returns the policy of a port: own is the policy of its rule, and p also has the
// defaults of the mesh.
func endpointPolicyOf(m *snapshot.Mesh, of snapshot.Distribution, own, p *networkingv1alpha3.TrafficPolicy, client place) endpointPolicy {
	outlier := p.GetOutlierDetection()
	failover := failsOver(own, p) || of != snapshot.NoDistribution && p.GetLoadBalancer().GetLocalityLbSetting() == nil
	out := endpointPolicy{Ready: outlier.GetMinHealthPercent() > 0, Locality: client.policy(localitySetting(m, of, p), failover)}
	if tls := p.GetTls(); tls != nil {
		if out.TLS = tlsOff; tls.GetMode() == networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL {
			out.TLS = tlsOn
		}
	}
	return out
}

// endpointSubsets returns the subsets of a service, the whole service first. A service
// without a rule that matters has an empty list. As the list is comparable, other changes of a
// DestinationRule generate no assignments.
func endpointSubsets(m *snapshot.Mesh, svc *snapshot.MeshService, rule *snapshot.HostRule, client place) (none list[endpointSubset]) {
	if rule == nil && m.DefaultPolicy == nil && svc.Distribution == snapshot.NoDistribution && len(localitySetting(m, snapshot.NoDistribution, nil).GetDistribute()) == 0 {
		return none
	}
	var out []endpointSubset
	matters := false
	for _, subset := range subsetsOf(rule) {
		var ports []entry[uint32, endpointPolicy]
		for i := range svc.Ports {
			number := svc.Ports[i].Number
			if p := endpointPolicyOf(m, svc.Distribution, rule.PolicyAt(number, subset), rule.PolicyOver(m.DefaultPolicy, number, subset), client); p != (endpointPolicy{}) {
				ports = append(ports, entry[uint32, endpointPolicy]{number, p})
			}
		}
		matters = matters || subset != nil || ports != nil
		out = append(out, endpointSubset{subset.GetName(), sortedEntries(subset.GetLabels()), listOf(ports)})
	}
	if !matters {
		return none
	}
	return listOf(out)
}

// wholeAndSubsets returns the whole service and its subsets.
func wholeAndSubsets(subsets list[endpointSubset]) []endpointSubset {
	if subsets.Empty() {
		return []endpointSubset{{}}
	}
	return subsets.Slice()
}

// of returns the endpoints of a port that belong to the subset.
func (e *endpointSubset) of(list []snapshot.Endpoint, port uint32) []snapshot.Endpoint {
	p := valueOf(e.Ports, port)
	if e.Labels.Empty() && p.TLS == tlsByEndpoint && !p.Ready {
		return list
	}
	var out []snapshot.Endpoint
	for i := range list {
		if !hasLabels(&list[i], e.Labels) || p.Ready && list[i].Health != snapshot.Healthy {
			continue
		}
		one := list[i]
		if p.TLS != tlsByEndpoint {
			one.MTLS = p.TLS == tlsOn
		}
		out = append(out, one)
	}
	return out
}

// hasLabels reports whether an endpoint has all of the wanted labels.
func hasLabels(e *snapshot.Endpoint, want list[entry[string, string]]) bool {
	for l := range want.All {
		if v, ok := e.Label(l.Key); !ok || v != l.Value {
			return false
		}
	}
	return true
}

// withoutTLS returns the subset with the mTLS of its endpoints.
func (e *endpointSubset) withoutTLS(port uint32) *endpointSubset {
	p := valueOf(e.Ports, port)
	p.TLS = tlsByEndpoint
	return &endpointSubset{Labels: e.Labels, Ports: onlyPort(port, p)}
}

// onlyPort returns the policies of a subset in which only one port has a policy.
func onlyPort(number uint32, p endpointPolicy) list[entry[uint32, endpointPolicy]] {
	return listOf([]entry[uint32, endpointPolicy]{{number, p}})
}

// assignments generates the load assignments of one service: one for each port and for
// each subset of a port, and for gateways that pass TLS through another one for that.
type assignments struct {
	service   *snapshot.MeshService
	subsets   list[endpointSubset]
	endpoints *snapshot.Endpoints
	gateways  list[snapshot.NetworkGateway] // of other networks
	network   mesh.NetworkID
	view      string
	families  families
	proxyless bool           // for gRPC without a proxy
	cluster   mesh.ClusterID // the only usable cluster; empty means all

	passthrough bool
	nodeLocal   bool
	node        string // the only usable node, if nodeLocal
}

func (u assignments) Type() string { return xdswire.EndpointType }

func (u assignments) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g, subsets := generator{enc: enc}, wholeAndSubsets(u.subsets)
	for i := range u.service.Ports {
		port := &u.service.Ports[i]
		if port.Protocol == mesh.UDP {
			continue
		}
		for _, subset := range subsets {
			name, list := mesh.ClusterName{Direction: mesh.Outbound, Port: port.Number, Subset: subset.Name, Host: u.service.Host}, u.endpointsOf(port)
			near := valueOf(subset.Ports, port.Number).Locality
			u.assignment(&g, name.String(), subset.of(list, port.Number), false, near)
			if u.passesThrough() {
				u.assignment(&g, name.SNI(), subset.withoutTLS(port.Number).of(list, port.Number), true, near)
			}
		}
	}
	return g.resources()
}

// endpointsOf returns all endpoints of a port.
func (u assignments) endpointsOf(port *snapshot.ServicePort) []snapshot.Endpoint {
	if u.endpoints == nil {
		return nil
	}
	return u.endpoints.ByPort[port.Name]
}

// passesThrough reports whether the gateway forwards calls by server name to the service.
func (u assignments) passesThrough() bool {
	return u.passthrough && passable(u.service)
}

func (u assignments) assignment(g *generator, name string, list []snapshot.Endpoint, mtlsOnly bool, policy localityPolicy) {
	g.add(xdswire.EndpointType, name, &endpointv3.ClusterLoadAssignment{
		ClusterName: name, Endpoints: u.localities(list, mtlsOnly, policy),
	})
}

func (u assignments) lbEndpoint(e *snapshot.Endpoint, weight uint32) *endpointv3.LbEndpoint {
	health := corev3.HealthStatus_UNKNOWN // Envoy treats it as healthy
	if e.Health == snapshot.Unhealthy {
		health = corev3.HealthStatus_UNHEALTHY
	}
	if u.proxyless { // gRPC reads no metadata
		return endpointProto(e.Address, e.Port, weight, health, false, "")
	}
	lb := endpointProto(e.Address, e.Port, weight, health, e.MTLS, e.Workload)
	if e.Target != "" {
		lb.GetEndpoint().Address = targetAddress(e.Target, e.Port)
	}
	if u.network != "" && e.Network != u.network {
		setNetwork(lb, e.Network)
	}
	return lb
}

// targetAddress returns the address of an endpoint with a host name or a path.
func targetAddress(target string, port uint32) *corev3.Address {
	if path, ok := strings.CutPrefix(target, snapshot.UnixScheme); ok {
		return pipe(path)
	}
	return address(target, port)
}

func gatewayEndpoint(g snapshot.NetworkGateway, weight uint32) *endpointv3.LbEndpoint {
	lb := endpointProto(g.Address, g.Port, weight, corev3.HealthStatus_UNKNOWN, true, ";;;;"+string(g.Cluster))
	setNetwork(lb, g.Network)
	return lb
}

// setNetwork sets the metadata with the network, which only commands read.
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

// passable reports whether gateways pass on calls by server name to a service.
func passable(svc *snapshot.MeshService) bool {
	return !svc.Headless && !clusterLocal(svc) && !svc.External && svc.Resolution == snapshot.ByEndpoints && !svc.IsWildcard()
}

// subsetsOf returns the subsets of a rule, first nil for the whole service.
func subsetsOf(r *snapshot.HostRule) []*networkingv1alpha3.Subset {
	out := []*networkingv1alpha3.Subset{nil}
	if r != nil {
		out = append(out, r.Subsets...)
	}
	return out
}

// toDestination reports whether clients of a service choose the address of an endpoint.
func toDestination(svc *snapshot.MeshService) bool {
	return svc.Headless || svc.Resolution == snapshot.ByDestination
}

// clusterLocal reports whether clients call only endpoints of their own cluster, or of
// their own node.
func clusterLocal(svc *snapshot.MeshService) bool {
	return svc.NodeLocal || svc.ClusterLocal
}

// endpointViewOf returns the endpoint view of a proxy whose workload has these labels.
func endpointViewOf(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string) endpointView {
	v := endpointView{
		router: n.ID.Type == mesh.Router, proxyless: n.Proxyless, cluster: n.Cluster, network: networkOf(s, n, labels),
		view: joinNetworks(n.View), families: n.families(), client: snapshot.RuleClientOf(s.Namespaces.Get(n.Namespace), labels),
		place: clientPlace(s, n, pod, labels),
	}
	if s.Private {
		v.scope.namespace = n.Namespace
	}
	v.passthrough = v.router && passesByName(s, labels)
	return v
}
