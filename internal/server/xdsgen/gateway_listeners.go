package xdsgen

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// connectTimeout bounds a client's TLS handshake with a listener.
const connectTimeout = 15 * time.Second

// passthroughServer is one port at which a gateway passes TLS through by its
// server name, with its addresses and the hosts that Gateway objects expose there.
type passthroughServer struct {
	Binds []string
	Port  uint32
	Hosts []string // "<namespace>/<host>" or "<host>"
}

// name is the name of its listener.
func (p *passthroughServer) name() string { return p.Binds[0] + "_" + portString(p.Port) }

// gatewayServers gathers the AUTO_PASSTHROUGH servers of the Gateway objects
// that select the proxy, one for each address and port that it listens on.
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

// gatewayPorts maps ports of the Services in front of a gateway, which servers of
// Gateway objects name, to the ports of its pod behind them, sorted.
func gatewayPorts(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string) map[uint32][]uint32 {
	out := make(map[uint32][]uint32)
	eachTarget(s, n, pod, labels, func(_ *snapshot.MeshService, p *snapshot.ServicePort, number uint32) {
		if i, known := slices.BinarySearch(out[p.Number], number); !known {
			out[p.Number] = slices.Insert(out[p.Number], i, number)
		}
	})
	return out
}

// gatewayView are the listeners of gateways that the same servers select.
type gatewayView struct {
	scope scope
	facts string // []passthroughServer, encoded
}

func (v gatewayView) Type() string { return xdswire.ListenerType }

func (v gatewayView) Reads() snapshot.Kinds { return snapshot.ServiceFacts }

func (v gatewayView) Units(s *snapshot.Snapshot, yield func(string, Unit)) {
	yield("gateway", gatewayListeners{scope: v.scope, facts: v.facts, services: s.Services, settings: s.Mesh.Listeners})
}

func (v gatewayView) Touched(s *snapshot.Snapshot, c *snapshot.Changes, yield func(string, Unit)) {
	if len(c.Services) > 0 {
		v.Units(s, yield)
	}
}

// gatewayListeners are the pass-through listeners of a gateway: a filter
// chain for each service port, found by server name, forwards the connection
// without ending its TLS.
type gatewayListeners struct {
	scope    scope
	facts    string
	services *snapshot.Table[string, snapshot.MeshService]
	settings snapshot.ListenerSettings
}

func (u gatewayListeners) Type() string { return xdswire.ListenerType }

func (u gatewayListeners) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var servers []passthroughServer
	if err := json.Unmarshal([]byte(u.facts), &servers); err != nil {
		return nil, fmt.Errorf("decode gateway facts: %w", err)
	}
	var out []*listenerv3.Listener
	for _, srv := range servers {
		chains, err := u.chains(srv)
		if err != nil {
			return nil, err
		}
		if len(chains) == 0 {
			continue // Envoy refuses a listener without chains
		}
		inspector, err := tlsInspector()
		if err != nil {
			return nil, err
		}
		logs, err := refusedConnections(u.settings)
		if err != nil {
			return nil, err
		}
		l := &listenerv3.Listener{
			Name:                                 srv.name(),
			TrafficDirection:                     corev3.TrafficDirection_OUTBOUND,
			MaxConnectionsToAcceptPerSocketEvent: wrapperspb.UInt32(1),
			ListenerFilters:                      []*listenerv3.ListenerFilter{inspector},
			FilterChains:                         chains,
			AccessLog:                            logs,
		}
		listenAt(l, srv.Port, srv.Binds)
		out = append(out, l)
	}
	return listeners(enc, out...)
}

func (u gatewayListeners) chains(srv passthroughServer) ([]*listenerv3.FilterChain, error) {
	var out []*listenerv3.FilterChain
	for _, svc := range u.services.All() {
		if svc.ExternalName != "" || svc.Headless || clusterLocal(svc) || !u.scope.sees(svc) || !hostsMatch(srv.Hosts, svc, "") {
			continue
		}
		for i := range svc.Ports {
			port := &svc.Ports[i]
			if port.Protocol == mesh.UDP {
				continue
			}
			name := mesh.ClusterName{Direction: mesh.Outbound, Port: port.Number, Host: svc.Host}.SNI()
			proxy, err := tcpProxy(name, u.settings)
			if err != nil {
				return nil, err
			}
			out = append(out, &listenerv3.FilterChain{
				FilterChainMatch: &listenerv3.FilterChainMatch{
					ServerNames: []string{name}, ApplicationProtocols: alpnAll,
				},
				Filters:                       []*listenerv3.Filter{proxy},
				TransportSocketConnectTimeout: durationpb.New(connectTimeout),
			})
		}
	}
	return out, nil
}
