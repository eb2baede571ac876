package xds

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
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
		n.Distribution = pickOne(c, snapshot.NoDistribution, snapshot.AnyPlace, snapshot.PreferSameZone)
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
		if c.once(2) {
			return c.trafficExtension(cluster)
		}
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

// gatewayHosts are host names of gateways.
var gatewayHosts = []string{"lb.example.com", "other.example.com"}

// addresses returns random results of resolution. A host that is left out is still being resolved,
// and one without addresses cannot be resolved.
func (c meshGenerator) addresses() map[string][]netip.Addr {
	out := make(map[string][]netip.Addr)
	for _, host := range gatewayHosts {
		if c.once(4) {
			continue
		}
		out[host] = []netip.Addr{netip.MustParseAddr("192.0.2.8"), netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::2")}[:c.IntN(4)]
	}
	return out
}

// health returns the random report of a proxy about its WorkloadEntry.
func (c meshGenerator) health() healthReport {
	entry := snapshot.PodKey{Cluster: pickOne(c, meshClusters...), Namespace: c.namespace(), Name: pickOne(c, "vm", "host")}
	return healthReport{entry, pickOne(c, "", "vm", "other"), snapshot.Condition(c.IntN(3))}
}

func (c meshGenerator) service(cluster mesh.ClusterID) snapshot.Object {
	s := &snapshot.Service{Meta: c.meta(cluster, c.namespace(), pickOne(c, "svc0", "svc0", "svc1", "svc2"))}
	switch c.IntN(6) {
	case 0, 1:
		s.Headless = true
	case 2:
		s.ExternalName = pickOne(c, "example.com", "a.example.com", "svc0.ns0.svc.cluster.local", "svc1.ns0.svc.cluster.local", "svc0.ns1.svc.cluster.local")
	default:
		s.VIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 9, pickOne(c, cluster[1], cluster[1], meshClusters[0][1]), byte(c.IntN(4))})}
		if c.once(4) {
			s.VIPs = append(s.VIPs, netip.MustParseAddr("fd00::9"))
		}
		s.Sticky = c.once(6)
		s.NodeLocal, s.Distribution = c.once(8), pickOne(c, snapshot.NoDistribution, snapshot.NoDistribution, snapshot.AnyPlace, snapshot.PreferSameZone, snapshot.PreferSameNode)
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
		s.External = []string{"192.0.2.1", pickOne(c, append(gatewayHosts, "192.0.2.2")...), "2001:db8::1"}[c.IntN(2) : 1+c.IntN(3)]
		if c.once(4) {
			s.NodePorts = &snapshot.NodePorts{Selector: map[string]string{"edge": "a"}, Ports: map[uint32]uint32{15443: 30443}}
		}
		s.Ports = append(s.Ports, snapshot.ServicePort{Name: "tls", Number: 15443, Protocol: mesh.TLS, Target: pickOne[uint32](c, 15443, 15443, 8443)})
		if c.once(2) {
			s.Ports = append(s.Ports, snapshot.ServicePort{Name: "http3", Number: 15443, Protocol: mesh.UDP, Target: pickOne[uint32](c, 15443, 15443, 8443)})
		}
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
	if c.once(6) {
		p.IPs = nil // it waits for a node
	}
	p.Labels = c.app()
	p.Labels["istio"] = pickOne(c, "gw", "")
	p.Labels[mesh.LabelTLSMode] = pickOne(c, mesh.TLSModeIstio, mesh.TLSModeIstio, "")
	if c.once(4) {
		p.Labels[mesh.LabelNetwork] = pickOne(c, "n1", "n2")
	}
	if c.once(4) {
		p.Labels[pickOne(c, mesh.LabelLocality, mesh.LabelOldLocality)] = "r.z2"
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
	if c.once(3) {
		if s.Mesh.DefaultProviders == nil {
			s.Mesh.DefaultProviders = &meshv1alpha1.MeshConfig_DefaultProviders{}
		}
		s.Mesh.DefaultProviders.Metrics = []string{"prometheus"}
	}
	if c.once(2) {
		s.Mesh.ExtensionProviders = append(s.Mesh.ExtensionProviders, c.collectors()...)
	}
	if c.once(3) {
		s.Mesh.ProxyListenPort, s.Mesh.ProxyInboundListenPort = pickOne[int32](c, 15001, 80), pickOne[int32](c, 15006, 85)
		s.Mesh.InboundTrafficPolicy = &meshv1alpha1.MeshConfig_InboundTrafficPolicy{Mode: meshv1alpha1.MeshConfig_InboundTrafficPolicy_Mode(c.IntN(2))}
		s.Mesh.OutboundClusterStatName, s.Mesh.InboundClusterStatName = pickOne(c, "", "%SERVICE%_%SUBSET_NAME%"), pickOne(c, "", "%SERVICE_NAME%_%TARGET_PORT%")
	}
	if c.once(2) {
		s.Mesh.ProxyHttpPort = pickOne[int32](c, 15007, 15080)
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

// incrementalNodes are proxies that differ in everything that an assignment reads.
func incrementalNodes() []proxy.Node {
	node := func(typ mesh.NodeType, c mesh.ClusterID, ns, pod, ip string, change func(*proxy.Node)) proxy.Node {
		addr := netip.MustParseAddr(ip)
		n := proxy.Node{
			ID:      mesh.NodeID{Type: typ, IP: addr, Name: pod, Namespace: ns, Domain: ns + ".svc.cluster.local"},
			Cluster: c, Namespace: ns, IPs: []netip.Addr{addr}, Captured: true, CountsCalls: c != "c3",
			Labels: map[string]string{"app": "a", "istio": "gw"},
		}
		if change != nil {
			change(&n)
		}
		return n
	}
	proxyless := func(n *proxy.Node) { n.Proxyless = true }
	discovers := func(n *proxy.Node) { n.DiscoversHosts = true }
	requests := func(n *proxy.Node) { n.DiscoversHosts, n.RequestsHosts = true, true }
	bare := func(n *proxy.Node) { n.Captured = false }
	return []proxy.Node{
		node(mesh.Sidecar, "c1", "ns0", "p0", "10.0.1.1", nil),
		node(mesh.Sidecar, "c1", "ns1", "p1", "10.0.1.2", func(n *proxy.Node) { n.ResolvesNames = true }),
		node(mesh.Sidecar, "c2", "ns0", "p0", "10.0.2.1", nil),
		node(mesh.Sidecar, "c1", "ns1", "p0", "10.0.1.3", bare),
		node(mesh.Sidecar, "c1", "ns0", "p1", "10.0.1.3", bare),
		node(mesh.Sidecar, "c1", "elsewhere", "p0", "10.0.1.9", nil),
		node(mesh.Router, "c1", "istio-system", "p0", "10.0.1.8", func(n *proxy.Node) { n.View = []mesh.NetworkID{"n1"} }),
		node(mesh.Router, "c2", "ns0", "p1", "10.0.2.8", nil),
		node(mesh.Sidecar, "c1", "ns0", "other", "fd00::1", func(n *proxy.Node) { n.Transparent = true }),
		node(mesh.Sidecar, "c3", "ns1", "p1", "10.0.3.1", func(n *proxy.Node) { n.Network = "n2" }),
		node(mesh.Sidecar, "c1", "istio-system", "p1", "10.0.1.7", nil),
		node(mesh.Sidecar, "c1", "ns0", "vm", "10.0.1.1", func(n *proxy.Node) { n.WorkloadEntry = "vm" }),
		node(mesh.Sidecar, "c1", "ns0", "p0", "10.0.1.1", proxyless),
		node(mesh.Sidecar, "c2", "ns1", "p1", "10.0.2.2", proxyless),
		node(mesh.Sidecar, "c1", "ns0", "p0", "10.0.1.1", discovers),
		node(mesh.Sidecar, "c2", "ns1", "p1", "10.0.2.2", discovers),
		node(mesh.Sidecar, "c1", "ns0", "p0", "10.0.1.1", requests),
		node(mesh.Sidecar, "c2", "ns1", "p1", "10.0.2.2", requests),
	}
}
