package inbound

import (
	"cmp"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	originalsrcv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_src/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/filters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/telemetry"
	"github.com/meshctl/meshctl/internal/server/xdsgen/tlsconfig"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// listeners adds virtualInbound if connections are captured, and one listener for each port
// whose connections are not.
func (f *inboundWorkload) listeners(g *wire.Generator) {
	bound := func(p inboundPort) bool { return p.Bind != "" }
	for i := range f.ports {
		if p := &f.ports[i]; bound(*p) {
			g.Listener(f.boundListener(g, p))
		}
	}
	if f.Captured {
		f.ports = slices.DeleteFunc(f.ports, bound)
		g.Listener(f.virtualInbound(g))
	}
}

// virtualInbound returns the listener that takes all redirected inbound connections. The
// chains for ports without a service come first.
func (f *inboundWorkload) virtualInbound(g *wire.Generator) *listenerv3.Listener {
	chains := []*listenerv3.FilterChain{{
		Name:             "virtualInbound-blackhole",
		FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(f.Listen)},
		Filters:          []*listenerv3.Filter{filters.BlackHole(g)},
	}}
	served := make(map[uint32]bool)
	for i := range f.ports {
		served[f.ports[i].Number] = true
	}
	chains = append(chains, f.chains(g, &inboundPort{Protocol: mesh.Auto, Mode: f.Passthrough})...)
	for port := range f.PortModes.All {
		if !served[port.Key] {
			chains = append(chains, f.passthroughChains(g, port.Key, port.Value)...)
		}
	}
	for i := range f.ports {
		chains = append(chains, f.chains(g, &f.ports[i])...)
	}
	l := &listenerv3.Listener{
		Name:                                 "virtualInbound",
		TrafficDirection:                     corev3.TrafficDirection_INBOUND,
		FilterChains:                         chains,
		AccessLog:                            telemetry.RefusedConnections(g, f.settings),
		ListenerFilters:                      f.listenerFilters(g, chains),
		ListenerFiltersTimeout:               durationpb.New(f.settings.DetectionTimeout),
		ContinueOnListenerFiltersTimeout:     true,
		MaxConnectionsToAcceptPerSocketEvent: wire.OneConnection,
		PerConnectionBufferLimitBytes:        filters.RequestWindow,
	}
	if f.Transparent {
		l.Transparent = wire.Yes
	}
	wire.ListenAt(l, f.Listen, f.Families.Wildcards())
	return l
}

// listenerFilters returns the listener filters of virtualInbound with these filter chains. They
// recover the original destination, and inspect the first bytes of connections where a chain
// depends on them. If the listener is transparent, Envoy calls the application from the address of
// the client, which overrides loopbackSource.
func (f *inboundWorkload) listenerFilters(g *wire.Generator, chains []*listenerv3.FilterChain) []*listenerv3.ListenerFilter {
	filters := []*listenerv3.ListenerFilter{g.ListenerFilter("envoy.filters.listener.original_dst", &originaldstv3.OriginalDst{})}
	if f.Transparent {
		filters = append(filters, g.ListenerFilter("envoy.filters.listener.original_src", &originalsrcv3.OriginalSrc{Mark: mesh.MarkTransparent}))
	}
	return append(filters, inspectors(g, chains)...)
}

// inspectors returns the inspectors that filter chains depend on. Where no chain does, they are
// off: they wait for the client to send first, and TLS that the tls_inspector finds matches no
// chain for plaintext.
func inspectors(g *wire.Generator, chains []*listenerv3.FilterChain) []*listenerv3.ListenerFilter {
	var out []*listenerv3.ListenerFilter
	if tls := TLSInspector(g); restrict(tls, chains, matchesTLS) {
		out = append(out, tls)
	}
	if http := HTTPInspector(g); restrict(http, chains, matchesPlainHTTP) {
		out = append(out, http)
	}
	return out
}

func matchesTLS(m *listenerv3.FilterChainMatch) bool { return m.GetTransportProtocol() == "tls" }

// matchesPlainHTTP reports whether a match is for HTTP that is detected in plaintext. The
// tls_inspector finds the protocols of TLS.
func matchesPlainHTTP(m *listenerv3.FilterChainMatch) bool {
	return !matchesTLS(m) && len(m.GetApplicationProtocols()) > 0
}

// restrict restricts an inspector to the destination ports with a chain that needs it. Chains
// without a port are for all ports without chains of their own. It reports whether any chain
// needs the inspector.
func restrict(inspector *listenerv3.ListenerFilter, chains []*listenerv3.FilterChain, needs func(*listenerv3.FilterChainMatch) bool) bool {
	const others = 0
	needed := make(map[uint32]bool) // by port
	for _, c := range chains {
		m := c.GetFilterChainMatch()
		port := m.GetDestinationPort().GetValue()
		needed[port] = needed[port] || needs(m)
	}
	var differ []uint32 // from the other ports
	for port, is := range needed {
		if is != needed[others] {
			differ = append(differ, port)
		}
	}
	if len(differ) == 0 {
		return needed[others]
	}
	slices.Sort(differ)
	inspector.FilterDisabled = portRange(differ...)
	if !needed[others] {
		inspector.FilterDisabled = &listenerv3.ListenerFilterChainMatchPredicate{
			Rule: &listenerv3.ListenerFilterChainMatchPredicate_NotMatch{NotMatch: inspector.GetFilterDisabled()},
		}
	}
	return true
}

// TLSInspector returns the filter that reads the server name and the protocols of TLS.
func TLSInspector(g *wire.Generator) *listenerv3.ListenerFilter {
	return g.ListenerFilter("envoy.filters.listener.tls_inspector", &tlsinspectorv3.TlsInspector{
		InitialReadBufferSize: wrapperspb.UInt32(512),
	})
}

// HTTPInspector returns the filter that finds out whether a connection has HTTP.
func HTTPInspector(g *wire.Generator) *listenerv3.ListenerFilter {
	return g.ListenerFilter("envoy.filters.listener.http_inspector", &httpinspectorv3.HttpInspector{})
}

// portRange returns a predicate that matches the ports.
func portRange(ports ...uint32) *listenerv3.ListenerFilterChainMatchPredicate {
	rules := make([]*listenerv3.ListenerFilterChainMatchPredicate, len(ports))
	for i, p := range ports {
		rules[i] = &listenerv3.ListenerFilterChainMatchPredicate{
			Rule: &listenerv3.ListenerFilterChainMatchPredicate_DestinationPortRange{
				DestinationPortRange: &typev3.Int32Range{Start: int32(p), End: int32(p) + 1},
			},
		}
	}
	if len(rules) == 1 {
		return rules[0]
	}
	return &listenerv3.ListenerFilterChainMatchPredicate{
		Rule: &listenerv3.ListenerFilterChainMatchPredicate_OrMatch{
			OrMatch: &listenerv3.ListenerFilterChainMatchPredicate_MatchSet{Rules: rules},
		},
	}
}

// boundListener returns a listener that binds the address which a Sidecar declares.
func (f *inboundWorkload) boundListener(g *wire.Generator, p *inboundPort) *listenerv3.Listener {
	chains := f.chains(g, p)
	for _, c := range chains {
		c.FilterChainMatch.DestinationPort = nil // the listener has only one
	}
	return &listenerv3.Listener{
		Name:                             p.Bind + "_" + wire.PortString(p.Number),
		Address:                          wire.Address(p.Bind, p.Number),
		TrafficDirection:                 corev3.TrafficDirection_INBOUND,
		FilterChains:                     chains,
		ListenerFilters:                  inspectors(g, chains),
		ListenerFiltersTimeout:           durationpb.New(f.settings.DetectionTimeout),
		ContinueOnListenerFiltersTimeout: true,
		PerConnectionBufferLimitBytes:    filters.RequestWindow,
	}
}

// chainKind describes a filter chain: the connections that it matches, and how it
// handles them.
type chainKind struct {
	tls  bool // matches TLS, else plaintext
	alpn []string
	mtls bool // terminates mTLS, else passes TLS through unless own
	own  bool // terminates TLS by the settings of a Sidecar
	http bool // handles HTTP, else TCP
}

// chainKinds returns the filter chains of a port by its protocol and mTLS mode, as Istio
// has them.
func chainKinds(p mesh.Protocol, mode snapshot.MTLSMode) []chainKind {
	declared := p != mesh.Auto
	http := p.IsHTTP()
	switch {
	case declared && http && mode == snapshot.Permissive:
		return []chainKind{{tls: true, alpn: tlsconfig.AlpnAll, mtls: true, http: true}, {http: true}}
	case declared && mode == snapshot.Permissive:
		return []chainKind{{tls: true, alpn: tlsconfig.AlpnAll, mtls: true}, {tls: true}, {}}
	case declared && mode == snapshot.Strict:
		return []chainKind{{tls: true, mtls: true, http: http}}
	case declared:
		return []chainKind{{http: http}}
	case mode == snapshot.Permissive:
		return []chainKind{
			{tls: true, alpn: tlsconfig.AlpnMTLSHTTP, mtls: true, http: true},
			{alpn: tlsconfig.AlpnPlain, http: true},
			{tls: true, alpn: tlsconfig.AlpnMTLSTCP, mtls: true},
			{},
			{tls: true},
		}
	case mode == snapshot.Strict:
		return []chainKind{{tls: true, alpn: tlsconfig.AlpnMTLSHTTP, mtls: true, http: true}, {tls: true, mtls: true}}
	default:
		return []chainKind{{alpn: tlsconfig.AlpnPlain, http: true}, {}}
	}
}

// passthroughChains returns the chains of a port without a service whose mTLS mode a
// policy overrides.
func (f *inboundWorkload) passthroughChains(g *wire.Generator, number uint32, mode snapshot.MTLSMode) []*listenerv3.FilterChain {
	chains := f.chains(g, &inboundPort{Protocol: mesh.Auto, Mode: mode})
	for _, c := range chains {
		c.FilterChainMatch.DestinationPort = wrapperspb.UInt32(number)
	}
	return chains
}

// chains returns the filter chains of a port. An inboundPort without a number stands for all
// ports without chains of their own.
func (f *inboundWorkload) chains(g *wire.Generator, p *inboundPort) []*listenerv3.FilterChain {
	cluster, vhost, operation := mesh.InboundPassthroughCluster, "inbound|http|0", ":0/*"
	name, stat, tcpStats := "", mesh.InboundPassthroughCluster+";", cluster
	if p.Number != 0 {
		cluster, tcpStats = p.Cluster(), p.stats()
		vhost = "inbound|http|" + wire.PortString(p.Service)
		operation = p.Host + ":" + wire.PortString(p.Service) + "/*"
		name = cmp.Or(p.Bind, f.Families.Wildcards()[0]) + "_" + wire.PortString(p.Number)
		stat = "inbound_" + name + ";"
	}
	settings := f.settings
	settings.Called = cluster
	if p.Host != "" {
		settings.Called = mesh.ClusterName{Direction: mesh.Inbound, Port: p.Service, Host: p.Host}.String()
	}
	kinds, server := chainKinds(p.Protocol, p.Mode), p.serverTLS()
	if server != nil {
		kinds = []chainKind{{tls: true, own: true, http: p.Protocol.IsHTTP()}}
	}
	var out []*listenerv3.FilterChain
	for _, kind := range kinds {
		c := &listenerv3.FilterChain{Name: name, FilterChainMatch: &listenerv3.FilterChainMatch{
			TransportProtocol: "raw_buffer", ApplicationProtocols: kind.alpn,
		}}
		if kind.tls {
			c.FilterChainMatch.TransportProtocol = "tls"
		} else if len(kind.alpn) > 0 {
			c.FilterChainMatch.ApplicationProtocols = tlsconfig.PlainALPN(f.settings)
		}
		if p.Number != 0 {
			c.FilterChainMatch.DestinationPort = wrapperspb.UInt32(p.Number)
		}
		switch {
		case kind.mtls:
			c.TransportSocket = tlsconfig.MeshDownstreamTLS(g, f.TLS, f.TrustDomains.Slice())
		case kind.own:
			c.TransportSocket = tlsconfig.ServerTLS(g, server, tlsconfig.TLSLimits{Mesh: f.TLS, Others: f.ServerTLS})
		}
		var filter *listenerv3.Filter
		if kind.http {
			grpc := p.Protocol == mesh.GRPC || p.Protocol == mesh.GRPCWeb
			filter = filters.InboundHTTP(g, stat, inboundRoutes(cluster, vhost, operation, grpc), filters.HTTPOptions{
				Port: p.Number, Settings: settings, GrpcWeb: p.Protocol == mesh.GRPCWeb,
			})
		} else {
			filter = filters.NamedTCPProxy(g, cluster, tcpStats, settings, filters.TimeoutsOf(p.pool().GetTcp()))
		}
		c.Filters = []*listenerv3.Filter{filter}
		if name == "" {
			c.Name = "virtualInbound"
			if kind.http {
				c.Name = "virtualInbound-catchall-http"
			}
		}
		out = append(out, c)
	}
	filters.AddNetworkFilters(g, f.settings, p.Number, out...)
	return out
}

// inboundRoutes returns the inline route configuration of an inbound HTTP chain.
func inboundRoutes(cluster, vhost, operation string, grpc bool) *routev3.RouteConfiguration {
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
		Timeout:          wire.NoTime,
		MaxStreamDuration: &routev3.RouteAction_MaxStreamDuration{
			MaxStreamDuration:    wire.NoTime,
			GrpcTimeoutHeaderMax: wire.NoTime,
		},
	}
	if !grpc {
		action.RetryPolicy = &routev3.RetryPolicy{RetryOn: "reset-before-request", NumRetries: wrapperspb.UInt32(2)}
	}
	return &routev3.RouteConfiguration{
		Name:             cluster,
		ValidateClusters: wire.No,
		VirtualHosts: []*routev3.VirtualHost{{
			Name: vhost, Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Name:      "default",
				Match:     &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Decorator: &routev3.Decorator{Operation: operation},
				Action:    &routev3.Route_Route{Route: action},
			}},
		}},
	}
}
