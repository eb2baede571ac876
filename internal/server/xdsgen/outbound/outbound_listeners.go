// Package outbound generates the listeners for the connections of a workload.
package outbound

import (
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/endpoints"
	"github.com/meshctl/meshctl/internal/server/xdsgen/filters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/inbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/server/xdsgen/telemetry"
	"github.com/meshctl/meshctl/internal/server/xdsgen/tlsconfig"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// View is the view of the outbound listeners of sidecars that see the same
// services. If connections are captured, the listeners take redirected connections.
// Otherwise (interceptionMode NONE) only the egress listeners of a Sidecar that name a
// port exist, and they bind their ports.
type View struct {
	Scope    proxy.Scope
	Cluster  mesh.ClusterID
	Network  mesh.NetworkID
	Captured bool
	Families proxy.Families // of the proxy's addresses
	// Allocated reports whether clients use the allocated addresses of services.
	Allocated bool
	Timeouts  filters.TimeoutRules
	Tunnels   wire.List[filters.Tunnel]
	Settings  telemetry.Settings
	Client    snapshot.RouteClient // of routes for TLS and TCP
	HTTPProxy uint32               // port of the HTTP proxy, or 0
}

// Type implements units.View.
func (v View) Type() string { return xdswire.ListenerType }

// Keys implements units.View.
func (v View) Keys() units.Keys {
	return units.Keys{
		Fixed: 2 + len(v.Scope.Egress()), FixedFacts: snapshot.MeshFacts,
		ServiceFacts: snapshot.ServiceFacts | snapshot.EndpointFacts | snapshot.RouteFacts | v.Timeouts.Reads(),
		PortFacts:    snapshot.PortFacts | snapshot.RouteFacts | snapshot.MeshFacts | v.Timeouts.Reads(), Scope: v.Scope,
	}
}

// Unit implements units.View.
func (v View) Unit(s *snapshot.Snapshot, k units.Key) units.Unit {
	switch {
	case k.Kind == units.PortKey:
		return v.Port(s, k.Number)
	case k.Kind == units.ServiceKey:
		return v.serviceUnit(s, s.Services.Get(k.Name))
	case int(k.Number) > len(v.Scope.Egress()):
		return v.proxy()
	case k.Number > 0:
		return v.Egress(s, int(k.Number)-1)
	case v.Captured:
		return VirtualOutbound{
			Port: s.Mesh.OutboundPort, unknown: routes.UnknownCluster(s.Mesh, v.Scope), families: v.Families, settings: v.Settings,
		}
	}
	return nil
}

// proxy returns the listener of the HTTP proxy port.
func (v View) proxy() units.Unit {
	if v.HTTPProxy == 0 {
		return nil
	}
	return httpProxyListener{port: v.HTTPProxy, families: v.Families, settings: v.Settings}
}

// Egress returns the listener of an egress listener of the Sidecar that names a port.
func (v View) Egress(s *snapshot.Snapshot, i int) units.Unit {
	number := v.Scope.Egress()[i].GetPort().GetNumber()
	if number == 0 {
		return nil
	}
	return EgressListener{
		Sidecar: v.Scope.Sidecar, Listener: i, captured: v.Captured, families: v.Families,
		unknown:  routes.UnknownCluster(s.Mesh, v.Scope),
		settings: v.Settings, reserved: proxy.Reserved(s.Mesh, number),
	}
}

// catchesAll reports whether services get listeners for redirected connections to any address:
// connections are captured, and there is no Sidecar with a port or an address for each egress
// listener.
func (v View) catchesAll() bool {
	if !v.Captured {
		return false
	}
	e := v.Scope.AnyPort()
	return len(v.Scope.Egress()) == 0 || e != nil && !proxy.IsBound(e)
}

// Port returns the listeners of a port number.
func (v View) Port(s *snapshot.Snapshot, number uint32) units.Unit {
	units := v.egressStreams(s, number)
	if e := v.Scope.AnyPort(); (v.catchesAll() || proxy.IsBound(e)) && !v.Scope.OwnsPort(number) {
		sc, _ := v.Scope.AtPort(number)
		if services := sc.At(s, number); !services.None() {
			units = append(units, v.listeners(s, services, sc).At(e, v.Captured))
		}
	}
	switch len(units) {
	case 0:
		return nil
	case 1:
		return units[0]
	}
	return joinedListeners{wire.ListOf(units)}
}

// listeners returns the listeners of services with a port number that a scope sees.
func (v View) listeners(s *snapshot.Snapshot, services proxy.PortServices, sc proxy.Scope) PortListeners {
	number := services.Number
	var pods []netip.Addr
	if all := s.Ports.Get(number); all != nil {
		pods = all.Pods
	}
	return PortListeners{
		Services: services, cluster: v.Cluster, families: v.Families, allocated: v.Allocated, unknown: routes.UnknownCluster(s.Mesh, v.Scope),
		settings: v.Settings,
		timeouts: v.Timeouts.Of(s, services.All, number), reserved: proxy.Reserved(s.Mesh, number), streams: wire.ListOf(v.streams(s, number, sc)),
		pods: wire.ListOf(pods),
	}
}

// serviceUnit returns the listeners for the TCP ports of a headless service. Clients connect
// to the addresses of its pods, so each pod has a listener.
func (v View) serviceUnit(s *snapshot.Snapshot, svc *snapshot.MeshService) units.Unit {
	if svc == nil || !svc.Headless || !v.catchesAll() || !v.Scope.Sees(svc) {
		return nil
	}
	ports := v.Scope.PortsOf(svc)
	var streams []filters.Stream
	if h := s.Routes.Get(svc.Host); h != nil {
		streams = v.streamsOf(h.Host, h.Streams.For(v.Client.Namespace), v.Scope)
	}
	return HeadlessListeners{
		Service: svc, ports: wire.ListOf(ports), endpoints: s.Endpoints.Get(svc.Key), cluster: v.Cluster, network: v.Network,
		settings: v.Settings, timeouts: v.Timeouts.Of(s, slices.Values([]*snapshot.MeshService{svc}), ports...),
		streams: wire.ListOf(streams), unknown: routes.UnknownCluster(s.Mesh, v.Scope),
	}
}

// VirtualOutbound is the listener that takes the redirected connections without another
// listener.
type VirtualOutbound struct {
	Port     uint32
	unknown  string // cluster of unknown destinations
	families proxy.Families
	settings telemetry.Settings
}

// Type implements units.Unit.
func (u VirtualOutbound) Type() string { return xdswire.ListenerType }

// Generate implements units.Unit.
func (u VirtualOutbound) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := wire.Generator{Enc: enc}
	l := &listenerv3.Listener{
		Name:                                 "virtualOutbound",
		TrafficDirection:                     corev3.TrafficDirection_OUTBOUND,
		UseOriginalDst:                       wire.Yes,
		AccessLog:                            telemetry.RefusedConnections(&g, u.settings),
		MaxConnectionsToAcceptPerSocketEvent: wire.OneConnection,
		FilterChains: []*listenerv3.FilterChain{
			{
				Name:             "virtualOutbound-blackhole",
				FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(u.Port)},
				Filters:          []*listenerv3.Filter{filters.BlackHole(&g)},
			},
			{
				Name:    "virtualOutbound-catchall-tcp",
				Filters: []*listenerv3.Filter{filters.TCPProxy(&g, u.unknown, u.settings)},
			},
		},
	}
	wire.ListenAt(l, u.Port, u.families.Wildcards())
	filters.ClientListener(&g, l, u.settings, 0)
	return g.Resources()
}

// PortListeners generates the outbound listeners of one port number: one at any address,
// and one for each address of each service that is not routed by host.
type PortListeners struct {
	Services  proxy.PortServices
	cluster   mesh.ClusterID
	families  proxy.Families
	allocated bool
	unknown   string // cluster of unknown destinations
	settings  telemetry.Settings
	timeouts  filters.TimeoutList
	reserved  bool // there is no listener at any address
	streams   wire.List[filters.Stream]
	pods      wire.List[netip.Addr] // of PortServices
	// streamsOnly reports whether HTTP is handled as TCP.
	streamsOnly bool
	// bound holds the addresses of an egress listener without a port; empty means any address.
	bound wire.List[string]
	binds bool // see bindsPort
}

// At returns the listeners for the egress listener without a port, or nil.
func (u PortListeners) At(e *networkingv1alpha3.IstioEgressListener, captured bool) PortListeners {
	if !proxy.IsBound(e) {
		return u
	}
	at := []string{e.GetBind()}
	if at[0] == "" {
		at = u.families.Loopbacks()
	}
	u.bound, u.binds = wire.ListOf(at), proxy.BindsPort(e, captured)
	u.reserved = u.reserved || mesh.IsProxyPort(u.Services.Number)
	if u.binds { // passing connections on to their destination would be a loop
		u.unknown = mesh.BlackHoleCluster
	}
	return u
}

// Type implements units.Unit.
func (u PortListeners) Type() string { return xdswire.ListenerType }

func (u PortListeners) options() filters.HTTPOptions {
	return filters.HTTPOptions{
		Port: u.Services.Number, Settings: u.settings,
		Timeouts: filters.TimeoutsIn(u.timeouts), Streams: streamsByHost(u.streams), Unknown: u.unknown,
	}
}

// Generate implements units.Unit.
func (u PortListeners) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := wire.Generator{Enc: enc}
	number, o := u.Services.Number, u.options()
	w := wildcard{g: &g, o: o, at: u.families.Wildcards(), binds: u.binds}
	isBound := !u.bound.Empty()
	if isBound {
		w.at = u.bound.Slice()
	}
	taken := make(map[string]struct{})
	for svc := range u.Services.All {
		port := svc.Port(number)
		w.grpcWeb = w.grpcWeb || port.Protocol == mesh.GRPCWeb
		if port.Protocol.IsHTTP() && !u.streamsOnly {
			w.http = true
			continue
		}
		switch {
		case isBound:
			if !endpoints.ToDestination(svc) || !u.binds { // the destination would be this listener
				w.http = w.http || routes.RoutedByPort(svc, port)
				w.Add(svc, port)
			}
			continue
		case svc.Headless:
			continue // headlessListeners
		}
		ips := routes.Texts(svc.AddressesOf(svc.For(u.cluster), number))
		if u.allocated {
			ips = append(ips, routes.Texts(svc.Allocated)...)
		}
		if len(svc.RangesOf(number)) > 0 || svc.HasAnyAddress(number) && len(ips) == 0 {
			w.http = w.http || routes.RoutedByPort(svc, port) && !u.streamsOnly
			w.Add(svc, port)
		}
		for _, ip := range ips {
			if _, dup := taken[ip]; dup {
				continue // the oldest of the services with the address has it
			}
			taken[ip] = struct{}{}
			filters.ClientListener(&g, serviceListener(&g, svc, port, ip, o), o.Settings, o.Port)
		}
	}
	if !w.ranges.Empty() && w.http {
		w.requests = u.requestAddresses()
	}
	if !u.reserved {
		w.Listener()
	}
	return g.Resources()
}

// requestAddresses returns the addresses of the services whose requests are routed by host.
func (u PortListeners) requestAddresses() []netip.Addr {
	out := u.pods.Slice()
	for svc := range u.Services.All {
		if !svc.Port(u.Services.Number).Protocol.IsHTTP() || u.streamsOnly {
			continue
		}
		out = append(out, svc.AddressesOf(svc.For(u.cluster), u.Services.Number)...)
		if u.allocated {
			out = append(out, svc.Allocated...)
		}
	}
	return out
}

// HeadlessListeners generates the listeners of a headless service's pods, except pods
// that the proxy cannot reach at their own addresses.
type HeadlessListeners struct {
	Service   *snapshot.MeshService
	ports     wire.List[uint32] // that the proxy sees
	endpoints *snapshot.Endpoints
	cluster   mesh.ClusterID
	network   mesh.NetworkID
	settings  telemetry.Settings
	timeouts  filters.TimeoutList
	streams   wire.List[filters.Stream]
	unknown   string // cluster of unknown destinations
}

// Type implements units.Unit.
func (u HeadlessListeners) Type() string { return xdswire.ListenerType }

// Generate implements units.Unit.
func (u HeadlessListeners) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	if u.endpoints == nil {
		return nil, nil
	}
	g := wire.Generator{Enc: enc}
	o := filters.HTTPOptions{Settings: u.settings, Timeouts: filters.TimeoutsIn(u.timeouts), Streams: streamsByHost(u.streams), Unknown: u.unknown}
	taken := make(map[string]struct{})
	for i := range u.Service.Ports {
		port := &u.Service.Ports[i]
		if port.Protocol.IsHTTP() || port.Protocol == mesh.UDP || !slices.Contains(u.ports.Slice(), port.Number) {
			continue
		}
		for i := range u.endpoints.ByPort[port.Name] {
			e := &u.endpoints.ByPort[port.Name][i]
			if e.Foreign || !endpoints.HeadlessReaches(u.Service, e, u.cluster, u.network) {
				continue
			}
			o.Port = port.Number
			l := serviceListener(&g, u.Service, port, e.Address.String(), o)
			if _, dup := taken[l.Name]; !dup {
				taken[l.Name] = struct{}{}
				filters.ClientListener(&g, l, o.Settings, o.Port)
			}
		}
	}
	return g.Resources()
}

// serviceListener returns the listener for redirected connections to one address of a
// service. If the protocol is detected, it routes HTTP and passes the rest on as TCP.
func serviceListener(g *wire.Generator, svc *snapshot.MeshService, port *snapshot.ServicePort, ip string, o filters.HTTPOptions) *listenerv3.Listener {
	number := wire.PortString(port.Number)
	name := ip + "_" + number
	detect := port.Protocol == mesh.Auto
	l := capturedListener(g, name, []string{ip}, o, detect)
	chains, rest := streamChains(g, svc, port, nil, o)
	if slices.ContainsFunc(chains, func(c *listenerv3.FilterChain) bool { return len(c.GetFilterChainMatch().GetServerNames()) > 0 }) {
		l.ListenerFilters = append([]*listenerv3.ListenerFilter{inbound.TLSInspector(g)}, l.GetListenerFilters()...)
	}
	if detect {
		chains = append([]*listenerv3.FilterChain{plainHTTPChain(g, name, svc.Host+":"+number, o)}, chains...)
	}
	if l.FilterChains = chains; len(chains) == 0 {
		l.FilterChains = []*listenerv3.FilterChain{rest}
	} else {
		l.DefaultFilterChain = rest
	}
	if rest == nil {
		l.DefaultFilterChain = passthroughChain(g, o)
	}
	return l
}

// passthroughChain returns the default filter chain of a listener for connections that no
// other chain matches.
func passthroughChain(g *wire.Generator, o filters.HTTPOptions) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{
		Name: "PassthroughFilterChain", FilterChainMatch: &listenerv3.FilterChainMatch{},
		Filters: []*listenerv3.Filter{filters.TCPProxy(g, o.Unknown, o.Settings)},
	}
}

// plainHTTPChain returns the filter chain of a listener for connections with HTTP in
// plaintext.
func plainHTTPChain(g *wire.Generator, listener, routes string, o filters.HTTPOptions) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{
		FilterChainMatch:              &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer", ApplicationProtocols: tlsconfig.PlainALPN(o.Settings)},
		Filters:                       []*listenerv3.Filter{filters.OutboundHTTP(g, "outbound_"+listener+";", routes, o)},
		TransportSocketConnectTimeout: wire.HandshakeTimeout,
	}
}

// capturedListener returns a listener that has no socket: virtualOutbound hands
// connections over to it.
func capturedListener(g *wire.Generator, name string, ips []string, o filters.HTTPOptions, detect bool) *listenerv3.Listener {
	l := &listenerv3.Listener{
		Name:                             name,
		TrafficDirection:                 corev3.TrafficDirection_OUTBOUND,
		BindToPort:                       wire.No,
		ContinueOnListenerFiltersTimeout: true,
		ListenerFiltersTimeout:           wire.Duration(o.Settings.DetectionTimeout),
	}
	wire.SetAddresses(l, wire.EncodedAddress, o.Port, ips)
	if detect {
		l.ListenerFilters = []*listenerv3.ListenerFilter{inbound.HTTPInspector(g)}
	}
	return l
}

// EgressListener generates the listener for an egress listener of a Sidecar that names
// its port.
type EgressListener struct {
	Sidecar  *snapshot.Sidecar
	Listener int
	captured bool
	families proxy.Families
	unknown  string // cluster of unknown destinations
	settings telemetry.Settings
	reserved bool // the port is not usable at any address
}

// Type implements units.Unit.
func (u EgressListener) Type() string { return xdswire.ListenerType }

// Generate implements units.Unit.
func (u EgressListener) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	e := u.Sidecar.Spec.GetEgress()[u.Listener]
	protocol, _ := mesh.ParseProtocol(e.GetPort().GetProtocol())
	if !protocol.IsHTTP() {
		return nil, nil // see egressStreams
	}
	binds := proxy.BindsPort(e, u.captured)
	at := []string{e.GetBind()}
	switch {
	case at[0] != "":
	case binds:
		at = u.families.Loopbacks()
	default:
		at = u.families.Wildcards()
	}
	number := e.GetPort().GetNumber()
	if (at[0] == "0.0.0.0" || at[0] == "::") && u.reserved {
		return nil, nil
	}
	g := wire.Generator{Enc: enc}
	name := at[0] + "_" + wire.PortString(number)
	o := filters.HTTPOptions{Port: number, Settings: u.settings, GrpcWeb: protocol == mesh.GRPCWeb, Unknown: u.unknown}
	var l *listenerv3.Listener
	if binds { // the destination of other connections would be this listener
		l = &listenerv3.Listener{
			Name:             name,
			TrafficDirection: corev3.TrafficDirection_OUTBOUND,
			BindToPort:       wire.Yes,
			FilterChains:     []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{filters.OutboundHTTP(&g, "outbound_"+name+";", routes.EgressRoutesName(e), o)}}},
		}
		setAddress(l, number, at...)
	} else {
		l = capturedListener(&g, name, at, o, true)
		l.FilterChains = []*listenerv3.FilterChain{plainHTTPChain(&g, name, routes.EgressRoutesName(e), o)}
		l.DefaultFilterChain = passthroughChain(&g, o)
	}
	filters.ClientListener(&g, l, u.settings, number)
	return g.Resources()
}

// setAddress sets the addresses of a listener. A single one may be a path: unix://PATH.
func setAddress(l *listenerv3.Listener, number uint32, at ...string) {
	if path, ok := strings.CutPrefix(at[0], snapshot.UnixScheme); ok {
		l.Address = wire.Pipe(path)
	} else {
		wire.ListenAt(l, number, at)
	}
}
