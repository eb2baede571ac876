// Package gateways generates the listeners and routes of gateways.
package gateways

import (
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/inbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// gatewayPorts returns the ports that Gateway objects open for a proxy.
func gatewayPorts(s *snapshot.Snapshot, n proxy.Node, pod *snapshot.Pod, labels map[string]string) []*snapshot.GatewayPort {
	ports, _ := snapshot.MergeGateways(proxy.GatewaysOf(s, labels), targetPorts(s, n, pod, labels))
	return slices.DeleteFunc(ports, func(p *snapshot.GatewayPort) bool {
		const privileged = 1024
		return n.Unprivileged && p.Number < privileged && p.Number > 0
	})
}

// targetPorts returns a function from a port of the Services that select a gateway, as the
// servers of Gateway objects name it, to the port of its pod. The oldest Service decides. A
// port of no Service is the pod's own.
func targetPorts(s *snapshot.Snapshot, n proxy.Node, pod *snapshot.Pod, labels map[string]string) func(uint32) uint32 {
	targets := make(map[uint32]uint32)
	inbound.EachServicePort(s, n, pod, labels, func(_ *snapshot.MeshService, p *snapshot.ServicePort, number uint32) {
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

// gatewayListenerFacts holds what the Gateway objects determine about a listener.
type gatewayListenerFacts struct {
	Kind  gatewayListenerKind
	Binds wire.List[string] // IP addresses, or one Unix socket
	Port  uint32
	// Routes is the route configuration of plain HTTP. It is empty for TCP and TLS.
	Routes  string
	GRPCWeb bool
	// HTTP3 reports whether the listener takes HTTP/3 over UDP.
	HTTP3 bool
	// Servers holds the servers of TCP and TLS.
	Servers wire.List[gatewayServerFacts]
}

// gatewayListenerKind is the kind of a listener of a gateway.
type gatewayListenerKind uint8

const (
	httpListener    gatewayListenerKind = iota // depends only on the Gateway objects
	streamListener                             // has servers of TCP or TLS, which VirtualServices route
	passingListener                            // has servers with mode AUTO_PASSTHROUGH, too, which depend on services
)

// gatewayServerFacts holds what a server with TCP or TLS determines about a listener.
type gatewayServerFacts struct {
	Name   string
	Hosts  wire.List[string]
	Routes string // route configuration of HTTPS
	// TLS is ServerTLSSettings, encoded. Plain reports whether there are none.
	TLS   string
	Plain bool
	// Gateway and Port select the VirtualServices of servers without a route configuration.
	Gateway string
	Port    uint32
}

func (f *gatewayServerFacts) settings() *networkingv1alpha3.ServerTLSSettings {
	if f.Plain {
		return nil
	}
	var out networkingv1alpha3.ServerTLSSettings
	inbound.DecodeSettings(f.TLS, &out)
	return &out
}

// name returns the name of the listener.
func (f *gatewayListenerFacts) name() string {
	name := f.Binds.At(0) + "_" + wire.PortString(f.Port)
	if f.HTTP3 {
		return "udp_" + name
	}
	return name
}

func listenerFactsOf(p *snapshot.GatewayPort, f proxy.Families) gatewayListenerFacts {
	out := gatewayListenerFacts{Binds: wire.ListOf(f.Wildcards()), Port: p.Number}
	if p.Bind != "" {
		out.Binds = wire.ListOf([]string{p.Bind})
	}
	var servers []gatewayServerFacts
	for i := range p.Servers {
		s := &p.Servers[i]
		switch {
		case proxy.IsAutoPassthrough(s.Server):
			out.Kind = passingListener
		case s.Routes == "":
			out.Kind = max(out.Kind, streamListener)
		}
		if s.PlainHTTP() {
			out.Routes = s.Routes
			out.GRPCWeb = out.GRPCWeb || s.Protocol == mesh.GRPCWeb
			continue
		}
		server := gatewayServerFacts{Name: s.Name, Hosts: wire.ListOf(s.Hosts), Routes: s.Routes, Plain: s.Tls == nil}
		if s.Routes == "" && !proxy.IsAutoPassthrough(s.Server) {
			server.Gateway, server.Port = s.GatewayName(), s.Port.GetNumber()
		}
		if !server.Plain {
			server.TLS = wire.EncodeSettings(s.Tls)
		}
		servers = append(servers, server)
	}
	out.Servers = wire.ListOf(servers)
	return out
}

// gatewayRouteFacts holds what the Gateway objects determine about a route configuration.
type gatewayRouteFacts struct {
	Name    string
	Servers wire.List[GatewayRouteServer]
	// HTTP3 is the port of the Service at which clients may use HTTP/3, or 0.
	HTTP3 uint32
	// Elsewhere holds the hosts of other servers of the port that wildcards of the servers cover.
	// Connections by these names are not theirs.
	Elsewhere wire.List[string]
}

// GatewayRouteServer is a server of HTTP or HTTPS.
type GatewayRouteServer struct {
	Gateway  string
	Port     uint32
	Hosts    wire.List[string]
	TLS      bool
	Redirect bool // to HTTPS
}

// routeFactsOf returns the facts of the route configurations of a port.
func routeFactsOf(p *snapshot.GatewayPort, udp map[uint32]uint32) []gatewayRouteFacts {
	var out []gatewayRouteFacts
	servers := make(map[string][]GatewayRouteServer)
	for i := range p.Servers {
		s := &p.Servers[i]
		if s.Routes == "" {
			continue
		}
		if _, known := servers[s.Routes]; !known {
			f := gatewayRouteFacts{Name: s.Routes}
			if servesHTTP3(s, p.Number, udp) {
				f.HTTP3 = s.Port.GetNumber()
			}
			out = append(out, f)
		}
		servers[s.Routes] = append(servers[s.Routes], GatewayRouteServer{
			Gateway: s.GatewayName(), Port: s.Port.GetNumber(), Hosts: wire.ListOf(s.Hosts), TLS: s.Tls != nil, Redirect: s.Tls.GetHttpsRedirect(),
		})
	}
	for i := range out {
		out[i].Servers = wire.ListOf(servers[out[i].Name])
		out[i].Elsewhere = wire.ListOf(hostsElsewhere(p, out[i].Name, servers[out[i].Name]))
	}
	return out
}

// GatewayFactsOf returns the facts of the listeners and route configurations of a gateway.
func GatewayFactsOf(s *snapshot.Snapshot, n proxy.Node, pod *snapshot.Pod, labels map[string]string) (wire.List[gatewayListenerFacts], wire.List[gatewayRouteFacts]) {
	var listeners []gatewayListenerFacts
	var routes []gatewayRouteFacts
	udp := udpPorts(s, n, pod, labels)
	for _, p := range gatewayPorts(s, n, pod, labels) {
		facts := listenerFactsOf(p, n.Families())
		listeners = append(listeners, facts)
		if http3, ok := http3FactsOf(p, facts, udp); ok {
			listeners = append(listeners, http3)
		}
		routes = append(routes, routeFactsOf(p, udp)...)
	}
	return wire.ListOf(listeners), wire.ListOf(routes)
}
