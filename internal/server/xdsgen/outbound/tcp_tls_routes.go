package outbound

import (
	"net/netip"
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/clusters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/filters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/server/xdsgen/telemetry"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// streams returns the VirtualServices with routes for connections at a port, in the order of
// precedence.
func (v View) streams(s *snapshot.Snapshot, number uint32, sc proxy.Scope) []filters.Stream {
	var out []filters.Stream
	ownHosts := map[string]bool{}
	if scope := routes.OwnScope(s, v.Client); scope != nil {
		for _, host := range scope.Streams {
			ownHosts[host] = true
			if h := s.Routes.Get(host); h != nil && slices.Contains(h.Ports, number) {
				out = append(out, v.streamsOf(host, h.Streams.For(v.Client.Namespace), sc)...)
			}
		}
	}
	if common := s.PortRoutes.Get(number); common != nil {
		for _, h := range common.Streams {
			if !ownHosts[h.Host] {
				out = append(out, v.streamsOf(h.Host, h.Services, sc)...)
			}
		}
	}
	return out
}

// streamsOf returns the VirtualServices of a list that a scope imports.
func (v View) streamsOf(host string, list []*snapshot.VirtualService, sc proxy.Scope) []filters.Stream {
	var out []filters.Stream
	for _, vs := range list {
		if sc.ImportsFor(host, vs) {
			out = append(out, filters.Stream{Host: host, Virtual: vs, Client: v.Client.Narrow(vs), Tunnels: filters.TunnelsFor(v.Tunnels, vs)})
		}
	}
	return out
}

func streamsByHost(list wire.List[filters.Stream]) map[string][]filters.Stream {
	out := make(map[string][]filters.Stream)
	for s := range list.All {
		out[s.Host] = append(out[s.Host], s)
	}
	return out
}

// streamChains returns the filter chains for connections to a port of a service that are not
// HTTP: those that match a server name or an address range, and the one for the rest, or nil
// if there is none.
func streamChains(g *wire.Generator, svc *snapshot.MeshService, port *snapshot.ServicePort, ranges []netip.Prefix, o filters.HTTPOptions) (chains []*listenerv3.FilterChain, rest *listenerv3.FilterChain) {
	taken := make(map[string]struct{})
	add := func(match *listenerv3.FilterChainMatch, chain *listenerv3.FilterChain) {
		if takeMatch(taken, match) {
			chain.FilterChainMatch = match
			chains = append(chains, chain)
		}
	}
	tls := byServerName(port)
	for _, s := range o.Streams[svc.Host] {
		c := routes.RouteContext{Gateway: snapshot.MeshGateway, Port: port.Number, Client: s.Client}
		if tls {
			tlsRoutes(c, s.Virtual, func(r *networkingv1alpha3.TLSRoute, names, subnets []string) {
				match := &listenerv3.FilterChainMatch{ServerNames: names}
				if len(subnets) == 0 {
					for _, r := range ranges {
						match.PrefixRanges = append(match.PrefixRanges, wire.CidrRange(r))
					}
				}
				setSubnets(match, subnets)
				add(match, streamChain(g, s, r.GetRoute(), svc, port, o))
			})
			continue
		}
		r := tcpRoutes(c, s.Virtual, func(r *networkingv1alpha3.TCPRoute, subnets []string) {
			match := &listenerv3.FilterChainMatch{}
			setSubnets(match, subnets)
			add(match, streamChain(g, s, r.GetRoute(), svc, port, o))
		})
		if r != nil {
			return chains, streamChain(g, s, r.GetRoute(), svc, port, o)
		}
	}
	if tls && len(chains) > 0 {
		return chains, nil // as in Istio, no other server name is known
	}
	return chains, FilterChain(filters.ServiceTCP(g, svc, port, o))
}

// FilterChain returns a filter chain with one filter.
func FilterChain(filter *listenerv3.Filter) *listenerv3.FilterChain {
	var c struct {
		chain   listenerv3.FilterChain
		filters [1]*listenerv3.Filter
	}
	c.filters[0] = filter
	c.chain.Filters, c.chain.TransportSocketConnectTimeout = c.filters[:], wire.HandshakeTimeout
	return &c.chain
}

func setSubnets(m *listenerv3.FilterChainMatch, subnets []string) {
	for _, s := range subnets {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			ip, err := netip.ParseAddr(s)
			if err != nil {
				continue // the source has checked it
			}
			p = netip.PrefixFrom(ip, ip.BitLen())
		}
		m.PrefixRanges = append(m.PrefixRanges, wire.CidrRange(p.Masked()))
	}
}

// tlsRoutes yields the TLS routes of a VirtualService in the context, with the server names
// and address ranges of each match.
func tlsRoutes(c routes.RouteContext, v *snapshot.VirtualService, yield func(r *networkingv1alpha3.TLSRoute, names, subnets []string)) {
	for _, r := range v.TLS {
		for _, m := range r.GetMatch() {
			if c.Applies(m.GetGateways(), m.GetPort(), snapshot.ClientMatchOf(m)) {
				yield(r, m.GetSniHosts(), m.GetDestinationSubnets())
			}
		}
	}
}

// tcpRoutes yields the TCP routes of a VirtualService in the context that are for address
// ranges. It returns the first route for all connections, or nil. Routes behind it are left
// out.
func tcpRoutes(c routes.RouteContext, v *snapshot.VirtualService, yield func(r *networkingv1alpha3.TCPRoute, subnets []string)) *networkingv1alpha3.TCPRoute {
	for _, r := range v.TCP {
		if len(r.GetMatch()) == 0 {
			return r
		}
		var subnets []string
		for _, m := range r.GetMatch() {
			if !c.Applies(m.GetGateways(), m.GetPort(), snapshot.ClientMatchOf(m)) {
				continue
			}
			if len(m.GetDestinationSubnets()) == 0 {
				return r
			}
			subnets = append(subnets, m.GetDestinationSubnets()...)
		}
		if len(subnets) > 0 {
			yield(r, subnets)
		}
	}
	return nil
}

// streamChain returns the filter chain that passes connections on to destinations.
func streamChain(g *wire.Generator,
	s filters.Stream, to []*networkingv1alpha3.RouteDestination, svc *snapshot.MeshService, port *snapshot.ServicePort, o filters.HTTPOptions,
) *listenerv3.FilterChain {
	return RoutedChain(g, s.Virtual, to, port.Number, o.Settings, o.Timeouts.Of(svc, port.Number), s.Tunnels)
}

// RoutedChain returns the filter chain that passes connections at a port on to destinations
// of a VirtualService.
func RoutedChain(g *wire.Generator,
	v *snapshot.VirtualService, to []*networkingv1alpha3.RouteDestination, port uint32, s telemetry.Settings, timeouts filters.TCPTimeouts, tunnels wire.List[filters.Tunnel],
) *listenerv3.FilterChain {
	p := &tcpv3.TcpProxy{AccessLog: telemetry.AccessLogs(g, s), StatPrefix: v.Name + "." + v.Namespace}
	if len(to) == 1 {
		p.StatPrefix = routes.DestinationCluster(to[0].GetDestination(), port)
		p.ClusterSpecifier = &tcpv3.TcpProxy_Cluster{Cluster: p.GetStatPrefix()}
	} else {
		weighted := &tcpv3.TcpProxy_WeightedCluster{}
		for _, d := range to {
			if d.GetWeight() > 0 {
				weighted.Clusters = append(weighted.Clusters, &tcpv3.TcpProxy_WeightedCluster_ClusterWeight{
					Name: routes.DestinationCluster(d.GetDestination(), port), Weight: uint32(d.GetWeight()),
				})
			}
		}
		p.ClusterSpecifier = &tcpv3.TcpProxy_WeightedClusters{WeightedClusters: weighted}
	}
	timeouts.Set(p)
	telemetry.SetConnectionMetrics(g, p, s)
	filters.SetTunnel(p, tunnels, to)
	chain := FilterChain(g.NetworkFilter(filters.FilterTCP, p))
	chain.Metadata = clusters.ConfigMetadata(v)
	return chain
}
