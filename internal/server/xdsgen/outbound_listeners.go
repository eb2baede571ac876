package xdsgen

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// listenerView are the outbound listeners of sidecars that see the same
// services. With captured connections the listeners take what is redirected;
// without (interceptionMode NONE) only a Sidecar's egress listeners that name
// a port exist, and they bind for themselves.
type listenerView struct {
	scope    scope
	cluster  mesh.ClusterID
	network  mesh.NetworkID
	captured bool
	families families // of the proxy's addresses
	bind     string   // for egress listeners that name no address
	filters  string   // []snapshot.HTTPFilter, encoded
}

func (v listenerView) Type() string { return xdswire.ListenerType }

func (v listenerView) Reads() snapshot.Kinds {
	return snapshot.PortFacts | snapshot.ServiceFacts | snapshot.EndpointFacts
}

func (v listenerView) Units(s *snapshot.Snapshot, yield func(string, Unit)) {
	filters := decodeFilters(v.filters)
	v.fixed(s, filters, yield)
	for number := range s.Ports.All() {
		v.port(s, number, filters, yield)
	}
	for host := range s.Services.All() {
		v.headless(s, host, filters, yield)
	}
}

func (v listenerView) Touched(s *snapshot.Snapshot, c *snapshot.Changes, yield func(string, Unit)) {
	filters := decodeFilters(v.filters)
	for number := range c.Ports {
		v.port(s, number, filters, yield)
	}
	for host := range c.Services {
		v.headless(s, host, filters, yield)
	}
	for host := range c.Endpoints {
		v.headless(s, host, filters, yield)
	}
}

func (v listenerView) fixed(s *snapshot.Snapshot, filters []snapshot.HTTPFilter, yield func(string, Unit)) {
	if v.captured {
		yield("virtualOutbound", virtualOutbound{
			registryOnly: registryOnly(s.Mesh, v.scope), families: v.families, settings: s.Mesh.Listeners,
		})
	}
	for i, e := range v.scope.egress() {
		if number := e.GetPort().GetNumber(); number != 0 {
			yield("egress "+strconv.Itoa(i), egressListener{
				sidecar: v.scope.sidecar, listener: i, captured: v.captured, families: v.families, bind: v.bind,
				settings: s.Mesh.Listeners, filters: filtersAt(filters, number),
			})
		}
	}
}

// catchesAll reports whether services get listeners of their own: there are
// redirected connections, and no Sidecar that names every port itself.
func (v listenerView) catchesAll() bool {
	if !v.captured {
		return false
	}
	egress := v.scope.egress()
	for _, e := range egress {
		if e.GetPort().GetNumber() == 0 {
			return true
		}
	}
	return len(egress) == 0
}

func (v listenerView) port(s *snapshot.Snapshot, number uint32, filters []snapshot.HTTPFilter, yield func(string, Unit)) {
	id := "port " + portString(number)
	services := s.Ports.Get(number)
	if services == nil || !v.catchesAll() || v.scope.ownsPort(number) {
		yield(id, nil)
		return
	}
	yield(id, portListeners{
		services: services, scope: v.scope, cluster: v.cluster, families: v.families, registryOnly: registryOnly(s.Mesh, v.scope),
		settings: s.Mesh.Listeners, filters: filtersAt(filters, number),
	})
}

// headless yields the listeners of a headless service whose ports are not
// HTTP: one for each pod, because clients connect to pod addresses.
func (v listenerView) headless(s *snapshot.Snapshot, host string, filters []snapshot.HTTPFilter, yield func(string, Unit)) {
	id := "headless " + host
	svc := s.Services.Get(host)
	if svc == nil || !svc.Headless || !v.catchesAll() || !v.scope.sees(svc) {
		yield(id, nil)
		return
	}
	ports := make([]uint32, len(svc.Ports))
	for i := range svc.Ports {
		ports[i] = svc.Ports[i].Number
	}
	yield(id, headlessListeners{
		service: svc, endpoints: s.Endpoints.Get(host), cluster: v.cluster, network: v.network,
		settings: s.Mesh.Listeners, filters: filtersAt(filters, ports...),
	})
}

// virtualOutbound takes every redirected connection that no other listener
// wants.
type virtualOutbound struct {
	registryOnly bool
	families     families
	settings     snapshot.ListenerSettings
}

func (u virtualOutbound) Type() string { return xdswire.ListenerType }

func (u virtualOutbound) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	hole, err := blackHole()
	if err != nil {
		return nil, err
	}
	rest, err := tcpProxy(unknownTCP(u.registryOnly), u.settings)
	if err != nil {
		return nil, err
	}
	logs, err := refusedConnections(u.settings)
	if err != nil {
		return nil, err
	}
	l := &listenerv3.Listener{
		Name:                                 "virtualOutbound",
		TrafficDirection:                     corev3.TrafficDirection_OUTBOUND,
		UseOriginalDst:                       wrapperspb.Bool(true),
		AccessLog:                            logs,
		MaxConnectionsToAcceptPerSocketEvent: wrapperspb.UInt32(1),
		FilterChains: []*listenerv3.FilterChain{
			{
				Name:             "virtualOutbound-blackhole",
				FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(mesh.PortOutbound)},
				Filters:          []*listenerv3.Filter{hole},
			},
			{Name: "virtualOutbound-catchall-tcp", Filters: []*listenerv3.Filter{rest}},
		},
	}
	listenAt(l, mesh.PortOutbound, u.families.wildcards())
	return listeners(enc, l)
}

func unknownTCP(registryOnly bool) string {
	if registryOnly {
		return mesh.BlackHoleCluster
	}
	return mesh.PassthroughCluster
}

// portListeners are the outbound listeners of one port number: one for all
// HTTP services, and one for each address of each other service.
type portListeners struct {
	services     *snapshot.PortServices
	scope        scope
	cluster      mesh.ClusterID
	families     families
	registryOnly bool
	settings     snapshot.ListenerSettings
	filters      string
}

func (u portListeners) Type() string { return xdswire.ListenerType }

func (u portListeners) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var out []*listenerv3.Listener
	number := u.services.Number
	o := httpOptions{port: number, settings: u.settings, filters: decodeFilters(u.filters)}
	if anyHTTP(u.services, u.scope) && !reserved(number) {
		web := o
		web.grpcWeb = anyPort(u.services, u.scope, func(p *snapshot.ServicePort) bool { return p.Protocol == mesh.GRPCWeb })
		l, err := httpListener(u.families.wildcards(), u.registryOnly, web)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	taken := make(map[string]struct{})
	for _, svc := range u.services.Services {
		port := svc.Port(number)
		if svc.ExternalName != "" || svc.Headless || port.Protocol.IsHTTP() || !u.scope.sees(svc) {
			continue
		}
		for _, ip := range addresses(svc, u.cluster) {
			if _, dup := taken[ip]; dup {
				continue // of two services that claim an address the oldest has it
			}
			taken[ip] = struct{}{}
			l, err := serviceListener(svc, port, ip, o)
			if err != nil {
				return nil, err
			}
			out = append(out, l)
		}
	}
	return listeners(enc, out...)
}

// headlessListeners are the listeners of a headless service's pods, without
// those that the proxy does not reach at their own addresses.
type headlessListeners struct {
	service   *snapshot.MeshService
	endpoints *snapshot.Endpoints
	cluster   mesh.ClusterID
	network   mesh.NetworkID
	settings  snapshot.ListenerSettings
	filters   string
}

func (u headlessListeners) Type() string { return xdswire.ListenerType }

func (u headlessListeners) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	if u.endpoints == nil {
		return nil, nil
	}
	var out []*listenerv3.Listener
	filters := decodeFilters(u.filters)
	taken := make(map[string]struct{})
	for i := range u.service.Ports {
		port := &u.service.Ports[i]
		if port.Protocol.IsHTTP() || port.Protocol == mesh.UDP {
			continue
		}
		for i := range u.endpoints.ByPort[port.Name] {
			e := &u.endpoints.ByPort[port.Name][i]
			if !headlessReaches(u.service, e, u.cluster, u.network) {
				continue
			}
			l, err := serviceListener(u.service, port, e.Address.String(), httpOptions{port: port.Number, settings: u.settings, filters: filters})
			if err != nil {
				return nil, err
			}
			if _, dup := taken[l.Name]; dup {
				continue
			}
			taken[l.Name] = struct{}{}
			out = append(out, l)
		}
	}
	return listeners(enc, out...)
}

// httpListener takes the redirected HTTP connections of one port number to
// any address, at the wildcard addresses.
func httpListener(wildcards []string, registryOnly bool, o httpOptions) (*listenerv3.Listener, error) {
	name := wildcards[0] + "_" + portString(o.port)
	http, err := outboundHTTP("outbound_"+name+";", portString(o.port), o)
	if err != nil {
		return nil, err
	}
	rest, err := tcpProxy(unknownTCP(registryOnly), o.settings)
	if err != nil {
		return nil, err
	}
	l, err := capturedListener(name, wildcards, o, true)
	if err != nil {
		return nil, err
	}
	l.FilterChains = []*listenerv3.FilterChain{plainHTTPChain(http)}
	l.DefaultFilterChain = &listenerv3.FilterChain{
		Name: "PassthroughFilterChain", FilterChainMatch: &listenerv3.FilterChainMatch{},
		Filters: []*listenerv3.Filter{rest},
	}
	return l, nil
}

// serviceListener takes the redirected connections to one address of a
// service; with detection, HTTP is routed and the rest goes on as TCP.
func serviceListener(svc *snapshot.MeshService, port *snapshot.ServicePort, ip string, o httpOptions) (*listenerv3.Listener, error) {
	number := portString(port.Number)
	name := ip + "_" + number
	detect := port.Protocol == mesh.Auto
	tcp, err := tcpProxy(mesh.ClusterName{Direction: mesh.Outbound, Port: port.Number, Host: svc.Host}.String(), o.settings)
	if err != nil {
		return nil, err
	}
	l, err := capturedListener(name, []string{ip}, o, detect)
	if err != nil {
		return nil, err
	}
	chain := &listenerv3.FilterChain{Filters: []*listenerv3.Filter{tcp}, TransportSocketConnectTimeout: durationpb.New(connectTimeout)}
	if !detect {
		l.FilterChains = []*listenerv3.FilterChain{chain}
		return l, nil
	}
	http, err := outboundHTTP("outbound_"+name+";", svc.Host+":"+number, o)
	if err != nil {
		return nil, err
	}
	l.FilterChains = []*listenerv3.FilterChain{plainHTTPChain(http)}
	l.DefaultFilterChain = chain
	return l, nil
}

func plainHTTPChain(http *listenerv3.Filter) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{
		FilterChainMatch: &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer", ApplicationProtocols: alpnPlain},
		Filters:          []*listenerv3.Filter{http},
		// Bounds the time a client may take for its handshake.
		TransportSocketConnectTimeout: durationpb.New(connectTimeout),
	}
}

// capturedListener is a listener that gets its connections from
// virtualOutbound rather than from a socket of its own.
func capturedListener(name string, ips []string, o httpOptions, detect bool) (*listenerv3.Listener, error) {
	l := &listenerv3.Listener{
		Name:                             name,
		TrafficDirection:                 corev3.TrafficDirection_OUTBOUND,
		BindToPort:                       wrapperspb.Bool(false),
		ContinueOnListenerFiltersTimeout: true,
		ListenerFiltersTimeout:           durationpb.New(o.settings.DetectionTimeout),
	}
	listenAt(l, o.port, ips)
	if detect {
		f, err := listenerFilter("envoy.filters.listener.http_inspector", &httpinspectorv3.HttpInspector{})
		if err != nil {
			return nil, err
		}
		l.ListenerFilters = append(l.ListenerFilters, f)
	}
	return l, nil
}

// egressListener is an egress listener of a Sidecar that names its port.
type egressListener struct {
	sidecar  *snapshot.Sidecar
	listener int
	captured bool
	families families
	bind     string
	settings snapshot.ListenerSettings
	filters  string
}

func (u egressListener) Type() string { return xdswire.ListenerType }

func (u egressListener) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	e := u.sidecar.Spec.GetEgress()[u.listener]
	protocol, _ := mesh.ParseProtocol(e.GetPort().GetProtocol())
	if !protocol.IsHTTP() {
		return nil, nil // the source says that it has no effect
	}
	binds := !u.captured || e.GetCaptureMode() == networkingv1alpha3.CaptureMode_NONE
	at := []string{e.GetBind()}
	switch {
	case at[0] != "":
	case binds:
		at[0] = u.bind
	default:
		at = u.families.wildcards()
	}
	number := e.GetPort().GetNumber()
	if (at[0] == "0.0.0.0" || at[0] == "::") && reserved(number) {
		return nil, nil
	}
	name := at[0] + "_" + portString(number)
	http, err := outboundHTTP("outbound_"+name+";", portString(number), httpOptions{
		port: number, settings: u.settings, filters: decodeFilters(u.filters), grpcWeb: protocol == mesh.GRPCWeb,
	})
	if err != nil {
		return nil, err
	}
	l := &listenerv3.Listener{
		Name:             name,
		TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		BindToPort:       wrapperspb.Bool(binds),
		FilterChains:     []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{http}}},
	}
	if path, ok := strings.CutPrefix(at[0], "unix://"); ok {
		l.Address = pipe(path)
	} else {
		listenAt(l, number, at)
	}
	return listeners(enc, l)
}

// bindOf is the address of egress listeners that name none: the proxy's own.
// It is empty when there is no such listener, so that views are shared.
func bindOf(n Node, sc scope) string {
	for _, e := range sc.egress() {
		if e.GetPort().GetNumber() != 0 && e.GetBind() == "" && (!n.Captured || e.GetCaptureMode() == networkingv1alpha3.CaptureMode_NONE) {
			return n.ID.IP.String()
		}
	}
	return ""
}
