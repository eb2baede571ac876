package xdsgen

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// httpProxyPort returns the port at which a sidecar is an HTTP proxy for its application:
// HTTP_PROXY_PORT of its metadata, else proxyHttpPort of the mesh. It returns 0 if there is none.
func httpProxyPort(s *snapshot.Snapshot, n Node, sc scope) uint32 {
	port := s.Mesh.HTTPProxyPort
	if n.HTTPProxyPort != nil {
		port = *n.HTTPProxyPort
	}
	if reserved(s.Mesh, port) || sc.ownsPort(port) {
		return 0
	}
	return port
}

// httpProxyListener generates the listener of the HTTP proxy port.
type httpProxyListener struct {
	port     uint32
	families families
	settings listenerSettings
}

func (u httpProxyListener) Type() string { return xdswire.ListenerType }

func (u httpProxyListener) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := generator{enc: enc}
	at := u.families.loopbacks()
	name := at[0] + "_" + portString(u.port)
	http := g.outboundHTTP("outbound_"+name+";", httpProxyRoutesName, httpOptions{port: u.port, settings: u.settings})
	l := &listenerv3.Listener{
		Name: name, TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{http}}},
	}
	listenAt(l, u.port, at)
	g.clientListener(l, u.settings, u.port)
	return g.resources()
}
