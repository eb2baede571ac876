// Package proxyless generates the resources of gRPC applications without a proxy.
package proxyless

import (
	"net"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/clusters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/endpoints"
	"github.com/meshctl/meshctl/internal/server/xdsgen/filters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/inbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/nametable"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/rbac"
	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/server/xdsgen/tlsconfig"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// gRPC refuses resources with many of the fields that Envoy accepts. The resources here
// have only the fields that gRPC reads (gRFCs A27 to A48), so that clients in all
// languages accept them.

// AssignProxyless returns the views of an application whose gRPC library is the xDS
// client.
func AssignProxyless(s *snapshot.Snapshot, n proxy.Node, pod *snapshot.Pod, labels map[string]string, eds endpoints.View) units.Assignment {
	sc := proxy.Scope{Namespace: n.Namespace, Sidecar: proxy.ChooseSidecar(s, n.Namespace, labels)}
	if !s.Private && len(sc.Egress()) == 0 {
		sc = proxy.Scope{}
	}
	routes, _ := routes.RouteClients(s, n.Namespace, labels)
	return units.Assignment{
		xdswire.ClusterType:  {Shared: GrpcView{typ: xdswire.ClusterType, Scope: sc, Client: eds.Client}},
		xdswire.EndpointType: eds.Views(s, proxy.NodeOf(pod)),
		xdswire.ListenerType: {
			Shared: GrpcView{typ: xdswire.ListenerType, Scope: sc, Namespace: n.Namespace},
			Own:    grpcServerView(grpcServer(s, n, pod, labels)),
		},
		xdswire.RouteType:       {Shared: GrpcView{typ: xdswire.RouteType, Scope: sc, routes: routes}},
		xdswire.NameTableType:   {Shared: nametable.Of(eds, sc)},
		xdswire.ProxyConfigType: {Shared: units.TrustView{}},
	}
}

// GrpcView is the view of the listeners, route configurations or clusters with which
// gRPC calls the services that it sees. Clients request them by name.
type GrpcView struct {
	typ       string
	Scope     proxy.Scope
	Namespace string               // whose services have short names; for listeners only
	Client    snapshot.RuleClient  // for clusters only
	routes    snapshot.RouteClient // for route configurations only
}

// Type implements units.View.
func (v GrpcView) Type() string { return v.typ }

// Keys implements units.View.
func (v GrpcView) Keys() units.Keys {
	k := units.Keys{ServiceFacts: snapshot.ServiceFacts, Scope: v.Scope}
	switch v.typ {
	case xdswire.ClusterType:
		k.ServiceFacts |= snapshot.RuleFacts | snapshot.MeshFacts
		if len(v.Scope.Egress()) > 0 {
			k.ServiceFacts |= snapshot.ReferrerFacts
		}
	case xdswire.RouteType:
		k.ServiceFacts |= snapshot.RouteFacts | snapshot.MeshFacts
	}
	return k
}

// Unit implements units.View.
func (v GrpcView) Unit(s *snapshot.Snapshot, k units.Key) units.Unit {
	svc := s.Services.Get(k.Name)
	if svc == nil || svc.ExternalName != "" || svc.Resolution != snapshot.ByEndpoints || svc.IsWildcard() ||
		!v.Scope.Sees(svc) && (v.typ != xdswire.ClusterType || !v.Scope.ImportsRouteTo(s, svc)) {
		return nil
	}
	u := grpcService{typ: v.typ, service: svc, near: routes.IsNear(svc, v.Namespace)}
	switch v.typ {
	case xdswire.ListenerType:
		u.ports = wire.ListOf(v.Scope.PortsOf(svc))
	case xdswire.RouteType:
		u.retries = s.Mesh.Retries
		u.routed = wire.ListOf(routes.RoutedPorts(s, svc, v.Scope, v.routes, func(p *snapshot.ServicePort) bool { return p.Protocol != mesh.UDP }))
	case xdswire.ClusterType:
		u.mtls, u.rule = s.Mesh.AutoMTLS && svc.AllDirectTLS, s.Rules.Get(svc.Key).For(v.Client)
		u.defaults = s.Mesh.DefaultPolicy
	}
	return u
}

// grpcService generates the resources of one type with which gRPC calls a service.
type grpcService struct {
	typ     string
	service *snapshot.MeshService
	near    bool // clients are in the service's namespace
	// For listeners only: the port numbers that clients see.
	ports wire.List[uint32]
	// For route configurations only.
	retries snapshot.RetryPolicy
	routed  wire.List[routes.RoutedHost] // by port
	// For clusters only.
	mtls     bool
	rule     *snapshot.HostRule // or nil
	defaults *networkingv1alpha3.TrafficPolicy
}

func (u grpcService) Type() string { return u.typ }

func (u grpcService) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := wire.Generator{Enc: enc}
	routed := make(map[uint32]routes.RoutedHost)
	for h := range u.routed.All {
		routed[h.Number] = h
	}
	for i := range u.service.Ports {
		port := &u.service.Ports[i]
		if port.Protocol == mesh.UDP {
			continue
		}
		name := mesh.ClusterName{Direction: mesh.Outbound, Port: port.Number, Host: u.service.Host}.String()
		switch u.typ {
		case xdswire.ListenerType:
			if !slices.Contains(u.ports.Slice(), port.Number) {
				continue
			}
			for _, host := range u.Names() {
				g.Listener(grpcListener(&g, net.JoinHostPort(host, wire.PortString(port.Number)), name))
			}
		case xdswire.RouteType:
			g.Add(u.typ, name, grpcRoutes(&g, name, routed[port.Number], u.retries))
		case xdswire.ClusterType:
			for _, subset := range endpoints.SubsetsOf(u.rule) {
				g.Cluster(u.Cluster(&g, port.Number, subset))
			}
		}
	}
	return g.Resources()
}

// Names returns the names by which clients may call the service. gRPC requests the
// listener with the exact name in its target.
func (u grpcService) Names() []string {
	out := []string{u.service.Host}
	if name, namespace, ok := u.service.KubernetesName(); ok {
		short := name + "." + namespace
		out = append(out, short, short+".svc")
		if u.near {
			out = append(out, name)
		}
	}
	return out
}

// grpcListener returns the listener of a target, which names its route configuration.
func grpcListener(g *wire.Generator, name, routes string) *listenerv3.Listener {
	return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: g.Any(&hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: wire.AdsSource(), RouteConfigName: routes}},
		HttpFilters:    []*hcmv3.HttpFilter{filters.FaultFilter(), filters.RouterFilter()},
	})}}
}

// Cluster returns a cluster with round robin, the only policy that all gRPC libraries
// support. It has the limit of calls and the outlier detection of its DestinationRule.
//
// In gRPC all endpoints of a cluster use TLS or none, and the client offers only h2 by
// ALPN. So the cluster has mTLS only if its DestinationRule requires mTLS, or if all
// endpoints accept it from such a client.
func (u grpcService) Cluster(g *wire.Generator, port uint32, subset *networkingv1alpha3.Subset) *clusterv3.Cluster {
	policy := u.rule.PolicyOver(u.defaults, port, subset)
	name := mesh.ClusterName{Direction: mesh.Outbound, Port: port, Subset: subset.GetName(), Host: u.service.Host}.String()
	c := &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: wire.Discovery(clusterv3.Cluster_EDS),
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: wire.AdsSource(), ServiceName: name},
		CircuitBreakers:      clusters.Unlimited(), // the default is 1,024 concurrent calls
	}
	if n := policy.GetConnectionPool().GetHttp().GetHttp2MaxRequests(); n > 0 {
		limits := clusters.UnlimitedThresholds()
		limits.MaxRequests = wrapperspb.UInt32(uint32(n))
		c.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{limits}}
	}
	c.OutlierDetection = clusters.OutlierDetection(policy.GetOutlierDetection())
	mtls, accounts, tls := u.mtls, u.service.Accounts, policy.GetTls()
	if tls != nil {
		mtls = tls.GetMode() == networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL
	}
	if names := tls.GetSubjectAltNames(); len(names) > 0 {
		accounts = names
	}
	if mtls {
		c.TransportSocket = g.TransportSocket(tlsconfig.TLSSocket, &tlsv3.UpstreamTlsContext{CommonTlsContext: grpcCommonTLS(accounts)})
	}
	return c
}

// certificateProvider is the instance in gRPC's bootstrap that provides the workload's
// certificate and the roots of the mesh.
const certificateProvider = "default"

// grpcCommonTLS takes the certificate and the roots from files in the bootstrap. A server
// must not have accounts.
func grpcCommonTLS(accounts []string) *tlsv3.CommonTlsContext {
	return &tlsv3.CommonTlsContext{
		TlsCertificateProviderInstance: &tlsv3.CertificateProviderPluginInstance{
			InstanceName: certificateProvider, CertificateName: "default",
		},
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			CaCertificateProviderInstance: &tlsv3.CertificateProviderPluginInstance{
				InstanceName: certificateProvider, CertificateName: "ROOTCA",
			},
			MatchSubjectAltNames: tlsconfig.ExactSANs(accounts), //nolint:staticcheck // gRPC reads no other field
		}},
	}
}

// grpcServerUnit generates the listeners of a gRPC server, one for each address on which it
// may listen.
type grpcServerUnit struct {
	Binds          wire.List[string]
	Ports          wire.List[grpcPort]
	Authorizations wire.List[rbac.Authorization]
}

type grpcPort struct {
	Number uint32
	MTLS   bool
}

// grpcServer returns the listeners of a workload. gRPC cannot accept both plaintext and mTLS
// on one port. A PERMISSIVE port has mTLS if the workload's label announces it to
// clients.
func grpcServer(s *snapshot.Snapshot, n proxy.Node, pod *snapshot.Pod, labels map[string]string) grpcServerUnit {
	mtls := snapshot.WorkloadMTLS(s.Namespaces.Get(s.Mesh.RootNamespace), s.Namespaces.Get(n.Namespace), labels)
	binds := []string{"0.0.0.0", "::", "127.0.0.1", "::1"}
	for _, ip := range n.IPs {
		if !ip.IsLoopback() || ip.String() != "127.0.0.1" && ip.String() != "::1" {
			binds = append(binds, ip.String())
		}
	}
	var ports []grpcPort
	for _, p := range inbound.ServicePorts(s, n, pod, labels) {
		mode := mtls.Port(p.Number)
		tls := mode == snapshot.Strict || mode == snapshot.Permissive && labels[mesh.LabelTLSMode] == mesh.TLSModeIstio
		ports = append(ports, grpcPort{p.Number, tls})
	}
	n.Moving = nil // one listener has all policies
	authorizations := rbac.ChooseAuthorizations(s, n, labels, proxy.Scope{})
	for i := range authorizations {
		authorizations[i].Cluster = "" // gRPC asks no provider: it refuses what the rules match
	}
	return grpcServerUnit{wire.ListOf(binds), wire.ListOf(ports), wire.ListOf(authorizations)}
}

// grpcServerView is the view of the listeners of a gRPC server. The server requests one by
// name.
type grpcServerView grpcServerUnit

func (v grpcServerView) Type() string { return xdswire.ListenerType }

func (v grpcServerView) Keys() units.Keys { return units.Keys{Fixed: 1} }

func (v grpcServerView) Unit(*snapshot.Snapshot, units.Key) units.Unit { return grpcServerUnit(v) }

func (u grpcServerUnit) Type() string { return xdswire.ListenerType }

func (u grpcServerUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := wire.Generator{Enc: enc}
	policies := grpcAuthorization(&g, u.Authorizations)
	for port := range u.Ports.All {
		chain := grpcServerChain(&g, port.MTLS, policies)
		for bind := range u.Binds.All {
			g.Listener(&listenerv3.Listener{
				Name:         mesh.GRPCServerListener + net.JoinHostPort(bind, wire.PortString(port.Number)),
				Address:      wire.Address(bind, port.Number),
				FilterChains: []*listenerv3.FilterChain{chain},
			})
		}
	}
	return g.Resources()
}

// grpcAuthorization returns the filters of policies. gRPC reads no extensions by ECDS, so the rules
// are in the listener. It records no decisions.
func grpcAuthorization(g *wire.Generator, authorizations wire.List[rbac.Authorization]) []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	for a := range authorizations.All {
		enforced, _ := a.Rules(rbac.RuleMaker{Proxyless: true})
		if enforced == nil || a.Action == securityv1beta1.AuthorizationPolicy_AUDIT {
			continue
		}
		out = append(out, &hcmv3.HttpFilter{
			Name: a.Filters()[0].Name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: g.Any(&httprbacv3.RBAC{Rules: enforced})},
		})
	}
	return out
}

// grpcServerChain returns the filter chain for calls with mTLS or in plaintext.
func grpcServerChain(g *wire.Generator, mtls bool, policies []*hcmv3.HttpFilter) *listenerv3.FilterChain {
	manager := g.NetworkFilter(filters.FilterHCM, &hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: "inbound",
			VirtualHosts: []*routev3.VirtualHost{{
				Name: "inbound", Domains: []string{"*"},
				Routes: []*routev3.Route{{
					Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{}},
					Action: &routev3.Route_NonForwardingAction{NonForwardingAction: &routev3.NonForwardingAction{}},
				}},
			}},
		}},
		HttpFilters: append(slices.Clip(policies), filters.RouterFilter()),
	})
	c := &listenerv3.FilterChain{Name: "plaintext", Filters: []*listenerv3.Filter{manager}}
	if mtls {
		c.Name = "mtls"
		c.TransportSocket = g.TransportSocket(tlsconfig.TLSSocket, &tlsv3.DownstreamTlsContext{
			CommonTlsContext: grpcCommonTLS(nil), RequireClientCertificate: wire.Yes,
		})
	}
	return c
}
