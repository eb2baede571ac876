package xdsgen

import (
	"slices"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// gatewayPorts returns the ports that Gateway objects open for a proxy.
func gatewayPorts(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string) []*snapshot.GatewayPort {
	ports, _ := snapshot.MergeGateways(gatewaysOf(s, labels), targetPorts(s, n, pod, labels))
	return slices.DeleteFunc(ports, func(p *snapshot.GatewayPort) bool {
		const privileged = 1024
		return n.Unprivileged && p.Number < privileged && p.Number > 0
	})
}

// gatewaysOf returns the Gateway objects that select a workload, oldest first.
func gatewaysOf(s *snapshot.Snapshot, labels map[string]string) []*snapshot.Gateway {
	var out []*snapshot.Gateway
	for _, gw := range s.GatewayConfigs {
		if snapshot.Selects(gw.Spec.GetSelector(), labels) {
			out = append(out, gw)
		}
	}
	return out
}

// targetPorts returns a function from a port of the Services that select a gateway, as the
// servers of Gateway objects name it, to the port of its pod. The oldest Service decides. A
// port of no Service is the pod's own.
func targetPorts(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string) func(uint32) uint32 {
	targets := make(map[uint32]uint32)
	eachServicePort(s, n, pod, labels, func(_ *snapshot.MeshService, p *snapshot.ServicePort, number uint32) {
		if _, known := targets[p.Number]; !known {
			targets[p.Number] = number
		}
	})
	return func(number uint32) uint32 {
		if target, known := targets[number]; known {
			return target
		}
		return number
	}
}

// passesByName reports whether a proxy passes TLS on to services by server name: a Gateway
// object that selects it has a server with mode AUTO_PASSTHROUGH.
func passesByName(s *snapshot.Snapshot, labels map[string]string) bool {
	return slices.ContainsFunc(gatewaysOf(s, labels), func(gw *snapshot.Gateway) bool {
		return slices.ContainsFunc(gw.Spec.GetServers(), isAutoPassthrough)
	})
}

func isAutoPassthrough(s *networkingv1alpha3.Server) bool {
	return s.GetTls().GetMode() == networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH
}

// gatewayListenerFacts holds what the Gateway objects determine about a listener.
type gatewayListenerFacts struct {
	Binds []string // IP addresses, or one Unix socket
	Port  uint32
	// Routes is the route configuration of plain HTTP. It is empty for TCP and TLS.
	Routes  string `json:",omitempty"`
	GRPCWeb bool   `json:",omitempty"`
	// Servers holds the servers of TCP and TLS.
	Servers []gatewayServerFacts `json:",omitempty"`
}

// gatewayServerFacts holds what a server with TCP or TLS determines about a listener.
type gatewayServerFacts struct {
	Name   string `json:",omitempty"`
	Hosts  []string
	Routes string `json:",omitempty"` // route configuration of HTTPS
	// TLS is ServerTLSSettings, encoded. Plain reports whether there are none.
	TLS   []byte `json:",omitempty"`
	Plain bool   `json:",omitempty"`
	// Gateway and Port select the VirtualServices of servers without a route configuration.
	Gateway string `json:",omitempty"`
	Port    uint32 `json:",omitempty"`
}

func (f *gatewayServerFacts) settings() *networkingv1alpha3.ServerTLSSettings {
	if f.Plain {
		return nil
	}
	var out networkingv1alpha3.ServerTLSSettings
	if err := proto.Unmarshal(f.TLS, &out); err != nil {
		panic("xdsgen: " + err.Error()) // encodeSettings made it
	}
	return &out
}

// name returns the name of the listener.
func (f *gatewayListenerFacts) name() string { return f.Binds[0] + "_" + portString(f.Port) }

func listenerFactsOf(p *snapshot.GatewayPort, f families) gatewayListenerFacts {
	out := gatewayListenerFacts{Binds: f.wildcards(), Port: p.Number}
	if p.Bind != "" {
		out.Binds = []string{p.Bind}
	}
	for i := range p.Servers {
		s := &p.Servers[i]
		if s.PlainHTTP() {
			out.Routes = s.Routes
			out.GRPCWeb = out.GRPCWeb || s.Protocol == mesh.GRPCWeb
			continue
		}
		server := gatewayServerFacts{Name: s.Name, Hosts: s.Hosts, Routes: s.Routes, Plain: s.Tls == nil}
		if s.Routes == "" && !isAutoPassthrough(s.Server) {
			server.Gateway, server.Port = s.GatewayName(), s.Port.GetNumber()
		}
		if !server.Plain {
			server.TLS = encodeSettings(s.Tls)
		}
		out.Servers = append(out.Servers, server)
	}
	return out
}

// gatewayRouteFacts holds what the Gateway objects determine about a route configuration.
type gatewayRouteFacts struct {
	Name    string
	Servers []gatewayRouteServer
}

// gatewayRouteServer is a server of HTTP or HTTPS.
type gatewayRouteServer struct {
	Gateway  string
	Port     uint32
	Hosts    []string
	TLS      bool
	Redirect bool `json:",omitempty"` // to HTTPS
}

// routeFactsOf returns the facts of the route configurations of a port.
func routeFactsOf(p *snapshot.GatewayPort) []gatewayRouteFacts {
	var out []gatewayRouteFacts
	for i := range p.Servers {
		s := &p.Servers[i]
		if s.Routes == "" {
			continue
		}
		if len(out) == 0 || out[len(out)-1].Name != s.Routes {
			out = append(out, gatewayRouteFacts{Name: s.Routes})
		}
		of := &out[len(out)-1]
		of.Servers = append(of.Servers, gatewayRouteServer{
			Gateway: s.GatewayName(), Port: s.Port.GetNumber(), Hosts: s.Hosts, TLS: s.Tls != nil, Redirect: s.Tls.GetHttpsRedirect(),
		})
	}
	return out
}

// gatewayFacts holds the facts of the listeners and route configurations of a gateway, each
// encoded.
type gatewayFacts struct {
	// The facts of listeners, each a gatewayListenerFacts: those with only HTTP, those with
	// servers of TCP or TLS, and those with mode AUTO_PASSTHROUGH.
	http, streams, passing list[string]
	routes                 list[string] // of gatewayRouteFacts
}

func gatewayFactsOf(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string) gatewayFacts {
	var listeners [3][]string // by the numbers of their keys
	var routes []string
	for _, p := range gatewayPorts(s, n, pod, labels) {
		number := httpListener
		for i := range p.Servers {
			switch {
			case isAutoPassthrough(p.Servers[i].Server):
				number = passingListener
			case p.Servers[i].Routes == "":
				number = max(number, streamListener)
			}
		}
		listeners[number] = append(listeners[number], encodeFacts(listenerFactsOf(p, n.families())))
		for _, f := range routeFactsOf(p) {
			routes = append(routes, encodeFacts(f))
		}
	}
	return gatewayFacts{listOf(listeners[httpListener]), listOf(listeners[streamListener]), listOf(listeners[passingListener]), listOf(routes)}
}

// listKeys returns a key for each of some facts.
func listKeys(facts list[string], number uint32) []Key {
	var out []Key
	for f := range facts.all {
		out = append(out, Key{Name: f, Number: number})
	}
	return out
}
