package xds

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

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
		s.Tls = &networkingv1alpha3.ServerTLSSettings{
			Mode: pickOne(c, networkingv1alpha3.ServerTLSSettings_MUTUAL, networkingv1alpha3.ServerTLSSettings_SIMPLE), CredentialName: pickOne(c, "a", "b"),
		}
	case "HTTP":
		s.Tls = &networkingv1alpha3.ServerTLSSettings{HttpsRedirect: c.once(2)}
	}
	return s
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
		p.Tunnel = &networkingv1alpha3.TrafficPolicy_TunnelSettings{TargetHost: pickOne(c, "a", "b"), TargetPort: 443, Protocol: pickOne(c, "", "POST")}
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
	e := &snapshot.ServiceEntry{Meta: c.meta(cluster, c.namespace(), fmt.Sprint("e", c.IntN(3))), External: c.once(2)}
	e.Hosts = []string{pickOne(c, "a.example.com", "b.example.com", "*.example.com", "svc0.ns0.svc.cluster.local", "host-0.svc0.ns0.svc.cluster.local")}
	if c.once(3) {
		e.Hosts = append(e.Hosts, "c.example.com")
	}
	for i, p := range []mesh.Protocol{mesh.HTTP, mesh.TCP, mesh.TLS, mesh.Auto}[c.IntN(3):] {
		if e.Ports = append(e.Ports, snapshot.ServicePort{Name: pickOne(c, string(p), "port"+fmt.Sprint(i)), Number: uint32(80 + i + c.IntN(2)*5), Protocol: p}); c.once(2) {
			break
		}
	}
	e.Resolution = snapshot.Resolution(c.IntN(4))
	switch c.IntN(5) {
	case 0:
		e.VIPs = []netip.Addr{c.address(cluster)} // of a pod
		if c.once(2) {
			pods, _ := e.VIPs[0].Prefix(24)
			e.VIPs, e.CIDRs = nil, []netip.Prefix{pods}
		}
	case 1:
		e.VIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 9, meshClusters[0][1], byte(c.IntN(4))})}
	case 2:
		e.CIDRs = []netip.Prefix{netip.MustParsePrefix(pickOne(c, "10.50.0.0/16", "10.51.0.0/16"))}
	case 3: // all its addresses are refused
	default:
		e.AnyAddress, e.Allocate = true, e.Resolution != snapshot.ByDestination
	}
	e.Distribution = pickOne(c, snapshot.NoDistribution, snapshot.NoDistribution, snapshot.AnyPlace, snapshot.PreferSameNode)
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
