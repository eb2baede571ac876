package xdsgen

import (
	"net"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// gRPC refuses a resource for many a field that Envoy takes, and ignores most
// others. What is made here holds only what it reads (gRFCs A27 to A48), so that
// clients of every language take it.

// assignProxyless chooses the views of an application whose gRPC is its own
// xDS client.
func assignProxyless(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string, eds endpointView) Assignment {
	sc := scope{namespace: n.Namespace, sidecar: chooseSidecar(s, n.Namespace, labels)}
	if !s.Private && len(sc.egress()) == 0 {
		sc = scope{}
	}
	return Assignment{
		xdswire.ClusterType:  {Shared: grpcView{typ: xdswire.ClusterType, scope: sc}},
		xdswire.EndpointType: eds.views(s, nodeOf(pod)),
		xdswire.ListenerType: {
			Shared: grpcView{typ: xdswire.ListenerType, scope: sc, namespace: n.Namespace},
			Own:    grpcServerView{facts: encodeFacts(grpcServer(s, n, pod, labels))},
		},
		xdswire.RouteType:       {Shared: grpcView{typ: xdswire.RouteType, scope: sc}},
		xdswire.NameTableType:   {Shared: eds.names(sc)},
		xdswire.ProxyConfigType: {Shared: trustView{}},
	}
}

// grpcView are the listeners, route configurations or clusters by which gRPC
// calls the services that it sees. Clients ask for them by name.
type grpcView struct {
	typ       string
	scope     scope
	namespace string // whose services have short names, of listeners
}

func (v grpcView) Type() string { return v.typ }

func (v grpcView) Reads() snapshot.Kinds { return snapshot.ServiceFacts }

func (v grpcView) Units(s *snapshot.Snapshot, yield func(string, Unit)) {
	for host := range s.Services.All() {
		v.unit(s, host, yield)
	}
}

func (v grpcView) Touched(s *snapshot.Snapshot, c *snapshot.Changes, yield func(string, Unit)) {
	for host := range c.Services {
		v.unit(s, host, yield)
	}
}

func (v grpcView) unit(s *snapshot.Snapshot, host string, yield func(string, Unit)) {
	svc := s.Services.Get(host)
	if svc == nil || svc.ExternalName != "" || !v.scope.sees(svc) {
		yield(host, nil)
		return
	}
	yield(host, grpcService{typ: v.typ, service: svc, near: svc.Namespace == v.namespace, mtls: s.Mesh.AutoMTLS && svc.AllDirectTLS})
}

// grpcService are the resources of one type by which gRPC calls a service.
type grpcService struct {
	typ     string
	service *snapshot.MeshService
	near    bool // clients are of the service's namespace
	mtls    bool
}

func (u grpcService) Type() string { return u.typ }

func (u grpcService) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var out []*xdswire.Resource
	add := func(r *xdswire.Resource, err error) error {
		out = append(out, r)
		return err
	}
	for i := range u.service.Ports {
		port := &u.service.Ports[i]
		if port.Protocol == mesh.UDP {
			continue
		}
		name := mesh.ClusterName{Direction: mesh.Outbound, Port: port.Number, Host: u.service.Host}.String()
		switch u.typ {
		case xdswire.ListenerType:
			for _, host := range u.names() {
				l, err := grpcListener(net.JoinHostPort(host, portString(port.Number)), name)
				if err != nil {
					return nil, err
				}
				if err := add(enc.Resource(u.typ, l.GetName(), l)); err != nil {
					return nil, err
				}
			}
		case xdswire.RouteType:
			if err := add(enc.Resource(u.typ, name, grpcRoutes(name))); err != nil {
				return nil, err
			}
		case xdswire.ClusterType:
			c, err := u.cluster(name)
			if err != nil {
				return nil, err
			}
			if err := add(enc.Resource(u.typ, name, c)); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// names are those by which clients call the service: gRPC asks for the name in
// its target as it stands there.
func (u grpcService) names() []string {
	short := u.service.Name + "." + u.service.Namespace
	out := []string{u.service.Host, short, short + ".svc"}
	if u.near {
		out = append(out, u.service.Name)
	}
	return out
}

// grpcListener has what gRPC looks up for a target: where its routes are.
func grpcListener(name, routes string) (*listenerv3.Listener, error) {
	router, err := grpcRouter()
	if err != nil {
		return nil, err
	}
	manager, err := xdswire.Any(&hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: adsSource(), RouteConfigName: routes}},
		HttpFilters:    router,
	})
	return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: manager}}, err
}

// grpcRouter are the HTTP filters of a connection manager: the router, which
// has to be the last one, and nothing else.
func grpcRouter() ([]*hcmv3.HttpFilter, error) {
	a, err := xdswire.Any(&routerv3.Router{})
	return []*hcmv3.HttpFilter{{
		Name: "envoy.filters.http.router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: a},
	}}, err
}

// grpcRoutes sends every call to the cluster of the same name. Clients may know
// the service by several names, so every one fits. Retries are those of sidecars.
func grpcRoutes(cluster string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name: cluster,
		VirtualHosts: []*routev3.VirtualHost{{
			Name: cluster, Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{}},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
					RetryPolicy:      &routev3.RetryPolicy{RetryOn: "unavailable,cancelled", NumRetries: wrapperspb.UInt32(2)},
				}},
			}},
		}},
	}
}

// cluster is balanced by round robin, the only policy that every gRPC has.
//
// A cluster of gRPC has TLS for all its endpoints or for none, and offers only
// h2 by ALPN. So there is mTLS when every endpoint takes it from such a client.
func (u grpcService) cluster(name string) (*clusterv3.Cluster, error) {
	c := &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: discovery(clusterv3.Cluster_EDS),
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: adsSource(), ServiceName: name},
		CircuitBreakers:      unlimited(), // else gRPC has at most 1,024 calls under way
	}
	if !u.mtls {
		return c, nil
	}
	var err error
	c.TransportSocket, err = transportSocket(grpcTLS, &tlsv3.UpstreamTlsContext{CommonTlsContext: grpcCommonTLS(u.service.Accounts)})
	return c, err
}

// grpcTLS is the name that transport sockets must have for gRPC.
const grpcTLS = "envoy.transport_sockets.tls"

// certificateProvider is the instance of gRPC's bootstrap that has the
// workload's certificate and the roots of the mesh.
const certificateProvider = "default"

// grpcCommonTLS has the certificate and the roots come from files that the
// bootstrap names. A server must not name accounts.
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

// grpcServerFacts is what the listeners of a gRPC server read.
type grpcServerFacts struct {
	Binds []string // addresses that the server may listen on
	Ports []grpcPort
}

type grpcPort struct {
	Number uint32
	MTLS   bool
}

// grpcServer gathers the ports of the services that select the workload. gRPC
// cannot take both plaintext and mTLS on one port: a permissive one has mTLS if
// the workload's label tells its clients so.
func grpcServer(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string) grpcServerFacts {
	mtls := snapshot.WorkloadMTLS(s.Namespaces.Get(s.Mesh.RootNamespace), s.Namespaces.Get(n.Namespace), labels)
	f := grpcServerFacts{Binds: []string{"0.0.0.0", "::", "127.0.0.1", "::1"}}
	for _, ip := range n.IPs {
		if !ip.IsLoopback() || ip.String() != "127.0.0.1" && ip.String() != "::1" {
			f.Binds = append(f.Binds, ip.String())
		}
	}
	for _, t := range serviceTargets(s, n, pod, labels) {
		mode := mtls.Port(t.Port)
		tls := mode == snapshot.Strict || mode == snapshot.Permissive && labels[mesh.LabelTLSMode] == mesh.TLSModeIstio
		f.Ports = append(f.Ports, grpcPort{t.Port, tls})
	}
	return f
}

// grpcServerView are the listeners of a gRPC server: it asks for that of the
// address that it listens on.
type grpcServerView struct {
	facts string // grpcServerFacts, encoded
}

func (v grpcServerView) Type() string { return xdswire.ListenerType }

// Reads says that other facts make another view.
func (v grpcServerView) Reads() snapshot.Kinds { return 0 }

func (v grpcServerView) Units(_ *snapshot.Snapshot, yield func(string, Unit)) {
	yield("server", grpcServerUnit(v))
}

// Touched yields nothing.
func (v grpcServerView) Touched(*snapshot.Snapshot, *snapshot.Changes, func(string, Unit)) {}

type grpcServerUnit grpcServerView

func (u grpcServerUnit) Type() string { return xdswire.ListenerType }

func (u grpcServerUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var f grpcServerFacts
	decodeFacts(u.facts, &f)
	var out []*listenerv3.Listener
	for _, port := range f.Ports {
		chain, err := grpcServerChain(port.MTLS)
		if err != nil {
			return nil, err
		}
		for _, bind := range f.Binds {
			out = append(out, &listenerv3.Listener{
				Name:         mesh.GRPCServerListener + net.JoinHostPort(bind, portString(port.Number)),
				Address:      address(bind, port.Number),
				FilterChains: []*listenerv3.FilterChain{chain},
			})
		}
	}
	return listeners(enc, out...)
}

// grpcServerChain takes the calls, with mTLS or plaintext.
func grpcServerChain(mtls bool) (*listenerv3.FilterChain, error) {
	router, err := grpcRouter()
	if err != nil {
		return nil, err
	}
	manager, err := networkFilter(filterHCM, &hcmv3.HttpConnectionManager{
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
		HttpFilters: router,
	})
	if err != nil || !mtls {
		return &listenerv3.FilterChain{Name: "plaintext", Filters: []*listenerv3.Filter{manager}}, err
	}
	var socket *corev3.TransportSocket
	socket, err = transportSocket(grpcTLS, &tlsv3.DownstreamTlsContext{
		CommonTlsContext: grpcCommonTLS(nil), RequireClientCertificate: wrapperspb.Bool(true),
	})
	return &listenerv3.FilterChain{Name: "mtls", Filters: []*listenerv3.Filter{manager}, TransportSocket: socket}, err
}
