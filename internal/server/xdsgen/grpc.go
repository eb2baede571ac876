package xdsgen

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
	"github.com/meshctl/meshctl/internal/xdswire"
)

// gRPC refuses resources with many of the fields that Envoy accepts. The resources here
// have only the fields that gRPC reads (gRFCs A27 to A48), so that clients in all
// languages accept them.

// assignProxyless returns the views of an application whose gRPC library is the xDS
// client.
func assignProxyless(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string, eds endpointView) Assignment {
	sc := scope{namespace: n.Namespace, sidecar: chooseSidecar(s, n.Namespace, labels)}
	if !s.Private && len(sc.egress()) == 0 {
		sc = scope{}
	}
	routes, _ := routeClients(s, n.Namespace, labels)
	return Assignment{
		xdswire.ClusterType:  {Shared: grpcView{typ: xdswire.ClusterType, scope: sc, client: eds.client}},
		xdswire.EndpointType: eds.views(s, nodeOf(pod)),
		xdswire.ListenerType: {
			Shared: grpcView{typ: xdswire.ListenerType, scope: sc, namespace: n.Namespace},
			Own:    grpcServerView(grpcServer(s, n, pod, labels)),
		},
		xdswire.RouteType:       {Shared: grpcView{typ: xdswire.RouteType, scope: sc, routes: routes}},
		xdswire.NameTableType:   {Shared: eds.names(sc)},
		xdswire.ProxyConfigType: {Shared: trustView{}},
	}
}

// grpcView is the view of the listeners, route configurations or clusters with which
// gRPC calls the services that it sees. Clients request them by name.
type grpcView struct {
	typ       string
	scope     scope
	namespace string               // whose services have short names; for listeners only
	client    snapshot.RuleClient  // for clusters only
	routes    snapshot.RouteClient // for route configurations only
}

func (v grpcView) Type() string { return v.typ }

func (v grpcView) Keys() Keys {
	k := Keys{ServiceFacts: snapshot.ServiceFacts, scope: v.scope}
	switch v.typ {
	case xdswire.ClusterType:
		k.ServiceFacts |= snapshot.RuleFacts | snapshot.MeshFacts
		if len(v.scope.egress()) > 0 {
			k.ServiceFacts |= snapshot.ReferrerFacts
		}
	case xdswire.RouteType:
		k.ServiceFacts |= snapshot.RouteFacts | snapshot.MeshFacts
	}
	return k
}

func (v grpcView) Unit(s *snapshot.Snapshot, k Key) Unit {
	svc := s.Services.Get(k.Name)
	if svc == nil || svc.ExternalName != "" || svc.Resolution != snapshot.ByEndpoints || svc.IsWildcard() ||
		!v.scope.sees(svc) && (v.typ != xdswire.ClusterType || !v.scope.importsRouteTo(s, svc)) {
		return nil
	}
	u := grpcService{typ: v.typ, service: svc, near: isNear(svc, v.namespace)}
	switch v.typ {
	case xdswire.ListenerType:
		u.ports = listOf(v.scope.portsOf(svc))
	case xdswire.RouteType:
		u.retries = s.Mesh.Retries
		u.routed = listOf(routedPorts(s, svc, v.scope, v.routes, func(p *snapshot.ServicePort) bool { return p.Protocol != mesh.UDP }))
	case xdswire.ClusterType:
		u.mtls, u.rule = s.Mesh.AutoMTLS && svc.AllDirectTLS, s.Rules.Get(svc.Key).For(v.client)
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
	ports list[uint32]
	// For route configurations only.
	retries snapshot.RetryPolicy
	routed  list[routedHost] // by port
	// For clusters only.
	mtls     bool
	rule     *snapshot.HostRule // or nil
	defaults *networkingv1alpha3.TrafficPolicy
}

func (u grpcService) Type() string { return u.typ }

func (u grpcService) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := generator{enc: enc}
	routed := make(map[uint32]routedHost)
	for h := range u.routed.All {
		routed[h.number] = h
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
			for _, host := range u.names() {
				g.listener(g.grpcListener(net.JoinHostPort(host, portString(port.Number)), name))
			}
		case xdswire.RouteType:
			g.add(u.typ, name, g.grpcRoutes(name, routed[port.Number], u.retries))
		case xdswire.ClusterType:
			for _, subset := range subsetsOf(u.rule) {
				g.cluster(u.cluster(&g, port.Number, subset))
			}
		}
	}
	return g.resources()
}

// names returns the names by which clients may call the service. gRPC requests the
// listener with the exact name in its target.
func (u grpcService) names() []string {
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
func (g *generator) grpcListener(name, routes string) *listenerv3.Listener {
	return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: g.any(&hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: adsSource(), RouteConfigName: routes}},
		HttpFilters:    []*hcmv3.HttpFilter{faultFilter(), routerFilter()},
	})}}
}

// cluster returns a cluster with round robin, the only policy that all gRPC libraries
// support. It has the limit of calls and the outlier detection of its DestinationRule.
//
// In gRPC all endpoints of a cluster use TLS or none, and the client offers only h2 by
// ALPN. So the cluster has mTLS only if its DestinationRule requires mTLS, or if all
// endpoints accept it from such a client.
func (u grpcService) cluster(g *generator, port uint32, subset *networkingv1alpha3.Subset) *clusterv3.Cluster {
	policy := u.rule.PolicyOver(u.defaults, port, subset)
	name := mesh.ClusterName{Direction: mesh.Outbound, Port: port, Subset: subset.GetName(), Host: u.service.Host}.String()
	c := &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: discovery(clusterv3.Cluster_EDS),
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: adsSource(), ServiceName: name},
		CircuitBreakers:      unlimited(), // the default is 1,024 concurrent calls
	}
	if n := policy.GetConnectionPool().GetHttp().GetHttp2MaxRequests(); n > 0 {
		limits := unlimitedThresholds()
		limits.MaxRequests = wrapperspb.UInt32(uint32(n))
		c.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{limits}}
	}
	c.OutlierDetection = outlierDetection(policy.GetOutlierDetection())
	mtls, accounts, tls := u.mtls, u.service.Accounts, policy.GetTls()
	if tls != nil {
		mtls = tls.GetMode() == networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL
	}
	if names := tls.GetSubjectAltNames(); len(names) > 0 {
		accounts = names
	}
	if mtls {
		c.TransportSocket = g.transportSocket(tlsSocket, &tlsv3.UpstreamTlsContext{CommonTlsContext: grpcCommonTLS(accounts)})
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
			MatchSubjectAltNames: exactSANs(accounts), //nolint:staticcheck // gRPC reads no other field
		}},
	}
}

// grpcServerUnit generates the listeners of a gRPC server, one for each address on which it
// may listen.
type grpcServerUnit struct {
	Binds          list[string]
	Ports          list[grpcPort]
	Authorizations list[authorization]
}

type grpcPort struct {
	Number uint32
	MTLS   bool
}

// grpcServer returns the listeners of a workload. gRPC cannot accept both plaintext and mTLS
// on one port. A PERMISSIVE port has mTLS if the workload's label announces it to
// clients.
func grpcServer(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string) grpcServerUnit {
	mtls := snapshot.WorkloadMTLS(s.Namespaces.Get(s.Mesh.RootNamespace), s.Namespaces.Get(n.Namespace), labels)
	binds := []string{"0.0.0.0", "::", "127.0.0.1", "::1"}
	for _, ip := range n.IPs {
		if !ip.IsLoopback() || ip.String() != "127.0.0.1" && ip.String() != "::1" {
			binds = append(binds, ip.String())
		}
	}
	var ports []grpcPort
	for _, p := range servicePorts(s, n, pod, labels) {
		mode := mtls.Port(p.Number)
		tls := mode == snapshot.Strict || mode == snapshot.Permissive && labels[mesh.LabelTLSMode] == mesh.TLSModeIstio
		ports = append(ports, grpcPort{p.Number, tls})
	}
	n.Moving = nil // one listener has all policies
	authorizations := chooseAuthorizations(s, n, labels, scope{})
	for i := range authorizations {
		authorizations[i].cluster = "" // gRPC asks no provider: it refuses what the rules match
	}
	return grpcServerUnit{listOf(binds), listOf(ports), listOf(authorizations)}
}

// grpcServerView is the view of the listeners of a gRPC server. The server requests one by
// name.
type grpcServerView grpcServerUnit

func (v grpcServerView) Type() string { return xdswire.ListenerType }

func (v grpcServerView) Keys() Keys { return Keys{Fixed: 1} }

func (v grpcServerView) Unit(*snapshot.Snapshot, Key) Unit { return grpcServerUnit(v) }

func (u grpcServerUnit) Type() string { return xdswire.ListenerType }

func (u grpcServerUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := generator{enc: enc}
	policies := g.grpcAuthorization(u.Authorizations)
	for port := range u.Ports.All {
		chain := g.grpcServerChain(port.MTLS, policies)
		for bind := range u.Binds.All {
			g.listener(&listenerv3.Listener{
				Name:         mesh.GRPCServerListener + net.JoinHostPort(bind, portString(port.Number)),
				Address:      address(bind, port.Number),
				FilterChains: []*listenerv3.FilterChain{chain},
			})
		}
	}
	return g.resources()
}

// grpcAuthorization returns the filters of policies. gRPC reads no extensions by ECDS, so the rules
// are in the listener. It records no decisions.
func (g *generator) grpcAuthorization(authorizations list[authorization]) []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	for a := range authorizations.All {
		enforced, _ := a.rules(ruleMaker{proxyless: true})
		if enforced == nil || a.action == securityv1beta1.AuthorizationPolicy_AUDIT {
			continue
		}
		out = append(out, &hcmv3.HttpFilter{
			Name: a.filters()[0].Name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: g.any(&httprbacv3.RBAC{Rules: enforced})},
		})
	}
	return out
}

// grpcServerChain returns the filter chain for calls with mTLS or in plaintext.
func (g *generator) grpcServerChain(mtls bool, policies []*hcmv3.HttpFilter) *listenerv3.FilterChain {
	manager := g.networkFilter(filterHCM, &hcmv3.HttpConnectionManager{
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
		HttpFilters: append(slices.Clip(policies), routerFilter()),
	})
	c := &listenerv3.FilterChain{Name: "plaintext", Filters: []*listenerv3.Filter{manager}}
	if mtls {
		c.Name = "mtls"
		c.TransportSocket = g.transportSocket(tlsSocket, &tlsv3.DownstreamTlsContext{
			CommonTlsContext: grpcCommonTLS(nil), RequireClientCertificate: yes,
		})
	}
	return c
}
