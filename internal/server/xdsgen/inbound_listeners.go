package xdsgen

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// listeners are virtualInbound for captured connections, or one listener for
// each declared port.
func (f *inboundFacts) listeners(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	if f.Captured {
		l, err := f.virtualInbound()
		if err != nil {
			return nil, err
		}
		return listeners(enc, l)
	}
	out := make([]*listenerv3.Listener, len(f.Targets))
	for i := range f.Targets {
		var err error
		if out[i], err = f.boundListener(&f.Targets[i]); err != nil {
			return nil, err
		}
	}
	return listeners(enc, out...)
}

// virtualInbound takes every redirected inbound connection: chains for ports
// that no service names first, then those of each service port.
func (f *inboundFacts) virtualInbound() (*listenerv3.Listener, error) {
	hole, err := blackHole()
	if err != nil {
		return nil, err
	}
	chains := []*listenerv3.FilterChain{{
		Name:             "virtualInbound-blackhole",
		FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(mesh.PortInbound)},
		Filters:          []*listenerv3.Filter{hole},
	}}
	named := make(map[uint32]bool)
	for i := range f.Targets {
		named[f.Targets[i].Port] = true
	}
	unnamed := target{Protocol: mesh.Auto, Mode: f.Passthrough}
	more, err := f.chains(&unnamed, 0)
	if err != nil {
		return nil, err
	}
	chains = append(chains, more...)
	for _, number := range sortedPorts(f.Ports) {
		if named[number] {
			continue
		}
		override := target{Port: number, Protocol: mesh.Auto, Mode: f.Ports[number]}
		if more, err = f.passthroughChains(&override); err != nil {
			return nil, err
		}
		chains = append(chains, more...)
	}
	for i := range f.Targets {
		if more, err = f.chains(&f.Targets[i], f.Targets[i].Port); err != nil {
			return nil, err
		}
		chains = append(chains, more...)
	}
	filters, err := f.inspectors()
	if err != nil {
		return nil, err
	}
	logs, err := refusedConnections(f.settings)
	if err != nil {
		return nil, err
	}
	l := &listenerv3.Listener{
		Name:                                 "virtualInbound",
		TrafficDirection:                     corev3.TrafficDirection_INBOUND,
		FilterChains:                         chains,
		AccessLog:                            logs,
		ListenerFilters:                      filters,
		ListenerFiltersTimeout:               durationpb.New(f.settings.DetectionTimeout),
		ContinueOnListenerFiltersTimeout:     true,
		MaxConnectionsToAcceptPerSocketEvent: wrapperspb.UInt32(1),
	}
	listenAt(l, mesh.PortInbound, f.Families.wildcards())
	return l, nil
}

// inspectors recover the original destination and look into the first bytes:
// TLS always, HTTP only on ports whose protocol is not declared.
func (f *inboundFacts) inspectors() ([]*listenerv3.ListenerFilter, error) {
	original, err := listenerFilter("envoy.filters.listener.original_dst", &originaldstv3.OriginalDst{})
	if err != nil {
		return nil, err
	}
	tls, err := tlsInspector()
	if err != nil {
		return nil, err
	}
	tls.FilterDisabled = portRange(mesh.PortInbound)
	http, err := listenerFilter("envoy.filters.listener.http_inspector", &httpinspectorv3.HttpInspector{})
	if err != nil {
		return nil, err
	}
	declared := []uint32{mesh.PortInbound}
	for i := range f.Targets {
		if f.Targets[i].Protocol != mesh.Auto {
			declared = append(declared, f.Targets[i].Port)
		}
	}
	slices.Sort(declared)
	http.FilterDisabled = portRange(declared...)
	return []*listenerv3.ListenerFilter{original, tls, http}, nil
}

func tlsInspector() (*listenerv3.ListenerFilter, error) {
	return listenerFilter("envoy.filters.listener.tls_inspector", &tlsinspectorv3.TlsInspector{
		InitialReadBufferSize: wrapperspb.UInt32(512),
	})
}

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

// boundListener listens for itself at the address that a Sidecar declares.
func (f *inboundFacts) boundListener(t *target) (*listenerv3.Listener, error) {
	chains, err := f.chains(t, t.Port)
	if err != nil {
		return nil, err
	}
	for _, c := range chains {
		c.FilterChainMatch.DestinationPort = nil // there is only one
	}
	filter, err := tlsInspector()
	if err != nil {
		return nil, err
	}
	filters := []*listenerv3.ListenerFilter{filter}
	if t.Protocol == mesh.Auto {
		http, err := listenerFilter("envoy.filters.listener.http_inspector", &httpinspectorv3.HttpInspector{})
		if err != nil {
			return nil, err
		}
		filters = append(filters, http)
	}
	return &listenerv3.Listener{
		Name:                             t.Bind + "_" + portString(t.Port),
		Address:                          address(t.Bind, t.Port),
		TrafficDirection:                 corev3.TrafficDirection_INBOUND,
		FilterChains:                     chains,
		ListenerFilters:                  filters,
		ListenerFiltersTimeout:           durationpb.New(f.settings.DetectionTimeout),
		ContinueOnListenerFiltersTimeout: true,
	}, nil
}

// chainKind is one row of the table that decides which connections a port
// accepts and what becomes of them.
type chainKind struct {
	tls  bool // what arrives is TLS
	alpn []string
	mtls bool // TLS ends here; otherwise it passes as it is
	http bool
}

// chainKinds is Istio's table of filter chains by protocol and mTLS mode.
func chainKinds(p mesh.Protocol, mode snapshot.MTLSMode) []chainKind {
	declared := p != mesh.Auto
	http := p.IsHTTP()
	switch {
	case declared && http && mode == snapshot.Permissive:
		return []chainKind{{tls: true, alpn: alpnAll, mtls: true, http: true}, {http: true}}
	case declared && mode == snapshot.Permissive:
		return []chainKind{{tls: true, alpn: alpnAll, mtls: true}, {tls: true}, {}}
	case declared && mode == snapshot.Strict:
		return []chainKind{{tls: true, mtls: true, http: http}}
	case declared:
		return []chainKind{{http: http}}
	case mode == snapshot.Permissive:
		return []chainKind{
			{tls: true, alpn: alpnMTLSHTTP, mtls: true, http: true},
			{alpn: alpnPlain, http: true},
			{tls: true, alpn: alpnMTLSTCP, mtls: true},
			{},
			{tls: true},
		}
	case mode == snapshot.Strict:
		return []chainKind{{tls: true, alpn: alpnMTLSHTTP, mtls: true, http: true}, {tls: true, mtls: true}}
	default:
		return []chainKind{{alpn: alpnPlain, http: true}, {}}
	}
}

// passthroughChains are the chains of a port that no service names, but whose
// mTLS mode a policy overrides.
func (f *inboundFacts) passthroughChains(t *target) ([]*listenerv3.FilterChain, error) {
	chains, err := f.chains(&target{Protocol: t.Protocol, Mode: t.Mode}, t.Port)
	for _, c := range chains {
		c.FilterChainMatch.DestinationPort = wrapperspb.UInt32(t.Port)
	}
	return chains, err
}

// chains are the filter chains of one port; a target without a port is every
// port that has no chains of its own. Filters are those of the port number,
// which such a target may have all the same.
func (f *inboundFacts) chains(t *target, number uint32) ([]*listenerv3.FilterChain, error) {
	cluster, vhost, operation := mesh.InboundPassthroughCluster, "inbound|http|0", ":0/*"
	name, stat := "", mesh.InboundPassthroughCluster+";"
	if t.Port != 0 {
		cluster = t.cluster()
		vhost = "inbound|http|" + portString(t.Service)
		operation = t.Host + ":" + portString(t.Service) + "/*"
		bind := t.Bind
		if bind == "" {
			bind = f.Families.wildcards()[0]
		}
		name = bind + "_" + portString(t.Port)
		stat = "inbound_" + name + ";"
	}
	var out []*listenerv3.FilterChain
	for _, kind := range chainKinds(t.Protocol, t.Mode) {
		c := &listenerv3.FilterChain{Name: name, FilterChainMatch: &listenerv3.FilterChainMatch{
			TransportProtocol: "raw_buffer", ApplicationProtocols: kind.alpn,
		}}
		if kind.tls {
			c.FilterChainMatch.TransportProtocol = "tls"
		}
		if t.Port != 0 {
			c.FilterChainMatch.DestinationPort = wrapperspb.UInt32(t.Port)
		}
		var err error
		if kind.mtls {
			if c.TransportSocket, err = downstreamTLS(f.KeyExchanges, f.TrustDomains); err != nil {
				return nil, err
			}
		}
		var filter *listenerv3.Filter
		if kind.http {
			grpc := t.Protocol == mesh.GRPC || t.Protocol == mesh.GRPCWeb
			filter, err = inboundHTTP(stat, inboundRoutes(cluster, vhost, operation, grpc), t.Protocol.IsHTTP2(), httpOptions{
				port: number, settings: f.settings, filters: f.filters, grpcWeb: t.Protocol == mesh.GRPCWeb,
			})
		} else {
			filter, err = tcpProxy(cluster, f.settings)
		}
		if err != nil {
			return nil, err
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
	return out, nil
}

// inboundRoutes is the inline configuration of an inbound HTTP chain.
func inboundRoutes(cluster, vhost, operation string, grpc bool) *routev3.RouteConfiguration {
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
		Timeout:          durationpb.New(0),
		MaxStreamDuration: &routev3.RouteAction_MaxStreamDuration{
			MaxStreamDuration:    durationpb.New(0),
			GrpcTimeoutHeaderMax: durationpb.New(0),
		},
	}
	if !grpc {
		action.RetryPolicy = &routev3.RetryPolicy{RetryOn: "reset-before-request", NumRetries: wrapperspb.UInt32(2)}
	}
	return &routev3.RouteConfiguration{
		Name:             cluster,
		ValidateClusters: wrapperspb.Bool(false),
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
