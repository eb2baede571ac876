package xdsgen

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
	"github.com/meshctl/meshctl/internal/xdswire"
)

// listenerView is the view of the outbound listeners of sidecars that see the same
// services. If connections are captured, the listeners take redirected connections.
// Otherwise (interceptionMode NONE) only the egress listeners of a Sidecar that name a
// port exist, and they bind their ports.
type listenerView struct {
	scope    scope
	cluster  mesh.ClusterID
	network  mesh.NetworkID
	captured bool
	families families // of the proxy's addresses
	// allocated reports whether clients use the allocated addresses of services.
	allocated bool
	timeouts  timeoutRules
	tunnels   list[tunnel]
	settings  listenerSettings
	client    snapshot.RouteClient // of routes for TLS and TCP
	httpProxy uint32               // port of the HTTP proxy, or 0
}

func (v listenerView) Type() string { return xdswire.ListenerType }

func (v listenerView) Keys() Keys {
	return Keys{
		Fixed: 2 + len(v.scope.egress()), FixedFacts: snapshot.MeshFacts,
		ServiceFacts: snapshot.ServiceFacts | snapshot.EndpointFacts | snapshot.RouteFacts | v.timeouts.reads(),
		PortFacts:    snapshot.PortFacts | snapshot.RouteFacts | snapshot.MeshFacts | v.timeouts.reads(), scope: v.scope,
	}
}

func (v listenerView) Unit(s *snapshot.Snapshot, k Key) Unit {
	switch {
	case k.Kind == PortKey:
		return v.port(s, k.Number)
	case k.Kind == ServiceKey:
		return v.serviceUnit(s, s.Services.Get(k.Name))
	case int(k.Number) > len(v.scope.egress()):
		return v.proxy()
	case k.Number > 0:
		return v.egress(s, int(k.Number)-1)
	case v.captured:
		return virtualOutbound{
			port: s.Mesh.OutboundPort, unknown: unknownCluster(s.Mesh, v.scope), families: v.families, settings: v.settings,
		}
	}
	return nil
}

// proxy returns the listener of the HTTP proxy port.
func (v listenerView) proxy() Unit {
	if v.httpProxy == 0 {
		return nil
	}
	return httpProxyListener{port: v.httpProxy, families: v.families, settings: v.settings}
}

// egress returns the listener of an egress listener of the Sidecar that names a port.
func (v listenerView) egress(s *snapshot.Snapshot, i int) Unit {
	number := v.scope.egress()[i].GetPort().GetNumber()
	if number == 0 {
		return nil
	}
	return egressListener{
		sidecar: v.scope.sidecar, listener: i, captured: v.captured, families: v.families,
		unknown:  unknownCluster(s.Mesh, v.scope),
		settings: v.settings, reserved: reserved(s.Mesh, number),
	}
}

// catchesAll reports whether services get listeners for redirected connections to any address:
// connections are captured, and there is no Sidecar with a port or an address for each egress
// listener.
func (v listenerView) catchesAll() bool {
	if !v.captured {
		return false
	}
	e := v.scope.anyPort()
	return len(v.scope.egress()) == 0 || e != nil && !isBound(e)
}

// isBound reports whether an egress listener without a port takes connections to one address
// only.
func isBound(e *networkingv1alpha3.IstioEgressListener) bool {
	return e.GetBind() != "" || e.GetCaptureMode() == networkingv1alpha3.CaptureMode_NONE
}

// hasNoPort reports whether an egress listener is for all ports without a listener of their own.
func hasNoPort(e *networkingv1alpha3.IstioEgressListener) bool {
	return e.GetPort().GetNumber() == 0 && !isUnixListener(e)
}

func isUnixListener(e *networkingv1alpha3.IstioEgressListener) bool {
	return strings.HasPrefix(e.GetBind(), snapshot.UnixScheme)
}

// port returns the listeners of a port number.
func (v listenerView) port(s *snapshot.Snapshot, number uint32) Unit {
	units := v.egressStreams(s, number)
	if e := v.scope.anyPort(); (v.catchesAll() || isBound(e)) && !v.scope.ownsPort(number) {
		sc, _ := v.scope.atPort(number)
		if services := sc.at(s, number); !services.none() {
			units = append(units, v.listeners(s, services, sc).at(e, v.captured))
		}
	}
	switch len(units) {
	case 0:
		return nil
	case 1:
		return units[0]
	}
	return joinedListeners{listOf(units)}
}

// listeners returns the listeners of services with a port number that a scope sees.
func (v listenerView) listeners(s *snapshot.Snapshot, services portServices, sc scope) portListeners {
	number := services.number
	return portListeners{
		services: services, cluster: v.cluster, families: v.families, allocated: v.allocated, unknown: unknownCluster(s.Mesh, v.scope),
		settings: v.settings,
		timeouts: v.timeouts.of(s, services.all, number), reserved: reserved(s.Mesh, number), streams: listOf(v.streams(s, number, sc)),
	}
}

// serviceUnit returns the listeners for the TCP ports of a headless service. Clients connect
// to the addresses of its pods, so each pod has a listener.
func (v listenerView) serviceUnit(s *snapshot.Snapshot, svc *snapshot.MeshService) Unit {
	if svc == nil || !svc.Headless || !v.catchesAll() || !v.scope.sees(svc) {
		return nil
	}
	ports := v.scope.portsOf(svc)
	var streams []stream
	if h := s.Routes.Get(svc.Host); h != nil {
		streams = v.streamsOf(h.Host, h.Streams.For(v.client.Namespace), v.scope)
	}
	return headlessListeners{
		service: svc, ports: listOf(ports), endpoints: s.Endpoints.Get(svc.Key), cluster: v.cluster, network: v.network,
		settings: v.settings, timeouts: v.timeouts.of(s, slices.Values([]*snapshot.MeshService{svc}), ports...),
		streams: listOf(streams), unknown: unknownCluster(s.Mesh, v.scope),
	}
}

// virtualOutbound is the listener that takes the redirected connections without another
// listener.
type virtualOutbound struct {
	port     uint32
	unknown  string // cluster of unknown destinations
	families families
	settings listenerSettings
}

func (u virtualOutbound) Type() string { return xdswire.ListenerType }

func (u virtualOutbound) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := generator{enc: enc}
	l := &listenerv3.Listener{
		Name:                                 "virtualOutbound",
		TrafficDirection:                     corev3.TrafficDirection_OUTBOUND,
		UseOriginalDst:                       yes,
		AccessLog:                            g.refusedConnections(u.settings),
		MaxConnectionsToAcceptPerSocketEvent: oneConnection,
		FilterChains: []*listenerv3.FilterChain{
			{
				Name:             "virtualOutbound-blackhole",
				FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(u.port)},
				Filters:          []*listenerv3.Filter{g.blackHole()},
			},
			{
				Name:    "virtualOutbound-catchall-tcp",
				Filters: []*listenerv3.Filter{g.tcpProxy(u.unknown, u.settings)},
			},
		},
	}
	listenAt(l, u.port, u.families.wildcards())
	g.clientListener(l, u.settings, 0)
	return g.resources()
}

// portListeners generates the outbound listeners of one port number: one at any address,
// and one for each address of each service that is not routed by host.
type portListeners struct {
	services  portServices
	cluster   mesh.ClusterID
	families  families
	allocated bool
	unknown   string // cluster of unknown destinations
	settings  listenerSettings
	timeouts  timeoutList
	reserved  bool // there is no listener at any address
	streams   list[stream]
	// streamsOnly reports whether HTTP is handled as TCP.
	streamsOnly bool
	// bound holds the addresses of an egress listener without a port; empty means any address.
	bound list[string]
	binds bool // see bindsPort
}

// at returns the listeners for the egress listener without a port, or nil.
func (u portListeners) at(e *networkingv1alpha3.IstioEgressListener, captured bool) portListeners {
	if !isBound(e) {
		return u
	}
	at := []string{e.GetBind()}
	if at[0] == "" {
		at = u.families.loopbacks()
	}
	u.bound, u.binds = listOf(at), bindsPort(e, captured)
	u.reserved = u.reserved || mesh.IsProxyPort(u.services.number)
	if u.binds { // passing connections on to their destination would be a loop
		u.unknown = mesh.BlackHoleCluster
	}
	return u
}

func (u portListeners) Type() string { return xdswire.ListenerType }

func (u portListeners) options() httpOptions {
	return httpOptions{
		port: u.services.number, settings: u.settings,
		timeouts: timeoutsIn(u.timeouts), streams: streamsByHost(u.streams), unknown: u.unknown,
	}
}

func (u portListeners) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := generator{enc: enc}
	number, o := u.services.number, u.options()
	w := wildcard{g: &g, o: o, at: u.families.wildcards(), binds: u.binds}
	isBound := !u.bound.Empty()
	if isBound {
		w.at = u.bound.Slice()
	}
	taken := make(map[string]struct{})
	for svc := range u.services.all {
		port := svc.Port(number)
		w.grpcWeb = w.grpcWeb || port.Protocol == mesh.GRPCWeb
		if port.Protocol.IsHTTP() && !u.streamsOnly {
			w.http = true
			continue
		}
		switch {
		case isBound:
			if !toDestination(svc) || !u.binds { // the destination would be this listener
				w.http = w.http || routedByPort(svc, port)
				w.add(svc, port)
			}
			continue
		case svc.Headless:
			continue // headlessListeners
		}
		ips := texts(svc.AddressesOf(svc.For(u.cluster), number))
		if u.allocated {
			ips = append(ips, texts(svc.Allocated)...)
		}
		if len(svc.RangesOf(number)) > 0 || svc.HasAnyAddress(number) && len(ips) == 0 {
			w.http = w.http || routedByPort(svc, port) && !u.streamsOnly
			w.add(svc, port)
		}
		for _, ip := range ips {
			if _, dup := taken[ip]; dup {
				continue // the oldest of the services with the address has it
			}
			taken[ip] = struct{}{}
			g.clientListener(g.serviceListener(svc, port, ip, o), o.settings, o.port)
		}
	}
	if len(w.ranges) > 0 && w.http {
		w.requests = u.requestAddresses()
	}
	if !u.reserved {
		w.listener()
	}
	return g.resources()
}

// requestAddresses returns the addresses of the services whose requests are routed by host.
func (u portListeners) requestAddresses() []netip.Addr {
	var out []netip.Addr
	for svc := range u.services.all {
		if !svc.Port(u.services.number).Protocol.IsHTTP() || u.streamsOnly {
			continue
		}
		out = append(out, svc.AddressesOf(svc.For(u.cluster), u.services.number)...)
		if u.allocated {
			out = append(out, svc.Allocated...)
		}
	}
	return out
}

// headlessListeners generates the listeners of a headless service's pods, except pods
// that the proxy cannot reach at their own addresses.
type headlessListeners struct {
	service   *snapshot.MeshService
	ports     list[uint32] // that the proxy sees
	endpoints *snapshot.Endpoints
	cluster   mesh.ClusterID
	network   mesh.NetworkID
	settings  listenerSettings
	timeouts  timeoutList
	streams   list[stream]
	unknown   string // cluster of unknown destinations
}

func (u headlessListeners) Type() string { return xdswire.ListenerType }

func (u headlessListeners) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	if u.endpoints == nil {
		return nil, nil
	}
	g := generator{enc: enc}
	o := httpOptions{settings: u.settings, timeouts: timeoutsIn(u.timeouts), streams: streamsByHost(u.streams), unknown: u.unknown}
	taken := make(map[string]struct{})
	for i := range u.service.Ports {
		port := &u.service.Ports[i]
		if port.Protocol.IsHTTP() || port.Protocol == mesh.UDP || !slices.Contains(u.ports.Slice(), port.Number) {
			continue
		}
		for i := range u.endpoints.ByPort[port.Name] {
			e := &u.endpoints.ByPort[port.Name][i]
			if e.Foreign || !headlessReaches(u.service, e, u.cluster, u.network) {
				continue
			}
			o.port = port.Number
			l := g.serviceListener(u.service, port, e.Address.String(), o)
			if _, dup := taken[l.Name]; !dup {
				taken[l.Name] = struct{}{}
				g.clientListener(l, o.settings, o.port)
			}
		}
	}
	return g.resources()
}

// serviceListener returns the listener for redirected connections to one address of a
// service. If the protocol is detected, it routes HTTP and passes the rest on as TCP.
func (g *generator) serviceListener(svc *snapshot.MeshService, port *snapshot.ServicePort, ip string, o httpOptions) *listenerv3.Listener {
	number := portString(port.Number)
	name := ip + "_" + number
	detect := port.Protocol == mesh.Auto
	l := g.capturedListener(name, []string{ip}, o, detect)
	chains, rest := g.streamChains(svc, port, nil, o)
	if slices.ContainsFunc(chains, func(c *listenerv3.FilterChain) bool { return len(c.GetFilterChainMatch().GetServerNames()) > 0 }) {
		l.ListenerFilters = append([]*listenerv3.ListenerFilter{g.tlsInspector()}, l.GetListenerFilters()...)
	}
	if detect {
		chains = append([]*listenerv3.FilterChain{g.plainHTTPChain(name, svc.Host+":"+number, o)}, chains...)
	}
	if l.FilterChains = chains; len(chains) == 0 {
		l.FilterChains = []*listenerv3.FilterChain{rest}
	} else {
		l.DefaultFilterChain = rest
	}
	if rest == nil {
		l.DefaultFilterChain = g.passthroughChain(o)
	}
	return l
}

// passthroughChain returns the default filter chain of a listener for connections that no
// other chain matches.
func (g *generator) passthroughChain(o httpOptions) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{
		Name: "PassthroughFilterChain", FilterChainMatch: &listenerv3.FilterChainMatch{},
		Filters: []*listenerv3.Filter{g.tcpProxy(o.unknown, o.settings)},
	}
}

// plainHTTPChain returns the filter chain of a listener for connections with HTTP in
// plaintext.
func (g *generator) plainHTTPChain(listener, routes string, o httpOptions) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{
		FilterChainMatch:              &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer", ApplicationProtocols: o.settings.plainALPN()},
		Filters:                       []*listenerv3.Filter{g.outboundHTTP("outbound_"+listener+";", routes, o)},
		TransportSocketConnectTimeout: handshakeTimeout,
	}
}

// capturedListener returns a listener that has no socket: virtualOutbound hands
// connections over to it.
func (g *generator) capturedListener(name string, ips []string, o httpOptions, detect bool) *listenerv3.Listener {
	l := &listenerv3.Listener{
		Name:                             name,
		TrafficDirection:                 corev3.TrafficDirection_OUTBOUND,
		BindToPort:                       no,
		ContinueOnListenerFiltersTimeout: true,
		ListenerFiltersTimeout:           duration(o.settings.DetectionTimeout),
	}
	setAddresses(l, encodedAddress, o.port, ips)
	if detect {
		l.ListenerFilters = []*listenerv3.ListenerFilter{g.httpInspector()}
	}
	return l
}

// egressListener generates the listener for an egress listener of a Sidecar that names
// its port.
type egressListener struct {
	sidecar  *snapshot.Sidecar
	listener int
	captured bool
	families families
	unknown  string // cluster of unknown destinations
	settings listenerSettings
	reserved bool // the port is not usable at any address
}

func (u egressListener) Type() string { return xdswire.ListenerType }

func (u egressListener) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	e := u.sidecar.Spec.GetEgress()[u.listener]
	protocol, _ := mesh.ParseProtocol(e.GetPort().GetProtocol())
	if !protocol.IsHTTP() {
		return nil, nil // see egressStreams
	}
	binds := bindsPort(e, u.captured)
	at := []string{e.GetBind()}
	switch {
	case at[0] != "":
	case binds:
		at = u.families.loopbacks()
	default:
		at = u.families.wildcards()
	}
	number := e.GetPort().GetNumber()
	if (at[0] == "0.0.0.0" || at[0] == "::") && u.reserved {
		return nil, nil
	}
	g := generator{enc: enc}
	name := at[0] + "_" + portString(number)
	o := httpOptions{port: number, settings: u.settings, grpcWeb: protocol == mesh.GRPCWeb, unknown: u.unknown}
	var l *listenerv3.Listener
	if binds { // the destination of other connections would be this listener
		l = &listenerv3.Listener{
			Name:             name,
			TrafficDirection: corev3.TrafficDirection_OUTBOUND,
			BindToPort:       yes,
			FilterChains:     []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{g.outboundHTTP("outbound_"+name+";", egressRoutesName(e), o)}}},
		}
		setAddress(l, number, at...)
	} else {
		l = g.capturedListener(name, at, o, true)
		l.FilterChains = []*listenerv3.FilterChain{g.plainHTTPChain(name, egressRoutesName(e), o)}
		l.DefaultFilterChain = g.passthroughChain(o)
	}
	g.clientListener(l, u.settings, number)
	return g.resources()
}

// setAddress sets the addresses of a listener. A single one may be a path: unix://PATH.
func setAddress(l *listenerv3.Listener, number uint32, at ...string) {
	if path, ok := strings.CutPrefix(at[0], snapshot.UnixScheme); ok {
		l.Address = pipe(path)
	} else {
		listenAt(l, number, at)
	}
}
