package filters

import (
	"net"
	"slices"

	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/endpoints"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// Tunnel makes TCP connections to a destination tunnels through it: the destination is an HTTP
// proxy, which passes them on to a target.
type Tunnel struct {
	host, subset string // of the destination
	target       string // host:port
	post         bool   // by POST instead of CONNECT
	// http2 holds the ports of the destination with HTTP/2.
	http2 wire.List[uint32]
}

// TunnelsOf returns the tunnels that the DestinationRules of a client set.
func TunnelsOf(s *snapshot.Snapshot, client snapshot.RuleClient) wire.List[Tunnel] {
	var out []Tunnel
	for host := range s.RuleTraits.Tunnels.All {
		rule := s.Rules.Get(host).For(client)
		var http2 []uint32
		if svc := s.Services.Get(host); svc != nil {
			for i := range svc.Ports {
				if svc.Ports[i].Protocol.IsHTTP2() {
					http2 = append(http2, svc.Ports[i].Number)
				}
			}
		}
		for _, subset := range endpoints.SubsetsOf(rule) {
			t := rule.PolicyAt(0, subset).GetTunnel()
			if t == nil {
				continue
			}
			out = append(out, Tunnel{
				host: host, subset: subset.GetName(), target: net.JoinHostPort(t.GetTargetHost(), wire.PortString(t.GetTargetPort())),
				post: t.GetProtocol() == "POST", http2: wire.ListOf(http2),
			})
		}
	}
	return wire.ListOf(out)
}

// ChangesTunnels reports whether changes concern DestinationRules with tunnels or their services.
func ChangesTunnels(s *snapshot.Snapshot, c *snapshot.Changes) bool {
	for host := range s.RuleTraits.Tunnels.All {
		_, rule := c.Rules[host]
		if _, service := c.Services[host]; rule || service {
			return true
		}
	}
	return false
}

// TunnelsFor returns the tunnels that the routes of a VirtualService use.
func TunnelsFor(tunnels wire.List[Tunnel], v *snapshot.VirtualService) wire.List[Tunnel] {
	var out []Tunnel
	for t := range tunnels.All {
		uses := func(to []*networkingv1alpha3.RouteDestination) bool { return t.host == Decisive(to).GetHost() }
		if slices.ContainsFunc(v.TLS, func(r *networkingv1alpha3.TLSRoute) bool { return uses(r.GetRoute()) }) ||
			slices.ContainsFunc(v.TCP, func(r *networkingv1alpha3.TCPRoute) bool { return uses(r.GetRoute()) }) {
			out = append(out, t)
		}
	}
	return wire.ListOf(out)
}

// SetTunnel makes the connections of a route tunnels, if the DestinationRule of its destination
// sets one. Envoy has one setting for all destinations of a route. So as with Istio, the first of
// several decides, and its subset does not matter. Connections of a tunnel by POST to a port without
// HTTP/2 are closed, because Envoy may crash when such a tunnel ends.
func SetTunnel(p *tcpv3.TcpProxy, tunnels wire.List[Tunnel], to []*networkingv1alpha3.RouteDestination) {
	d := Decisive(to)
	subset := d.GetSubset()
	if len(to) > 1 {
		subset = ""
	}
	for t := range tunnels.All {
		switch {
		case t.host != d.GetHost() || t.subset != subset:
		case t.post && !slices.Contains(t.http2.Slice(), d.GetPort().GetNumber()):
			p.ClusterSpecifier = &tcpv3.TcpProxy_Cluster{Cluster: mesh.BlackHoleCluster}
		default:
			p.TunnelingConfig = &tcpv3.TcpProxy_TunnelingConfig{Hostname: t.target, UsePost: t.post}
		}
	}
}

// Decisive returns the destination of a route whose DestinationRule decides, as in Istio: the
// first one.
func Decisive(to []*networkingv1alpha3.RouteDestination) *networkingv1alpha3.Destination {
	if len(to) == 0 {
		return nil
	}
	return to[0].GetDestination()
}
