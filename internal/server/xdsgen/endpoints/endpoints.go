// Package endpoints generates the endpoints of services as a proxy uses them: which it reaches, directly
// or through the gateway of another network, with weights and localities.
package endpoints

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
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// View is the view of the load assignments of all services for proxies with the
// same way to endpoints. It has services that a Sidecar hides, because proxies subscribe
// by name, but no services that are not exported to the namespace.
type View struct {
	Scope     proxy.Scope
	Client    snapshot.RuleClient
	Router    bool
	Proxyless bool
	Cluster   mesh.ClusterID
	Network   mesh.NetworkID
	View      string // requested networks, joined by commas; empty means all
	Families  proxy.Families
	Place     Place
	// Passthrough reports whether this is for gateways that pass TLS through.
	Passthrough bool
	// The view has either the NodeLocal services, for one node, or all other services.
	nodeLocal bool
	node      string
}

// Views returns the view of public services, which proxies on all nodes and in all
// namespaces share, the view of private services, and the view for the node.
func (v View) Views(s *snapshot.Snapshot, node string) units.Views {
	public, private := v, v
	public.Scope, private.Scope.Only = proxy.Scope{Only: proxy.PublicServices}, proxy.PrivateServices
	out := units.Views{Shared: public}
	if s.Private {
		out.Private = private
	}
	if s.NodeLocal {
		out.Own = v.on(node)
	}
	return out
}

// on returns the view of the NodeLocal services for a node.
func (v View) on(node string) View {
	v.nodeLocal, v.node = true, node
	return v
}

// Type implements units.View.
func (v View) Type() string { return xdswire.EndpointType }

// Keys implements units.View.
func (v View) Keys() units.Keys {
	return units.Keys{ServiceFacts: snapshot.ServiceFacts | snapshot.EndpointFacts | snapshot.RuleFacts | snapshot.GatewayFacts | snapshot.MeshFacts, Scope: v.Scope}
}

// Unit implements units.View.
func (v View) Unit(s *snapshot.Snapshot, k units.Key) units.Unit {
	return v.serviceUnit(s, s.Services.Get(k.Name))
}

func (v View) serviceUnit(s *snapshot.Snapshot, svc *snapshot.MeshService) units.Unit {
	if svc == nil || svc.NodeLocal != v.nodeLocal || svc.ExternalName != "" || svc.Resolution.DNS() || ToDestination(svc) && !v.Router && !v.Proxyless || !v.Scope.Sees(svc) {
		return nil
	}
	return v.assignments(s, svc)
}

func (v View) assignments(s *snapshot.Snapshot, svc *snapshot.MeshService) Assignments {
	u := Assignments{
		Service: svc, endpoints: s.Endpoints.Get(svc.Key),
		network: v.Network, view: v.View, families: v.Families, passthrough: v.Passthrough, proxyless: v.Proxyless,
		subsets: EndpointSubsets(s.Mesh, svc, s.Rules.Get(svc.Key).For(v.Client), v.Place),
	}
	if clusterLocal(svc) {
		u.cluster = v.Cluster
	}
	u.nodeLocal, u.node = svc.NodeLocal, v.node
	u.gateways = v.gateways(s, u.endpoints)
	return u
}

// gateways returns the gateways of the endpoints' networks other than the proxy's own.
func (v View) gateways(s *snapshot.Snapshot, e *snapshot.Endpoints) wire.List[snapshot.NetworkGateway] {
	var out []snapshot.NetworkGateway
	if e != nil {
		for _, n := range e.Networks {
			if n != v.Network {
				out = append(out, s.Gateways.ByNetwork[n]...)
			}
		}
	}
	return wire.ListOf(out)
}

// EndpointSubset is the part of a DestinationRule that decides which endpoints a cluster
// has, and which a client prefers.
type EndpointSubset struct {
	Name   string // empty for the whole service
	Labels wire.List[wire.Entry[string, string]]
	// Ports holds the policies of ports that have one.
	Ports wire.List[wire.Entry[uint32, endpointPolicy]]
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
func endpointPolicyOf(m *snapshot.Mesh, of snapshot.Distribution, own, p *networkingv1alpha3.TrafficPolicy, client Place) endpointPolicy {
	outlier := p.GetOutlierDetection()
	failover := failsOver(own, p) || of != snapshot.NoDistribution && p.GetLoadBalancer().GetLocalityLbSetting() == nil
	out := endpointPolicy{Ready: outlier.GetMinHealthPercent() > 0, Locality: client.Policy(LocalitySetting(m, of, p), failover)}
	if tls := p.GetTls(); tls != nil {
		if out.TLS = tlsOff; tls.GetMode() == networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL {
			out.TLS = tlsOn
		}
	}
	return out
}

// EndpointSubsets returns the subsets of a service, the whole service first. A service
// without a rule that matters has an empty list. As the list is comparable, other changes of a
// DestinationRule generate no assignments.
func EndpointSubsets(m *snapshot.Mesh, svc *snapshot.MeshService, rule *snapshot.HostRule, client Place) (none wire.List[EndpointSubset]) {
	if rule == nil && m.DefaultPolicy == nil && svc.Distribution == snapshot.NoDistribution && len(LocalitySetting(m, snapshot.NoDistribution, nil).GetDistribute()) == 0 {
		return none
	}
	var out []EndpointSubset
	matters := false
	for _, subset := range SubsetsOf(rule) {
		var ports []wire.Entry[uint32, endpointPolicy]
		for i := range svc.Ports {
			number := svc.Ports[i].Number
			if p := endpointPolicyOf(m, svc.Distribution, rule.PolicyAt(number, subset), rule.PolicyOver(m.DefaultPolicy, number, subset), client); p != (endpointPolicy{}) {
				ports = append(ports, wire.Entry[uint32, endpointPolicy]{Key: number, Value: p})
			}
		}
		matters = matters || subset != nil || ports != nil
		out = append(out, EndpointSubset{subset.GetName(), wire.SortedEntries(subset.GetLabels()), wire.ListOf(ports)})
	}
	if !matters {
		return none
	}
	return wire.ListOf(out)
}

// WholeAndSubsets returns the whole service and its subsets.
func WholeAndSubsets(subsets wire.List[EndpointSubset]) []EndpointSubset {
	if subsets.Empty() {
		return []EndpointSubset{{}}
	}
	return subsets.Slice()
}

// Of returns the endpoints of a port that belong to the subset.
func (e *EndpointSubset) Of(list []snapshot.Endpoint, port uint32) []snapshot.Endpoint {
	p := wire.ValueOf(e.Ports, port)
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
func hasLabels(e *snapshot.Endpoint, want wire.List[wire.Entry[string, string]]) bool {
	for l := range want.All {
		if v, ok := e.Label(l.Key); !ok || v != l.Value {
			return false
		}
	}
	return true
}

// withoutTLS returns the subset with the mTLS of its endpoints.
func (e *EndpointSubset) withoutTLS(port uint32) *EndpointSubset {
	p := wire.ValueOf(e.Ports, port)
	p.TLS = tlsByEndpoint
	return &EndpointSubset{Labels: e.Labels, Ports: onlyPort(port, p)}
}

// onlyPort returns the policies of a subset in which only one port has a policy.
func onlyPort(number uint32, p endpointPolicy) wire.List[wire.Entry[uint32, endpointPolicy]] {
	return wire.ListOf([]wire.Entry[uint32, endpointPolicy]{{Key: number, Value: p}})
}

// Assignments generates the load assignments of one service: one for each port and for
// each subset of a port, and for gateways that pass TLS through another one for that.
type Assignments struct {
	Service   *snapshot.MeshService
	subsets   wire.List[EndpointSubset]
	endpoints *snapshot.Endpoints
	gateways  wire.List[snapshot.NetworkGateway] // of other networks
	network   mesh.NetworkID
	view      string
	families  proxy.Families
	proxyless bool           // for gRPC without a proxy
	cluster   mesh.ClusterID // the only usable cluster; empty means all

	passthrough bool
	nodeLocal   bool
	node        string // the only usable node, if nodeLocal
}

// Type implements units.Unit.
func (u Assignments) Type() string { return xdswire.EndpointType }

// Generate implements units.Unit.
func (u Assignments) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g, subsets := wire.Generator{Enc: enc}, WholeAndSubsets(u.subsets)
	for i := range u.Service.Ports {
		port := &u.Service.Ports[i]
		if port.Protocol == mesh.UDP {
			continue
		}
		for _, subset := range subsets {
			name, list := mesh.ClusterName{Direction: mesh.Outbound, Port: port.Number, Subset: subset.Name, Host: u.Service.Host}, u.endpointsOf(port)
			near := wire.ValueOf(subset.Ports, port.Number).Locality
			u.assignment(&g, name.String(), subset.Of(list, port.Number), false, near)
			if u.passesThrough() {
				u.assignment(&g, name.SNI(), subset.withoutTLS(port.Number).Of(list, port.Number), true, near)
			}
		}
	}
	return g.Resources()
}

// endpointsOf returns all endpoints of a port.
func (u Assignments) endpointsOf(port *snapshot.ServicePort) []snapshot.Endpoint {
	if u.endpoints == nil {
		return nil
	}
	return u.endpoints.ByPort[port.Name]
}

// passesThrough reports whether the gateway forwards calls by server name to the service.
func (u Assignments) passesThrough() bool {
	return u.passthrough && Passable(u.Service)
}

func (u Assignments) assignment(g *wire.Generator, name string, list []snapshot.Endpoint, mtlsOnly bool, policy localityPolicy) {
	g.Add(xdswire.EndpointType, name, &endpointv3.ClusterLoadAssignment{
		ClusterName: name, Endpoints: u.Localities(list, mtlsOnly, policy),
	})
}

func (u Assignments) lbEndpoint(e *snapshot.Endpoint, weight uint32) *endpointv3.LbEndpoint {
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
		return wire.Pipe(path)
	}
	return wire.Address(target, port)
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
		md.FilterMetadata["envoy.transport_socket_match"] = wire.TLSModeMatch()
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
		HostIdentifier:      &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: wire.Address(addr.String(), port)}},
		HealthStatus:        health,
		LoadBalancingWeight: wrapperspb.UInt32(weight),
		Metadata:            md,
	}
}

// Passable reports whether gateways pass on calls by server name to a service.
func Passable(svc *snapshot.MeshService) bool {
	return !svc.Headless && !clusterLocal(svc) && !svc.External && svc.Resolution == snapshot.ByEndpoints && !svc.IsWildcard()
}

// SubsetsOf returns the subsets of a rule, first nil for the whole service.
func SubsetsOf(r *snapshot.HostRule) []*networkingv1alpha3.Subset {
	out := []*networkingv1alpha3.Subset{nil}
	if r != nil {
		out = append(out, r.Subsets...)
	}
	return out
}

// ToDestination reports whether clients of a service choose the address of an endpoint.
func ToDestination(svc *snapshot.MeshService) bool {
	return svc.Headless || svc.Resolution == snapshot.ByDestination
}

// clusterLocal reports whether clients call only endpoints of their own cluster, or of
// their own node.
func clusterLocal(svc *snapshot.MeshService) bool {
	return svc.NodeLocal || svc.ClusterLocal
}

// ViewOf returns the endpoint view of a proxy whose workload has these labels.
func ViewOf(s *snapshot.Snapshot, n proxy.Node, pod *snapshot.Pod, labels map[string]string) View {
	v := View{
		Router: n.ID.Type == mesh.Router, Proxyless: n.Proxyless, Cluster: n.Cluster, Network: proxy.NetworkOf(s, n, labels),
		View: proxy.JoinNetworks(n.View), Families: n.Families(), Client: snapshot.RuleClientOf(s.Namespaces.Get(n.Namespace), labels),
		Place: clientPlace(s, n, pod, labels),
	}
	if s.Private {
		v.Scope.Namespace = n.Namespace
	}
	v.Passthrough = v.Router && proxy.PassesByName(s, labels)
	return v
}
