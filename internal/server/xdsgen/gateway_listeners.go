package xdsgen

import (
	"cmp"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// passthroughServer is a port of a gateway that passes TLS through by server name.
type passthroughServer struct {
	Binds []string // addresses of the listener
	Port  uint32
	Hosts []string // exposed hosts, "<namespace>/<host>" or "<host>"
}

// name returns the name of the listener.
func (p *passthroughServer) name() string { return p.Binds[0] + "_" + portString(p.Port) }

// gatewayServers returns the AUTO_PASSTHROUGH servers of the Gateway objects that select
// the proxy, one for each address and port of a listener.
func gatewayServers(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string) []passthroughServer {
	var out []passthroughServer
	index := make(map[string]int)
	ports := gatewayPorts(s, n, pod, labels)
	for _, gw := range s.GatewayConfigs {
		if !snapshot.Selects(gw.Spec.GetSelector(), labels) {
			continue
		}
		for _, srv := range gw.Spec.GetServers() {
			if srv.GetTls().GetMode() != networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH {
				continue
			}
			binds := n.families().wildcards()
			if bind := srv.GetBind(); bind != "" {
				binds = []string{bind}
			}
			listening := ports[srv.GetPort().GetNumber()]
			if len(listening) == 0 {
				listening = []uint32{srv.GetPort().GetNumber()}
			}
			for _, port := range listening {
				ps := passthroughServer{Binds: binds, Port: port}
				i, known := index[ps.name()]
				if !known {
					i = len(out)
					index[ps.name()] = i
					out = append(out, ps)
				}
				for _, h := range srv.GetHosts() {
					if ns, host, ok := strings.Cut(h, "/"); ok && ns == "." {
						h = gw.Namespace + "/" + host
					}
					out[i].Hosts = append(out[i].Hosts, h)
				}
			}
		}
	}
	return out
}

// gatewayPorts maps ports of the Services that select a gateway, as the servers of
// Gateway objects name them, to the ports of its pod, sorted.
func gatewayPorts(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string) map[uint32][]uint32 {
	out := make(map[uint32][]uint32)
	eachServicePort(s, n, pod, labels, func(_ *snapshot.MeshService, p *snapshot.ServicePort, number uint32) {
		if i, known := slices.BinarySearch(out[p.Number], number); !known {
			out[p.Number] = slices.Insert(out[p.Number], i, number)
		}
	})
	return out
}

// gatewayView is the view of the listeners of gateways with the same servers.
type gatewayView struct {
	scope    scope
	client   snapshot.RuleClient
	facts    string // []passthroughServer, encoded
	settings snapshot.ListenerSettings
}

func (v gatewayView) Type() string { return xdswire.ListenerType }

func (v gatewayView) Keys() Keys {
	return Keys{Fixed: 1, FixedFacts: snapshot.ServiceFacts | snapshot.RuleFacts}
}

func (v gatewayView) Unit(s *snapshot.Snapshot, _ Key) Unit {
	return gatewayListeners{
		scope: v.scope, facts: v.facts, services: s.Services, subsets: v.subsets(s), settings: v.settings,
	}
}

// subsets returns the names of the subsets of each service that has any, encoded.
func (v gatewayView) subsets(s *snapshot.Snapshot) string {
	out := make(map[string][]string)
	for key, rules := range s.Rules.All() {
		if r := rules.For(v.client); r != nil {
			for _, subset := range r.Subsets {
				out[key] = append(out[key], subset.GetName())
			}
		}
	}
	if len(out) == 0 {
		return ""
	}
	return encodeFacts(out)
}

// gatewayListeners generates the listeners of a gateway. The filter chain of a service
// port, chosen by server name, forwards the connection without terminating its TLS.
type gatewayListeners struct {
	scope    scope
	facts    string
	services *snapshot.Table[string, snapshot.MeshService]
	subsets  string // by MeshService.Key, encoded
	settings snapshot.ListenerSettings
}

func (u gatewayListeners) Type() string { return xdswire.ListenerType }

func (u gatewayListeners) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var servers []passthroughServer
	decodeFacts(u.facts, &servers)
	var subsets map[string][]string
	if u.subsets != "" {
		decodeFacts(u.subsets, &subsets)
	}
	g := generator{enc: enc}
	for _, srv := range servers {
		chains := u.chains(&g, srv, subsets)
		if len(chains) == 0 {
			continue // Envoy refuses a listener without chains
		}
		l := &listenerv3.Listener{
			Name:                                 srv.name(),
			TrafficDirection:                     corev3.TrafficDirection_OUTBOUND,
			MaxConnectionsToAcceptPerSocketEvent: wrapperspb.UInt32(1),
			ListenerFilters:                      []*listenerv3.ListenerFilter{g.tlsInspector()},
			FilterChains:                         chains,
			AccessLog:                            g.refusedConnections(u.settings),
		}
		listenAt(l, srv.Port, srv.Binds)
		g.listener(l)
	}
	return g.resources()
}

// chains returns a filter chain for each port of each service that the server exposes,
// and for each of their subsets.
func (u gatewayListeners) chains(g *generator, srv passthroughServer, subsets map[string][]string) []*listenerv3.FilterChain {
	var out []*listenerv3.FilterChain
	for _, svc := range u.services.All() {
		if svc.ExternalName != "" || !passable(svc) || !u.scope.sees(svc) || !hostsMatch(srv.Hosts, svc, "") {
			continue
		}
		for i := range svc.Ports {
			port := &svc.Ports[i]
			if port.Protocol == mesh.UDP {
				continue
			}
			for _, subset := range append([]string{""}, subsets[svc.Key]...) {
				name := mesh.ClusterName{Direction: mesh.Outbound, Port: port.Number, Subset: subset, Host: svc.Host}.SNI()
				out = append(out, &listenerv3.FilterChain{
					FilterChainMatch:              &listenerv3.FilterChainMatch{ServerNames: []string{name}, ApplicationProtocols: alpnAll},
					Filters:                       []*listenerv3.Filter{g.namedTCPProxy(name, cmp.Or(statName(u.settings.Stats, svc, port, subset, 0), name), u.settings, tcpTimeouts{})},
					TransportSocketConnectTimeout: durationpb.New(handshakeTimeout),
				})
			}
		}
	}
	return out
}
