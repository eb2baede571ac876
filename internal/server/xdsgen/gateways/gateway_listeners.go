package gateways

import (
	"cmp"
	"strings"
	"time"
	"unique"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/filters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/inbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/outbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/telemetry"
	"github.com/meshctl/meshctl/internal/server/xdsgen/tlsconfig"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// View is the view of the listeners of gateways with the same servers.
type View struct {
	Scope     proxy.Scope
	Client    snapshot.RuleClient
	Namespace string // of the gateway
	Facts     wire.List[gatewayListenerFacts]
	Settings  telemetry.Settings
	Limits    tlsconfig.TLSLimits
	Topology  snapshot.Topology
	Timeouts  filters.TimeoutRules
	Tunnels   wire.List[filters.Tunnel]
}

// Type implements units.View.
func (v View) Type() string { return xdswire.ListenerType }

// Keys implements units.View.
func (v View) Keys() units.Keys {
	var k units.Keys
	for f := range v.Facts.All {
		k.Fixed++
		if f.Kind != httpListener {
			k.FixedFacts |= snapshot.GatewayRouteFacts
			if v.Timeouts.Used {
				k.FixedFacts |= snapshot.RuleFacts | snapshot.MeshFacts
			}
		}
		if f.Kind == passingListener {
			k.FixedFacts |= snapshot.ServiceFacts | snapshot.RuleFacts
		}
	}
	return k
}

// Unit implements units.View.
func (v View) Unit(s *snapshot.Snapshot, k units.Key) units.Unit {
	f := v.Facts.At(int(k.Number))
	u := gatewayListener{facts: unique.Make(f), settings: v.Settings, limits: v.Limits, topology: v.Topology}
	if f.Kind != httpListener {
		u.bound = v.streamServices(s, &f)
		u.tunnels = v.destinationTunnels(u.bound)
		u.timeouts = v.destinationTimeouts(s, &f, u.bound)
	}
	if f.Kind == passingListener {
		u.scope, u.services, u.subsets = v.Scope, s.Services, v.subsets(s)
	}
	return u
}

// subsets returns the subsets of all services, in the order of Snapshot.Rules.
func (v View) subsets(s *snapshot.Snapshot) wire.List[serviceSubset] {
	var out []serviceSubset
	for key, rules := range s.Rules.All() {
		if r := rules.For(v.Client); r != nil {
			for _, subset := range r.Subsets {
				out = append(out, serviceSubset{key, subset.GetName()})
			}
		}
	}
	return wire.ListOf(out)
}

// serviceSubset is a subset of the service with a key.
type serviceSubset struct{ service, name string }

// gatewayListener generates a listener of a gateway.
type gatewayListener struct {
	facts    unique.Handle[gatewayListenerFacts]
	settings telemetry.Settings
	limits   tlsconfig.TLSLimits
	topology snapshot.Topology
	bound    wire.List[boundService]   // for servers without route configurations
	timeouts filters.TimeoutList       // of destinations
	tunnels  wire.List[filters.Tunnel] // of destinations
	// For servers with mode AUTO_PASSTHROUGH.
	scope    proxy.Scope
	services *snapshot.Table[string, snapshot.MeshService]
	subsets  wire.List[serviceSubset]
}

func (u gatewayListener) Type() string { return xdswire.ListenerType }

func (u gatewayListener) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g, f := wire.Generator{Enc: enc}, u.facts.Value()
	binds := f.Binds.Slice()
	l := &listenerv3.Listener{
		Name:                                 f.name(),
		TrafficDirection:                     corev3.TrafficDirection_OUTBOUND,
		MaxConnectionsToAcceptPerSocketEvent: wire.OneConnection,
		PerConnectionBufferLimitBytes:        filters.RequestWindow,
		AccessLog:                            telemetry.RefusedConnections(&g, u.settings),
	}
	o := filters.HTTPOptions{Port: f.Port, Settings: u.settings, GrpcWeb: f.GRPCWeb, Topology: u.topology}
	if f.HTTP3 {
		l := http3Listener(f.name(), f.Port, binds)
		u.addServers(&g, l, &f, o)
		filters.ClientListener(&g, l, u.settings, f.Port)
		return g.Resources()
	}
	if f.Routes != "" {
		l.FilterChains = []*listenerv3.FilterChain{outbound.FilterChain(filters.ConnectionManagers(&g, gatewayHCM(&g, o))("outbound_"+l.Name+";", f.Routes))}
	} else if u.addServers(&g, l, &f, o) {
		l.ListenerFilters = []*listenerv3.ListenerFilter{inbound.TLSInspector(&g)}
	}
	if u.topology.ProxyProtocol {
		l.ListenerFilters = append([]*listenerv3.ListenerFilter{g.ListenerFilter("envoy.filters.listener.proxy_protocol", &proxyprotocolv3.ProxyProtocol{})}, l.ListenerFilters...)
	}
	if len(l.FilterChains) == 0 {
		return nil, g.Err // Envoy refuses a listener without chains
	}
	if path, ok := strings.CutPrefix(binds[0], snapshot.UnixScheme); ok {
		l.Address = wire.Pipe(path)
	} else {
		wire.ListenAt(l, f.Port, binds)
	}
	filters.ClientListener(&g, l, u.settings, f.Port)
	return g.Resources()
}

// addServers adds the filter chains of the servers with TCP or TLS. It reports whether the
// server name of a connection decides. If several chains match the same server name, only
// the first stays, because Envoy would refuse the listener.
func (u gatewayListener) addServers(g *wire.Generator, l *listenerv3.Listener, f *gatewayListenerFacts, o filters.HTTPOptions) (byName bool) {
	taken := make(map[string]struct{})
	options := gatewayHCM(g, o)
	if f.HTTP3 {
		options.CodecType, options.Http3ProtocolOptions = hcmv3.HttpConnectionManager_HTTP3, &corev3.Http3ProtocolOptions{
			QuicProtocolOptions: &corev3.QuicProtocolOptions{InitialStreamWindowSize: filters.RequestWindow},
		}
	}
	managers := filters.ConnectionManagers(g, options)
	routes := streamRoutes{byGateway(u.bound), filters.TimeoutsIn(u.timeouts)}
	for s := range f.Servers.All {
		byName = byName || !s.Plain
		http := func() *listenerv3.FilterChain {
			chain := outbound.FilterChain(managers(cmp.Or(s.Name, "outbound_"+l.Name+";"), s.Routes))
			chain.FilterChainMatch = serverNames(s.Hosts.Slice())
			return chain
		}
		chains := u.chains(g, &s, f.HTTP3, routes, http)
		for _, chain := range chains {
			names := chain.GetFilterChainMatch().GetServerNames()
			if len(names) == 0 {
				names = []string{""} // all names
			}
			if anyTaken(taken, names) {
				continue
			}
			l.FilterChains = append(l.FilterChains, chain)
		}
	}
	return byName
}

// anyTaken reports whether any of the names is taken. Otherwise it takes all of them.
func anyTaken(taken map[string]struct{}, names []string) bool {
	for _, name := range names {
		if _, is := taken[name]; is {
			return true
		}
	}
	for _, name := range names {
		taken[name] = struct{}{}
	}
	return false
}

// chains returns the filter chains of a server. http makes the chain for HTTP, without TLS.
func (u gatewayListener) chains(g *wire.Generator, s *gatewayServerFacts, http3 bool, routes streamRoutes, http func() *listenerv3.FilterChain) []*listenerv3.FilterChain {
	t := s.settings()
	switch {
	case http3:
		chain := http()
		chain.TransportSocket = quic(g, t, u.limits)
		return []*listenerv3.FilterChain{chain}
	case t.GetMode() == networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH:
		return u.serviceChains(g, s.Hosts.Slice(), routes.timeouts)
	case s.Routes != "":
		chain := http()
		chain.TransportSocket = tlsconfig.ServerTLS(g, t, u.limits)
		return []*listenerv3.FilterChain{chain}
	}
	return u.routedChains(g, s, t, routes)
}

// serverNames matches the connections with one of the hosts as server name. They may
// have namespaces, which do not matter.
func serverNames(hosts []string) *listenerv3.FilterChainMatch {
	m := &listenerv3.FilterChainMatch{}
	taken := make(map[string]struct{})
	for _, h := range hosts {
		h = mesh.CanonicalHost(h[strings.Index(h, "/")+1:])
		if h == "*" {
			return nil
		}
		if !anyTaken(taken, []string{h}) {
			m.ServerNames = append(m.ServerNames, h)
		}
	}
	return m
}

// gatewayHCM returns the options of the connection managers for clients outside the mesh. These append
// the addresses of clients to x-forwarded-for, and replace x-forwarded-client-cert.
func gatewayHCM(g *wire.Generator, o filters.HTTPOptions) *hcmv3.HttpConnectionManager {
	h := filters.OutboundHCM(g, o)
	h.UseRemoteAddress = wire.Yes
	h.ServerName = filters.ServerName
	h.XffNumTrustedHops = o.Topology.TrustedProxies
	h.ForwardClientCertDetails = hcmv3.HttpConnectionManager_SANITIZE_SET
	if t := o.Topology.ClientCert; t != meshv1alpha1.ForwardClientCertDetails_UNDEFINED {
		h.ForwardClientCertDetails = hcmv3.HttpConnectionManager_ForwardClientCertDetails(t - 1) // Envoy has the same values from 0
	}
	h.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
		Subject: wire.Yes, Cert: true, Dns: true, Uri: true,
	}
	h.HttpProtocolOptions = &corev3.Http1ProtocolOptions{AcceptHttp_10: o.Settings.AcceptsHTTP10}
	h.Http2ProtocolOptions = &corev3.Http2ProtocolOptions{InitialStreamWindowSize: filters.RequestWindow}
	h.StreamIdleTimeout = gatewayIdle
	return h
}

// gatewayIdle is the time after which a gateway ends requests of which nothing moves. Envoys with
// little memory shorten it; without a timeout, there would be none to shorten.
var gatewayIdle = durationpb.New(30 * 24 * time.Hour)
