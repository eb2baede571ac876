package xds

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	securityv1beta1 "istio.io/api/security/v1beta1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/keyset"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// meshGenerator makes random objects of a mesh: with few names, so that objects refer
// to each other, and with contents that a source would accept.
type meshGenerator struct{ *rand.Rand }

// meshClusters are the clusters of the random mesh. The last one is added and removed.
var meshClusters = []mesh.ClusterID{"c1", "c2", "c3"}

func pickOne[T any](c meshGenerator, of ...T) T { return of[c.IntN(len(of))] }

func (c meshGenerator) once(in int) bool { return c.IntN(in) == 0 }

func (c meshGenerator) meta(cluster mesh.ClusterID, ns, n string) snapshot.Meta {
	return snapshot.Meta{
		Cluster: cluster, Namespace: ns, Name: n, Labels: map[string]string{},
		Created: time.Unix(int64(1_700_000_000+c.IntN(3)), 0),
	}
}

func (c meshGenerator) namespace() string {
	return pickOne(c, "ns0", "ns0", "ns0", "ns0", "ns1", "ns1", "ns1", "istio-system", "istio-system", "kube-system")
}

func (c meshGenerator) app() map[string]string { return map[string]string{"app": pickOne(c, "a", "b")} }

// object returns a random object of the cluster.
func (c meshGenerator) object(cluster mesh.ClusterID) snapshot.Object {
	switch c.IntN(59) {
	case 45, 46:
		return &snapshot.ServiceExport{Meta: c.meta(cluster, c.namespace(), pickOne(c, "svc0", "svc1"))}
	case 47, 48:
		i := &snapshot.ServiceImport{Meta: c.meta(cluster, c.namespace(), pickOne(c, "svc0", "svc1"))}
		if !c.once(3) {
			i.VIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 9, byte(c.IntN(3))})}
		}
		return i
	case 0, 1, 2, 3, 4, 24:
		return c.service(cluster)
	case 5, 6, 7, 8, 9, 25, 26, 27:
		return c.slice(cluster)
	case 10, 11, 12:
		return c.pod(cluster)
	case 13:
		n := &snapshot.Node{Meta: c.meta(cluster, "", "node")}
		n.Locality = mesh.Locality{Region: "r", Zone: pickOne(c, "z0", "z1")}
		if c.once(2) {
			n.External, n.Labels["edge"] = []netip.Addr{netip.MustParseAddr("192.0.2.7")}, pickOne(c, "a", "b")
		}
		return n
	case 14:
		n := &snapshot.Namespace{Meta: c.meta(cluster, "", pickOne(c, "istio-system", "istio-system", "ns0", "ns1"))}
		n.Labels[mesh.LabelNetwork] = pickOne(c, "", "n1", "n2")
		n.Labels["env"] = pickOne(c, "prod", "test")
		return n
	case 15:
		return c.settings(cluster)
	case 16, 17, 18:
		return c.sidecar(cluster)
	case 19, 20:
		return c.peerAuthentication(cluster)
	case 21, 22:
		return c.gateway(cluster)
	case 23:
		return c.virtualService(cluster)
	case 29, 30, 31:
		return c.envoyFilter(cluster)
	case 32, 33, 34, 35:
		return c.serviceEntry(cluster)
	case 36, 37, 38:
		return c.destinationRule(cluster)
	case 39, 40, 41:
		return c.telemetry(cluster)
	case 42, 43, 44:
		return c.workloadEntry(cluster)
	case 49, 50, 51:
		return c.wasmPlugin(cluster)
	case 52, 53, 54:
		return c.requestAuthentication(cluster)
	case 55, 56, 57:
		return c.authorizationPolicy(cluster)
	case 58:
		return &snapshot.ProxyConfig{
			Meta: c.meta(cluster, c.namespace(), "p"), Kind: snapshot.KindProxyConfig,
			Spec: &networkingv1beta1.ProxyConfig{Concurrency: wrapperspb.Int32(int32(c.IntN(3)))},
		}
	default:
		return &snapshot.Secret{
			Meta: c.meta(cluster, c.namespace(), pickOne(c, "cert", "other")), NoPair: "none",
			CA: &snapshot.CABundle{Roots: []byte(pickOne(c, "root", "other root"))},
		}
	}
}

func (c meshGenerator) service(cluster mesh.ClusterID) snapshot.Object {
	s := &snapshot.Service{Meta: c.meta(cluster, c.namespace(), pickOne(c, "svc0", "svc0", "svc1", "svc2"))}
	switch c.IntN(6) {
	case 0, 1:
		s.Headless = true
	case 2:
		s.ExternalName = pickOne(c, "example.com", "svc0.ns0.svc.cluster.local", "svc1.ns0.svc.cluster.local", "svc0.ns1.svc.cluster.local")
	default:
		s.VIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 9, pickOne(c, cluster[1], cluster[1], meshClusters[0][1]), byte(c.IntN(4))})}
		if c.once(4) {
			s.VIPs = append(s.VIPs, netip.MustParseAddr("fd00::9"))
		}
		s.Sticky = c.once(6)
		s.NodeLocal, s.Distribution = c.once(8), pickOne(c, snapshot.AnyPlace, snapshot.AnyPlace, snapshot.PreferSameZone, snapshot.PreferClose, snapshot.PreferSameNode)
	}
	if !c.once(4) {
		s.Selector = c.app()
	}
	for i, p := range []mesh.Protocol{mesh.HTTP, mesh.TCP, mesh.Auto, mesh.UDP, mesh.HTTP2}[c.IntN(3):] {
		port := snapshot.ServicePort{Name: string(p), Number: uint32(80 + i + c.IntN(2)*5), Protocol: p, Target: 8080}
		if c.once(4) {
			port.Target, port.TargetName = 0, "named"
		}
		if s.Ports = append(s.Ports, port); c.once(2) {
			break
		}
	}
	if c.once(4) {
		s.ExportTo = []string{pickOne(c, ".", "~", "ns1", "*")}
	}
	if c.once(6) {
		s.Labels[mesh.LabelNetwork] = pickOne(c, "n1", "n2")
		s.External = []string{"192.0.2.1", "192.0.2.2", "2001:db8::1"}[:c.IntN(4)]
		if c.once(4) {
			s.NodePorts = &snapshot.NodePorts{Selector: map[string]string{"edge": "a"}, Ports: map[uint32]uint32{15443: 30443}}
		}
		s.Ports = append(s.Ports, snapshot.ServicePort{Name: "tls", Number: 15443, Protocol: mesh.TLS, Target: pickOne[uint32](c, 15443, 15443, 8443)})
	}
	return s
}

func (c meshGenerator) address(cluster mesh.ClusterID) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, cluster[1] - '0', byte(c.IntN(4))})
}

func (c meshGenerator) slice(cluster mesh.ClusterID) snapshot.Object {
	service := pickOne(c, "svc0", "svc0", "svc1", "svc2")
	e := &snapshot.EndpointSlice{
		Meta: c.meta(cluster, c.namespace(), service+pickOne(c, "", "", "-2")), Service: service,
		Ports: []snapshot.SlicePort{{Name: string(mesh.HTTP), Number: 8080}, {Name: string(mesh.TCP), Number: 8081}, {Name: string(mesh.Auto), Number: 8082}},
	}
	for range 1 + c.IntN(4) {
		ep := snapshot.SliceEndpoint{Addresses: []netip.Addr{c.address(cluster)}, Ready: !c.once(4), Terminating: c.once(8)}
		if c.once(3) {
			ep.Pod = fmt.Sprint("p", c.IntN(2))
		}
		if c.once(5) { // an address of a service in the local cluster
			ep.Addresses = append(ep.Addresses, netip.AddrFrom4([4]byte{10, 9, meshClusters[0][1], byte(c.IntN(4))}))
		}
		ep.Hostname = pickOne(c, "", "", "host-0")
		ep.Node, ep.Zone = pickOne(c, "", "node"), pickOne(c, "", "z9")
		e.Endpoints = append(e.Endpoints, ep)
	}
	return e
}

func (c meshGenerator) pod(cluster mesh.ClusterID) snapshot.Object {
	p := &snapshot.Pod{
		Meta: c.meta(cluster, c.namespace(), fmt.Sprint("p", c.IntN(2))), IPs: []netip.Addr{c.address(cluster)},
		Node: pickOne(c, "", "node"), ServiceAccount: pickOne(c, "sa0", "sa0", "sa0", "sa1"), Workload: pickOne(c, "w", "x"), HostNetwork: c.once(8),
	}
	p.Labels = c.app()
	p.Labels["istio"] = pickOne(c, "gw", "")
	p.Labels[mesh.LabelTLSMode] = pickOne(c, mesh.TLSModeIstio, mesh.TLSModeIstio, "")
	if c.once(4) {
		p.Labels[mesh.LabelNetwork] = pickOne(c, "n1", "n2")
	}
	if c.once(4) {
		p.Labels[mesh.LabelLocality] = "r.z2"
	}
	p.Unready = c.once(6)
	if c.once(2) {
		p.Ports = []snapshot.PodPort{{Name: "named", Number: uint32(9000 + c.IntN(2))}}
	}
	return p
}

func (c meshGenerator) workloadEntry(cluster mesh.ClusterID) snapshot.Object {
	w := &snapshot.WorkloadEntry{
		Network: pickOne[mesh.NetworkID](c, "", "", "n1"), Locality: mesh.Locality{Region: pickOne(c, "", "r")}, Weight: uint32(c.IntN(3)),
		HealthChecked: c.once(3), Health: snapshot.Condition(c.IntN(3)),
	}
	w.Meta, w.External, w.Workload, w.ServiceAccount = c.meta(cluster, c.namespace(), pickOne(c, "vm", "host")), true, "vm", pickOne(c, "", "vm")
	w.Labels = c.app()
	w.Labels[mesh.LabelTLSMode] = pickOne(c, mesh.TLSModeIstio, "")
	if c.once(3) {
		w.Target = pickOne(c, "x.example.net", "y.example.net")
	} else {
		w.IPs = []netip.Addr{c.address(cluster)}
	}
	if c.once(2) {
		w.Ports = []snapshot.PodPort{{Name: string(mesh.HTTP), Number: uint32(9000 + c.IntN(2))}}
	}
	return w
}

func (c meshGenerator) settings(cluster mesh.ClusterID) snapshot.Object {
	allow, only := meshv1alpha1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY, meshv1alpha1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY
	s := &snapshot.MeshSettings{Meta: c.meta(cluster, "istio-system", "istio"), Networks: &meshv1alpha1.MeshNetworks{}}
	s.Mesh = &meshv1alpha1.MeshConfig{
		TrustDomain: pickOne(c, "cluster.local", "td"), RootNamespace: pickOne(c, "istio-system", "istio-system", "ns1"),
		EnableAutoMtls:        wrapperspb.Bool(!c.once(4)),
		ConnectTimeout:        durationpb.New(time.Duration(1+c.IntN(2)) * time.Second),
		OutboundTrafficPolicy: &meshv1alpha1.MeshConfig_OutboundTrafficPolicy{Mode: pickOne(c, allow, only)},
		TrustDomainAliases:    []string{"old", "older"}[:c.IntN(3)],
		MeshMTLS:              &meshv1alpha1.MeshConfig_TLSConfig{EcdhCurves: []string{"X25519MLKEM768", "X25519"}[:c.IntN(3)]},
	}
	if c.once(3) {
		s.Mesh.TcpKeepalive = &networkingv1alpha3.ConnectionPoolSettings_TCPSettings_TcpKeepalive{Probes: uint32(c.IntN(3))}
		s.Mesh.H2UpgradePolicy = meshv1alpha1.MeshConfig_UPGRADE
	}
	if c.once(2) {
		s.Mesh.LocalityLbSetting = c.localities()
	}
	if c.once(2) {
		s.Mesh.AccessLogFile = "/dev/stdout"
		s.Mesh.DefaultProviders = &meshv1alpha1.MeshConfig_DefaultProviders{AccessLogging: []string{"file", "envoy"}[:c.IntN(3)]}
		s.Mesh.ExtensionProviders = []*meshv1alpha1.MeshConfig_ExtensionProvider{{
			Name: "file", Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLog{
				EnvoyFileAccessLog: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider{Path: pickOne(c, "", "/a", "/b")},
			},
		}}
	}
	if c.once(2) {
		s.Mesh.ExtensionProviders = append(s.Mesh.ExtensionProviders, c.collectors()...)
	}
	if c.once(3) {
		s.Mesh.ProxyListenPort, s.Mesh.ProxyInboundListenPort = pickOne[int32](c, 15001, 80), pickOne[int32](c, 15006, 85)
		s.Mesh.InboundTrafficPolicy = &meshv1alpha1.MeshConfig_InboundTrafficPolicy{Mode: meshv1alpha1.MeshConfig_InboundTrafficPolicy_Mode(c.IntN(2))}
		s.Mesh.OutboundClusterStatName, s.Mesh.InboundClusterStatName = pickOne(c, "", "%SERVICE%_%SUBSET_NAME%"), pickOne(c, "", "%SERVICE_NAME%_%TARGET_PORT%")
	}
	s.Mesh.MeshMTLS.MinProtocolVersion = meshv1alpha1.MeshConfig_TLSConfig_TLSProtocol(c.IntN(3))
	s.Mesh.TlsDefaults = &meshv1alpha1.MeshConfig_TLSConfig{CipherSuites: []string{"AES128-SHA", "AES256-SHA"}[:c.IntN(3)]}
	if c.once(3) {
		p := c.trafficPolicy()
		s.Mesh.DefaultTrafficPolicy = &meshv1alpha1.MeshConfig_DefaultTrafficPolicy{ConnectionPool: p.ConnectionPool, OutlierDetection: p.OutlierDetection}
	}
	if c.once(4) {
		s.Mesh.ServiceEntryVisibility = &meshv1alpha1.ServiceEntryVisibility{
			ApplyToSidecars: c.once(2), DefaultVisibility: meshv1alpha1.ServiceEntryVisibility_Visibility(c.IntN(4)),
			Policies: []*meshv1alpha1.ServiceEntryVisibility_Policy{{
				Visibility: meshv1alpha1.ServiceEntryVisibility_Visibility(c.IntN(4)),
				MatchingRules: []*meshv1alpha1.ServiceEntryVisibility_MatchRule{{Matcher: &meshv1alpha1.ServiceEntryVisibility_MatchRule_NamespaceSelector{
					NamespaceSelector: &meshv1alpha1.LabelSelector{MatchLabels: map[string]string{"env": pickOne(c, "prod", "test")}},
				}}},
			}},
		}
	}
	if c.once(4) {
		s.Mesh.DefaultServiceExportTo = []string{pickOne(c, "*", ".", "ns1")}
	}
	if c.once(4) {
		s.Mesh.DiscoverySelectors = []*meshv1alpha1.LabelSelector{{MatchLabels: map[string]string{"env": pickOne(c, "prod", "test")}}}
	}
	if !c.once(2) {
		return s
	}
	gateway := &meshv1alpha1.Network_IstioNetworkGateway{Port: 443, Gw: &meshv1alpha1.Network_IstioNetworkGateway_Address{Address: "192.0.2.9"}}
	if c.once(2) {
		gateway.Gw = &meshv1alpha1.Network_IstioNetworkGateway_RegistryServiceName{RegistryServiceName: "svc0.istio-system.svc.cluster.local"}
	}
	s.Networks.Networks = map[string]*meshv1alpha1.Network{"n1": {
		Endpoints: []*meshv1alpha1.Network_NetworkEndpoints{
			{Ne: &meshv1alpha1.Network_NetworkEndpoints_FromRegistry{FromRegistry: "c2"}},
			{Ne: &meshv1alpha1.Network_NetworkEndpoints_FromCidr{FromCidr: "10.0.1.0/31"}},
			{Ne: &meshv1alpha1.Network_NetworkEndpoints_FromCidr{FromCidr: "10.0.0.0/8"}},
		},
		Gateways: []*meshv1alpha1.Network_IstioNetworkGateway{gateway},
	}}
	return s
}

func (c meshGenerator) sidecar(cluster mesh.ClusterID) snapshot.Object {
	sc := &snapshot.Sidecar{
		Meta: c.meta(cluster, c.namespace(), fmt.Sprint("s", c.IntN(2))), Kind: snapshot.KindSidecar, Spec: &networkingv1alpha3.Sidecar{},
	}
	if c.once(2) {
		sc.Spec.WorkloadSelector = &networkingv1alpha3.WorkloadSelector{Labels: c.app()}
	}
	if c.once(3) {
		sc.Spec.OutboundTrafficPolicy = &networkingv1alpha3.OutboundTrafficPolicy{Mode: pickOne(c,
			networkingv1alpha3.OutboundTrafficPolicy_REGISTRY_ONLY, networkingv1alpha3.OutboundTrafficPolicy_ALLOW_ANY)}
	}
	if c.once(4) {
		sc.Spec.OutboundTrafficPolicy = &networkingv1alpha3.OutboundTrafficPolicy{
			Mode:        networkingv1alpha3.OutboundTrafficPolicy_ALLOW_ANY,
			EgressProxy: &networkingv1alpha3.Destination{Host: "svc0.ns0.svc.cluster.local", Port: &networkingv1alpha3.PortSelector{Number: 80}},
		}
	}
	if c.once(4) {
		sc.Spec.InboundConnectionPool = c.trafficPolicy().ConnectionPool
	}
	if c.once(2) {
		in := &networkingv1alpha3.IstioIngressListener{
			Port:            &networkingv1alpha3.SidecarPort{Number: uint32(8080 + c.IntN(2)), Protocol: pickOne(c, "HTTP", "TCP", "GRPC")},
			DefaultEndpoint: pickOne(c, "127.0.0.1:9000", "0.0.0.0:9000", "unix:///a"),
		}
		in.CaptureMode = pickOne(c, networkingv1alpha3.CaptureMode_DEFAULT, networkingv1alpha3.CaptureMode_NONE)
		if c.once(2) {
			in.Tls = &networkingv1alpha3.ServerTLSSettings{Mode: networkingv1alpha3.ServerTLSSettings_SIMPLE, ServerCertificate: pickOne(c, "/a", "/b"), PrivateKey: "/k"}
		}
		sc.Spec.Ingress = append(sc.Spec.Ingress, in)
	}
	// Each egress listener has its own port.
	hosts := func() []string {
		return []string{pickOne(c, "*/*", "./*", "ns1/*", "~/*", "*/svc0.ns0.svc.cluster.local", "ns0/*")}
	}
	if c.once(2) {
		sc.Spec.Egress = append(sc.Spec.Egress, &networkingv1alpha3.IstioEgressListener{
			Port:  &networkingv1alpha3.SidecarPort{Number: 15080, Protocol: pickOne(c, "HTTP_PROXY", "TCP")},
			Hosts: hosts(), Bind: pickOne(c, "", "127.0.0.1"), CaptureMode: networkingv1alpha3.CaptureMode(c.IntN(3)),
		})
	}
	if c.once(3) {
		sc.Spec.Egress = append(sc.Spec.Egress, &networkingv1alpha3.IstioEgressListener{
			Port: &networkingv1alpha3.SidecarPort{Number: uint32(80 + c.IntN(2)), Protocol: pickOne(c, "HTTP", "HTTP", "TCP")}, Hosts: hosts(),
			CaptureMode: networkingv1alpha3.CaptureMode(c.IntN(3)),
		})
	}
	if c.once(2) {
		sc.Spec.Egress = append(sc.Spec.Egress, &networkingv1alpha3.IstioEgressListener{Hosts: hosts()})
	}
	return sc
}

func (c meshGenerator) peerAuthentication(cluster mesh.ClusterID) snapshot.Object {
	mode := func() *securityv1beta1.PeerAuthentication_MutualTLS {
		return &securityv1beta1.PeerAuthentication_MutualTLS{Mode: securityv1beta1.PeerAuthentication_MutualTLS_Mode(c.IntN(4))}
	}
	p := &snapshot.PeerAuthentication{
		Meta: c.meta(cluster, c.namespace(), fmt.Sprint("p", c.IntN(2))), Kind: snapshot.KindPeerAuthentication,
		Spec: &securityv1beta1.PeerAuthentication{Mtls: mode()},
	}
	if c.once(2) {
		p.Spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: c.app()}
		if c.once(2) {
			p.Spec.PortLevelMtls = map[uint32]*securityv1beta1.PeerAuthentication_MutualTLS{8080: mode(), 7777: mode()}
		}
	}
	return p
}

// collectors returns providers whose services may exist.
func (c meshGenerator) collectors() []*meshv1alpha1.MeshConfig_ExtensionProvider {
	host := func() string { return fmt.Sprintf("svc%d.%s.svc.cluster.local", c.IntN(3), c.namespace()) }
	return []*meshv1alpha1.MeshConfig_ExtensionProvider{
		{Name: "authorizer", Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc{
			EnvoyExtAuthzGrpc: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider{Service: host(), Port: 80},
		}},
		{Name: "otel", Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_Opentelemetry{
			Opentelemetry: &meshv1alpha1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider{Service: host(), Port: 80},
		}},
		{Name: "zipkin", Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_Zipkin{
			Zipkin: &meshv1alpha1.MeshConfig_ExtensionProvider_ZipkinTracingProvider{Service: host(), Port: pickOne[uint32](c, 80, 85)},
		}},
		{Name: "logs", Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyOtelAls{
			EnvoyOtelAls: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyOpenTelemetryLogProvider{Service: host(), Port: 80},
		}},
	}
}

func (c meshGenerator) wasmPlugin(cluster mesh.ClusterID) snapshot.Object {
	p := &snapshot.WasmPlugin{
		Meta: c.meta(cluster, c.namespace(), fmt.Sprint("w", c.IntN(2))), Kind: snapshot.KindWasmPlugin,
		Spec: &extensionsv1alpha1.WasmPlugin{
			Url:          pickOne(c, "file:///a", "file:///b", "oci://a"),
			Phase:        extensionsv1alpha1.PluginPhase(c.IntN(4)),
			Priority:     wrapperspb.Int32(int32(c.IntN(2))),
			FailStrategy: extensionsv1alpha1.FailStrategy(c.IntN(3)),
			Type:         extensionsv1alpha1.PluginType(c.IntN(3)),
		},
	}
	if c.once(2) {
		p.Spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: c.app()}
	}
	if c.once(2) {
		m := &extensionsv1alpha1.WasmPlugin_TrafficSelector{Mode: typev1beta1.WorkloadMode(c.IntN(4))}
		if c.once(2) {
			m.Ports = []*typev1beta1.PortSelector{{Number: pickOne[uint32](c, 80, 85)}}
		}
		p.Spec.Match = []*extensionsv1alpha1.WasmPlugin_TrafficSelector{m}
	}
	return p
}

func (c meshGenerator) requestAuthentication(cluster mesh.ClusterID) snapshot.Object {
	p := &snapshot.RequestAuthentication{
		Meta: c.meta(cluster, c.namespace(), fmt.Sprint("r", c.IntN(2))), Kind: snapshot.KindRequestAuthentication,
		Spec: &securityv1beta1.RequestAuthentication{},
	}
	if c.once(2) {
		p.Spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: c.app()}
	}
	for range c.IntN(3) {
		r := &securityv1beta1.JWTRule{Issuer: pickOne(c, "https://a", "https://b"), ForwardOriginalToken: c.once(2)}
		switch c.IntN(3) {
		case 0:
			r.Jwks = keyset.Nobodys
		case 1:
			r.JwksUri = pickOne(c, "https://a/keys", "https://b/keys")
		}
		p.Spec.JwtRules = append(p.Spec.JwtRules, r)
	}
	return p
}

func (c meshGenerator) authorizationPolicy(cluster mesh.ClusterID) snapshot.Object {
	p := &snapshot.AuthorizationPolicy{
		Meta:   c.meta(cluster, c.namespace(), fmt.Sprint("a", c.IntN(3))),
		Spec:   &securityv1beta1.AuthorizationPolicy{Action: securityv1beta1.AuthorizationPolicy_Action(c.IntN(4))},
		DryRun: c.once(4),
	}
	if c.once(2) {
		p.Spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: c.app()}
	}
	if p.Spec.Action == securityv1beta1.AuthorizationPolicy_CUSTOM {
		p.Spec.ActionDetail = &securityv1beta1.AuthorizationPolicy_Provider{
			Provider: &securityv1beta1.AuthorizationPolicy_ExtensionProvider{Name: pickOne(c, "authorizer", "none")},
		}
	}
	for i := range c.IntN(3) {
		p.Spec.Rules = append(p.Spec.Rules, &securityv1beta1.Rule{To: []*securityv1beta1.Rule_To{{
			Operation: &securityv1beta1.Operation{Paths: []string{pickOne(c, "/a", "/b")}},
		}}})
		if c.once(4) {
			p.Doubtful = append(p.Doubtful, i)
		}
	}
	return p
}

// keySets returns random results of fetches.
func (c meshGenerator) keySets() map[snapshot.KeySource]string {
	out := make(map[snapshot.KeySource]string)
	for _, source := range []snapshot.KeySource{{URL: "https://a/keys"}, {URL: "https://b/keys"}, {Issuer: "https://a"}} {
		if !c.once(3) {
			out[source] = pickOne(c, "keys", "other keys")
		}
	}
	return out
}

func (c meshGenerator) telemetry(cluster mesh.ClusterID) snapshot.Object {
	t := &snapshot.Telemetry{
		Meta: c.meta(cluster, c.namespace(), fmt.Sprint("t", c.IntN(2))), Kind: snapshot.KindTelemetry, Spec: &telemetryv1alpha1.Telemetry{},
	}
	if c.once(2) {
		t.Spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: c.app()}
	}
	for range c.IntN(3) {
		l := &telemetryv1alpha1.AccessLogging{}
		if !c.once(3) {
			l.Providers = []*telemetryv1alpha1.ProviderRef{{Name: pickOne(c, "envoy", "file", "unknown", "logs")}}
		}
		if c.once(3) {
			l.Disabled = wrapperspb.Bool(c.once(2))
		}
		if c.once(3) {
			l.Match = &telemetryv1alpha1.AccessLogging_LogSelector{Mode: telemetryv1alpha1.WorkloadMode(c.IntN(3))}
		}
		if c.once(3) {
			l.Filter = &telemetryv1alpha1.AccessLogging_Filter{Expression: pickOne(c, "response.code >= 400", "true")}
		}
		t.Spec.AccessLogging = append(t.Spec.AccessLogging, l)
	}
	for range c.IntN(3) {
		e := &telemetryv1alpha1.Tracing{}
		if !c.once(3) {
			e.Providers = []*telemetryv1alpha1.ProviderRef{{Name: pickOne(c, "otel", "zipkin", "unknown")}}
		}
		if c.once(3) {
			e.DisableSpanReporting = wrapperspb.Bool(c.once(2))
		}
		if c.once(3) {
			e.Match = &telemetryv1alpha1.Tracing_TracingSelector{Mode: telemetryv1alpha1.WorkloadMode(c.IntN(3))}
		}
		t.Spec.Tracing = append(t.Spec.Tracing, e)
	}
	if c.once(8) {
		t.Spec.TargetRefs = []*typev1beta1.PolicyTargetReference{{Name: "gw"}}
	}
	return t
}

func (c meshGenerator) gateway(cluster mesh.ClusterID) snapshot.Object {
	g := &snapshot.Gateway{
		Meta: c.meta(cluster, c.namespace(), fmt.Sprint("g", c.IntN(2))), Kind: snapshot.KindGateway,
		Spec: &networkingv1alpha3.Gateway{Selector: map[string]string{"istio": "gw"}},
	}
	for i := range 1 + c.IntN(3) {
		g.Spec.Servers = append(g.Spec.Servers, c.server(i))
	}
	return g
}

// server returns a server of a Gateway, which may conflict with others.
func (c meshGenerator) server(i int) *networkingv1alpha3.Server {
	s := &networkingv1alpha3.Server{
		Port:  &networkingv1alpha3.Port{Number: uint32(15443 + c.IntN(3)), Name: fmt.Sprint("p", i), Protocol: pickOne(c, "TLS", "TLS", "HTTP", "HTTPS", "TCP")},
		Hosts: []string{pickOne(c, "*.local", "ns0/*", "./*", "svc0.ns1.svc.cluster.local")},
		Bind:  pickOne(c, "", "", "", "127.0.0.1"),
	}
	switch s.Port.Protocol {
	case "TLS":
		s.Tls = &networkingv1alpha3.ServerTLSSettings{Mode: pickOne(c, networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH, networkingv1alpha3.ServerTLSSettings_PASSTHROUGH)}
	case "HTTPS":
		s.Tls = &networkingv1alpha3.ServerTLSSettings{Mode: networkingv1alpha3.ServerTLSSettings_MUTUAL, CredentialName: pickOne(c, "a", "b")}
	case "HTTP":
		s.Tls = &networkingv1alpha3.ServerTLSSettings{HttpsRedirect: c.once(2)}
	}
	return s
}

// envoyFilter returns extensions with colliding names, and filters for every place.
func (c meshGenerator) envoyFilter(cluster mesh.ClusterID) snapshot.Object {
	f := &snapshot.EnvoyFilter{Meta: c.meta(cluster, c.namespace(), fmt.Sprint("f", c.IntN(2))), Priority: int32(c.IntN(2))}
	if c.once(2) {
		f.Selector = c.app()
	}
	for _, name := range []string{"x", "y"} {
		if c.once(2) {
			f.Extensions = append(f.Extensions, snapshot.Extension{
				Name: name, Body: c.encoded(&corev3.TypedExtensionConfig{Name: name, TypedConfig: &anypb.Any{Value: []byte{byte(c.IntN(2))}}}),
			})
		}
	}
	for range c.IntN(4) {
		p := c.patch()
		p.Of, p.Index = f.Key(), len(f.Patches)
		f.Patches = append(f.Patches, p)
	}
	return f
}

// patch returns a patch for any place, with any operation that is possible there.
func (c meshGenerator) patch() *snapshot.Patch {
	spec := &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch{
		ApplyTo: networkingv1alpha3.EnvoyFilter_ApplyTo(pickOne(c, 1, 2, 3, 4, 5, 6, 7, 8, 11)),
		Match:   &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch{Context: networkingv1alpha3.EnvoyFilter_PatchContext(c.IntN(4))},
		Patch:   &networkingv1alpha3.EnvoyFilter_Patch{Operation: networkingv1alpha3.EnvoyFilter_Patch_Operation(1 + c.IntN(8))},
	}
	switch spec.ApplyTo {
	case networkingv1alpha3.EnvoyFilter_LISTENER, networkingv1alpha3.EnvoyFilter_FILTER_CHAIN, networkingv1alpha3.EnvoyFilter_CLUSTER:
		spec.Patch.Operation = networkingv1alpha3.EnvoyFilter_Patch_Operation(1 + c.IntN(3))
	case networkingv1alpha3.EnvoyFilter_ROUTE_CONFIGURATION:
		spec.Patch.Operation = networkingv1alpha3.EnvoyFilter_Patch_MERGE
	case networkingv1alpha3.EnvoyFilter_VIRTUAL_HOST:
		spec.Patch.Operation = networkingv1alpha3.EnvoyFilter_Patch_Operation(pickOne(c, 1, 2, 3, 7))
	}
	p := &snapshot.Patch{Spec: spec}
	name := pickOne(c, "x", "y", "default")
	switch spec.ApplyTo {
	case networkingv1alpha3.EnvoyFilter_LISTENER:
		p.Value = &listenerv3.Listener{Name: pickOne(c, "x", "10.1.0.1_80"), StatPrefix: name}
	case networkingv1alpha3.EnvoyFilter_LISTENER_FILTER:
		p.Value = &listenerv3.ListenerFilter{Name: name}
	case networkingv1alpha3.EnvoyFilter_FILTER_CHAIN:
		p.Value = &listenerv3.FilterChain{Name: name}
	case networkingv1alpha3.EnvoyFilter_NETWORK_FILTER:
		p.Value = &listenerv3.Filter{Name: name}
	case networkingv1alpha3.EnvoyFilter_HTTP_FILTER:
		p.Value = &hcmv3.HttpFilter{Name: name, IsOptional: c.once(2)}
	case networkingv1alpha3.EnvoyFilter_ROUTE_CONFIGURATION:
		p.Value = &routev3.RouteConfiguration{RequestHeadersToRemove: []string{name}}
	case networkingv1alpha3.EnvoyFilter_VIRTUAL_HOST:
		p.Value = &routev3.VirtualHost{Name: name, Domains: []string{name}}
	case networkingv1alpha3.EnvoyFilter_HTTP_ROUTE:
		p.Value = &routev3.Route{Name: name}
	case networkingv1alpha3.EnvoyFilter_CLUSTER:
		p.Value = &clusterv3.Cluster{Name: name, AltStatName: name}
	}
	if c.once(2) {
		c.patchMatch(spec)
	}
	return p
}

// patchMatch lets a patch apply only to some resources.
func (c meshGenerator) patchMatch(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch) {
	number := pickOne[uint32](c, 0, 80, 85, 8080)
	switch p.ApplyTo {
	case networkingv1alpha3.EnvoyFilter_CLUSTER:
		p.Match.ObjectTypes = &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch_Cluster{Cluster: &networkingv1alpha3.EnvoyFilter_ClusterMatch{
			PortNumber: number, Service: fmt.Sprintf("svc%d.%s.svc.cluster.local", c.IntN(3), c.namespace()),
		}}
	case networkingv1alpha3.EnvoyFilter_ROUTE_CONFIGURATION, networkingv1alpha3.EnvoyFilter_VIRTUAL_HOST, networkingv1alpha3.EnvoyFilter_HTTP_ROUTE:
		m := &networkingv1alpha3.EnvoyFilter_RouteConfigurationMatch{PortNumber: number}
		if c.once(2) {
			m.Vhost = &networkingv1alpha3.EnvoyFilter_RouteConfigurationMatch_VirtualHostMatch{Name: fmt.Sprintf("svc%d.%s.svc.cluster.local:80", c.IntN(3), c.namespace())}
		}
		p.Match.ObjectTypes = &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch_RouteConfiguration{RouteConfiguration: m}
	default:
		m := &networkingv1alpha3.EnvoyFilter_ListenerMatch{PortNumber: number}
		if c.once(2) {
			m.FilterChain = &networkingv1alpha3.EnvoyFilter_ListenerMatch_FilterChainMatch{Filter: &networkingv1alpha3.EnvoyFilter_ListenerMatch_FilterMatch{
				Name: "envoy.filters.network.http_connection_manager", SubFilter: &networkingv1alpha3.EnvoyFilter_ListenerMatch_SubFilterMatch{Name: "envoy.filters.http.cors"},
			}}
		}
		p.Match.ObjectTypes = &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch_Listener{Listener: m}
	}
}

func (c meshGenerator) encoded(m proto.Message) []byte {
	b, err := xdswire.Marshal(m)
	if err != nil {
		panic(err) // these messages are always valid
	}
	return b
}

func (c meshGenerator) destinationRule(cluster mesh.ClusterID) snapshot.Object {
	d := &networkingv1alpha3.DestinationRule{
		Host: pickOne(c, "svc0", "svc1", "*", "*.local", "*.ns0.svc.cluster.local", fmt.Sprintf("svc%d.%s.svc.cluster.local", c.IntN(3), c.namespace())),
	}
	if c.once(2) {
		d.TrafficPolicy = c.trafficPolicy()
	}
	if c.once(4) {
		d.WorkloadSelector = &typev1beta1.WorkloadSelector{MatchLabels: c.app()}
	}
	if c.once(3) {
		d.ExportTo = []string{pickOne(c, ".", "ns1", "*")}
	}
	for _, name := range []string{"v1", "v2"}[:c.IntN(3)] {
		s := &networkingv1alpha3.Subset{Name: name, Labels: c.app()}
		if c.once(2) {
			s.TrafficPolicy = c.trafficPolicy()
		}
		d.Subsets = append(d.Subsets, s)
	}
	return &snapshot.DestinationRule{Meta: c.meta(cluster, c.namespace(), pickOne(c, "dr0", "dr1")), Kind: snapshot.KindDestinationRule, Spec: d}
}

func (c meshGenerator) trafficPolicy() *networkingv1alpha3.TrafficPolicy {
	p := &networkingv1alpha3.TrafficPolicy{
		ConnectionPool: &networkingv1alpha3.ConnectionPoolSettings{Tcp: &networkingv1alpha3.ConnectionPoolSettings_TCPSettings{MaxConnections: int32(c.IntN(3))}},
	}
	if c.once(3) {
		p.LoadBalancer = &networkingv1alpha3.LoadBalancerSettings{LbPolicy: &networkingv1alpha3.LoadBalancerSettings_Simple{
			Simple: pickOne(c, networkingv1alpha3.LoadBalancerSettings_PASSTHROUGH, networkingv1alpha3.LoadBalancerSettings_RANDOM),
		}}
	}
	if c.once(4) {
		p.LoadBalancer = &networkingv1alpha3.LoadBalancerSettings{LbPolicy: &networkingv1alpha3.LoadBalancerSettings_ConsistentHash{
			ConsistentHash: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB{
				HashKey: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName{HttpHeaderName: pickOne(c, "a", "b")},
			},
		}}
	}
	if c.once(4) {
		p.ConnectionPool.Tcp.IdleTimeout = durationpb.New(time.Duration(c.IntN(2)) * time.Hour)
	}
	if c.once(3) {
		p.OutlierDetection = &networkingv1alpha3.OutlierDetection{MinHealthPercent: int32(c.IntN(2) * 50)}
	}
	if c.once(4) {
		if p.LoadBalancer == nil {
			p.LoadBalancer = &networkingv1alpha3.LoadBalancerSettings{}
		}
		p.LoadBalancer.LocalityLbSetting = c.localities()
	}
	if c.once(3) {
		p.Tls = &networkingv1alpha3.ClientTLSSettings{Mode: networkingv1alpha3.ClientTLSSettings_TLSmode(c.IntN(4))}
	}
	if c.once(3) {
		p.PortLevelSettings = []*networkingv1alpha3.TrafficPolicy_PortTrafficPolicy{{Port: &networkingv1alpha3.PortSelector{Number: 80}}}
	}
	return p
}

func (c meshGenerator) localities() *networkingv1alpha3.LocalityLoadBalancerSetting {
	s := &networkingv1alpha3.LocalityLoadBalancerSetting{}
	switch c.IntN(4) {
	case 0:
		s.Enabled = wrapperspb.Bool(false)
	case 1:
		s.Distribute = []*networkingv1alpha3.LocalityLoadBalancerSetting_Distribute{
			{From: pickOne(c, "r/z0/*", "r/z1", "*"), To: map[string]uint32{"r/z0": 30, "r/z1/*": 60, "*/z9": 10}},
		}
	case 2:
		s.FailoverPriority = []string{pickOne(c, mesh.LabelNetwork, "app", mesh.LabelZone), "app=a", mesh.LabelCluster}
	}
	if c.once(2) && s.Distribute == nil {
		s.Failover = []*networkingv1alpha3.LocalityLoadBalancerSetting_Failover{{From: "r", To: "other"}}
	}
	return s
}

// virtualService returns a VirtualService with hosts that others and services have, too.
func (c meshGenerator) virtualService(cluster mesh.ClusterID) snapshot.Object {
	v := &snapshot.VirtualService{Meta: c.meta(cluster, c.namespace(), fmt.Sprint("v", c.IntN(3))), Gateways: []string{snapshot.MeshGateway}}
	switch c.IntN(3) {
	case 0:
		v.Gateways = append(v.Gateways, fmt.Sprint(c.namespace(), "/g", c.IntN(2)))
	case 1:
		v.Gateways = []string{fmt.Sprint(c.namespace(), "/g", c.IntN(2)), fmt.Sprint(c.namespace(), "/g2")}
	}
	if c.once(3) {
		v.ExportTo = []string{pickOne(c, ".", "ns0", "ns1", "*")}
	}
	for range 1 + c.IntN(2) {
		v.Hosts = append(v.Hosts, pickOne(c, "a.example.com", "*.example.com", "d.example.com", "*.ns0.svc.cluster.local",
			fmt.Sprintf("svc%d.%s.svc.cluster.local", c.IntN(3), c.namespace())))
	}
	v.Hosts = slices.Compact(v.Hosts)
	destination := func() *networkingv1alpha3.Destination {
		d := &networkingv1alpha3.Destination{Host: fmt.Sprintf("svc%d.%s.svc.cluster.local", c.IntN(3), c.namespace()), Subset: pickOne(c, "", "v1")}
		if c.once(3) {
			d.Port = &networkingv1alpha3.PortSelector{Number: 81}
		}
		return d
	}
	labels := func() map[string]string {
		if c.once(3) {
			return c.app()
		}
		return nil
	}
	namespace := func() string { return pickOne(c, "", "", "", "ns0", "ns1") }
	port := func() uint32 { return pickOne[uint32](c, 0, 0, 80, 82) }
	for range c.IntN(3) {
		r := &networkingv1alpha3.HTTPRoute{Name: pickOne(c, "", "r")}
		if c.once(2) {
			r.Match = []*networkingv1alpha3.HTTPMatchRequest{{
				Uri:  &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Prefix{Prefix: pickOne(c, "/", "/a")}},
				Port: port(), SourceLabels: labels(), SourceNamespace: namespace(),
			}}
		}
		if r.Delegate = nil; c.once(5) {
			r.Delegate = &networkingv1alpha3.Delegate{Name: fmt.Sprint("v", c.IntN(3)), Namespace: c.namespace()}
		} else {
			r.Route = []*networkingv1alpha3.HTTPRouteDestination{{Destination: destination()}}
		}
		v.HTTP = append(v.HTTP, r)
	}
	to := func() []*networkingv1alpha3.RouteDestination {
		return []*networkingv1alpha3.RouteDestination{{Destination: destination()}}
	}
	if c.once(3) {
		v.TCP = []*networkingv1alpha3.TCPRoute{{Route: to(), Match: []*networkingv1alpha3.L4MatchAttributes{{
			Port: port(), SourceLabels: labels(), SourceNamespace: namespace(), DestinationSubnets: []string{"10.9.0.0/16"}[c.IntN(2):],
		}}}}
	}
	if c.once(3) {
		v.TLS = []*networkingv1alpha3.TLSRoute{{Route: to(), Match: []*networkingv1alpha3.TLSMatchAttributes{{
			SniHosts: v.Hosts, Port: port(), SourceLabels: labels(), SourceNamespace: namespace(),
		}}}}
	}
	if c.once(4) {
		v.Hosts, v.TCP, v.TLS = nil, nil, nil // others delegate to it
	}
	return v
}

// serviceEntry returns a ServiceEntry with hosts that other objects have, too.
func (c meshGenerator) serviceEntry(cluster mesh.ClusterID) snapshot.Object {
	e := &snapshot.ServiceEntry{Meta: c.meta(cluster, c.namespace(), fmt.Sprint("e", c.IntN(2))), External: c.once(2)}
	e.Hosts = []string{pickOne(c, "a.example.com", "b.example.com", "*.example.com", "svc0.ns0.svc.cluster.local", "host-0.svc0.ns0.svc.cluster.local")}
	if c.once(3) {
		e.Hosts = append(e.Hosts, "c.example.com")
	}
	for i, p := range []mesh.Protocol{mesh.HTTP, mesh.TCP, mesh.TLS, mesh.Auto}[c.IntN(3):] {
		if e.Ports = append(e.Ports, snapshot.ServicePort{Name: string(p), Number: uint32(80 + i + c.IntN(2)*5), Protocol: p}); c.once(2) {
			break
		}
	}
	e.Resolution = snapshot.Resolution(c.IntN(4))
	switch c.IntN(4) {
	case 0:
		e.VIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 9, meshClusters[0][1], byte(c.IntN(4))})}
	case 1:
		e.CIDRs = []netip.Prefix{netip.MustParsePrefix(pickOne(c, "10.50.0.0/16", "10.51.0.0/16"))}
	default:
		e.Allocate = e.Resolution != snapshot.ByDestination
	}
	if c.once(3) {
		e.ExportTo = []string{pickOne(c, ".", "~", "ns1", "*")}
	}
	if c.once(4) {
		e.SubjectAltNames = []string{"spiffe://td/x"}
	}
	switch {
	case e.Resolution == snapshot.ByDestination:
	case c.once(2):
		e.Selector = c.app()
	default:
		for range c.IntN(3) {
			listed := snapshot.EntryEndpoint{Network: pickOne[mesh.NetworkID](c, "", "", "n1"), Weight: uint32(c.IntN(3))}
			listed.Workload.Meta = c.meta(cluster, e.Namespace, e.Name)
			listed.Workload.Labels = map[string]string{mesh.LabelTLSMode: pickOne(c, mesh.TLSModeIstio, "")}
			listed.Workload.ServiceAccount = pickOne(c, "", "vm")
			switch {
			case e.Resolution == snapshot.ByEndpoints && c.once(3):
				listed.Target, listed.Network = pickOne(c, "unix:///a", "unix:///b"), ""
			case e.Resolution.DNS():
				listed.Target, listed.Network = pickOne(c, "x.example.net", "y.example.net"), ""
			case !c.once(4):
				listed.Workload.IPs = []netip.Addr{c.address(cluster)}
			}
			e.Endpoints = append(e.Endpoints, listed)
		}
	}
	return e
}

// incrementalNodes are proxies that differ in everything that an assignment reads.
func incrementalNodes() []xdsgen.Node {
	node := func(typ mesh.NodeType, c mesh.ClusterID, ns, pod, ip string, change func(*xdsgen.Node)) xdsgen.Node {
		addr := netip.MustParseAddr(ip)
		n := xdsgen.Node{
			ID:      mesh.NodeID{Type: typ, IP: addr, Name: pod, Namespace: ns, Domain: ns + ".svc.cluster.local"},
			Cluster: c, Namespace: ns, IPs: []netip.Addr{addr}, Captured: true,
			Labels: map[string]string{"app": "a", "istio": "gw"},
		}
		if change != nil {
			change(&n)
		}
		return n
	}
	proxyless := func(n *xdsgen.Node) { n.Proxyless = true }
	bare := func(n *xdsgen.Node) { n.Captured = false }
	return []xdsgen.Node{
		node(mesh.Sidecar, "c1", "ns0", "p0", "10.0.1.1", nil),
		node(mesh.Sidecar, "c1", "ns1", "p1", "10.0.1.2", func(n *xdsgen.Node) { n.ResolvesNames = true }),
		node(mesh.Sidecar, "c2", "ns0", "p0", "10.0.2.1", nil),
		node(mesh.Sidecar, "c1", "ns1", "p0", "10.0.1.3", bare),
		node(mesh.Sidecar, "c1", "ns0", "p1", "10.0.1.3", bare),
		node(mesh.Sidecar, "c1", "elsewhere", "p0", "10.0.1.9", nil),
		node(mesh.Router, "c1", "istio-system", "p0", "10.0.1.8", func(n *xdsgen.Node) { n.View = []mesh.NetworkID{"n1"} }),
		node(mesh.Router, "c2", "ns0", "p1", "10.0.2.8", nil),
		node(mesh.Sidecar, "c1", "ns0", "other", "fd00::1", nil),
		node(mesh.Sidecar, "c3", "ns1", "p1", "10.0.3.1", func(n *xdsgen.Node) { n.Network = "n2" }),
		node(mesh.Sidecar, "c1", "istio-system", "p1", "10.0.1.7", nil),
		node(mesh.Sidecar, "c1", "ns0", "vm", "10.0.1.1", func(n *xdsgen.Node) { n.WorkloadEntry = "vm" }),
		node(mesh.Sidecar, "c1", "ns0", "p0", "10.0.1.1", proxyless),
		node(mesh.Sidecar, "c2", "ns1", "p1", "10.0.2.2", proxyless),
	}
}
