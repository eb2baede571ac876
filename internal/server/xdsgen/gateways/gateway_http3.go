package gateways

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	quicv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/quic/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/inbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/tlsconfig"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// quicSocket is the name of Envoy's transport socket for QUIC.
const quicSocket = "envoy.transport_sockets.quic"

// udpPorts returns the UDP ports of the Services that select a gateway, with the ports of its pod.
func udpPorts(s *snapshot.Snapshot, n proxy.Node, pod *snapshot.Pod, labels map[string]string) map[uint32]uint32 {
	out := make(map[uint32]uint32)
	inbound.EachPort(s, n, pod, labels, func(_ *snapshot.MeshService, p *snapshot.ServicePort, number uint32) {
		if _, known := out[p.Number]; p.Protocol == mesh.UDP && !known {
			out[p.Number] = number
		}
	})
	return out
}

// servesHTTP3 reports whether a server of a port also takes HTTP/3: it has HTTPS without
// certificates of clients and permits TLS 1.3, and a Service has a UDP port of its number that
// leads to the same port of the pod.
func servesHTTP3(s *snapshot.GatewayServer, port uint32, udp map[uint32]uint32) bool {
	latest := s.GetTls().GetMaxProtocolVersion()
	return s.Protocol == mesh.HTTPS && s.Routes != "" && s.GetTls().GetMode() == networkingv1alpha3.ServerTLSSettings_SIMPLE &&
		(latest == networkingv1alpha3.ServerTLSSettings_TLS_AUTO || latest == networkingv1alpha3.ServerTLSSettings_TLSV1_3) &&
		port != 0 && udp[s.Port.GetNumber()] == port
}

// http3FactsOf returns the facts of the listener for HTTP/3 beside the listener of a port. It returns
// false if there is none.
func http3FactsOf(p *snapshot.GatewayPort, over gatewayListenerFacts, udp map[uint32]uint32) (gatewayListenerFacts, bool) {
	var servers []gatewayServerFacts
	for i := range p.Servers {
		if s := &p.Servers[i]; servesHTTP3(s, p.Number, udp) {
			servers = append(servers, gatewayServerFacts{Name: s.Name, Hosts: wire.ListOf(s.Hosts), Routes: s.Routes, TLS: wire.EncodeSettings(s.Tls)})
		}
	}
	return gatewayListenerFacts{Kind: httpListener, Binds: over.Binds, Port: p.Number, HTTP3: true, Servers: wire.ListOf(servers)}, len(servers) > 0
}

// http3Listener returns the listener for HTTP/3, without filter chains.
func http3Listener(name string, port uint32, binds []string) *listenerv3.Listener {
	l := &listenerv3.Listener{
		Name: name, TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		UdpListenerConfig: &listenerv3.UdpListenerConfig{
			DownstreamSocketConfig: &corev3.UdpSocketConfig{}, QuicOptions: &listenerv3.QuicProtocolOptions{},
		},
	}
	wire.ListenAt(l, port, binds)
	l.Address.GetSocketAddress().Protocol = corev3.SocketAddress_UDP
	for _, a := range l.AdditionalAddresses {
		a.Address.GetSocketAddress().Protocol = corev3.SocketAddress_UDP
	}
	return l
}

// quic returns the transport socket of a server for HTTP/3. As over TCP, there are no requests
// before the end of the handshake, which an attacker could repeat.
func quic(g *wire.Generator, t *networkingv1alpha3.ServerTLSSettings, limits tlsconfig.TLSLimits) *corev3.TransportSocket {
	return g.TransportSocket(quicSocket, &quicv3.QuicDownstreamTransport{DownstreamTlsContext: tlsconfig.DownstreamTLS(t, limits, "h3"), EnableEarlyData: wire.No})
}

// altSvc returns the header by which responses announce HTTP/3 at a port of the Service.
func altSvc(port uint32) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: "alt-svc", Value: fmt.Sprintf(`h3=":%d"; ma=86400`, port)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}
