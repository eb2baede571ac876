package outbound

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/filters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/server/xdsgen/telemetry"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// HTTPProxyPort returns the port at which a sidecar is an HTTP proxy for its application:
// HTTP_PROXY_PORT of its metadata, else proxyHttpPort of the mesh. It returns 0 if there is none.
func HTTPProxyPort(s *snapshot.Snapshot, n proxy.Node, sc proxy.Scope) uint32 {
	port := s.Mesh.HTTPProxyPort
	if n.HTTPProxyPort != nil {
		port = *n.HTTPProxyPort
	}
	if proxy.Reserved(s.Mesh, port) || sc.OwnsPort(port) {
		return 0
	}
	return port
}

// httpProxyListener generates the listener of the HTTP proxy port.
type httpProxyListener struct {
	port     uint32
	families proxy.Families
	settings telemetry.Settings
}

func (u httpProxyListener) Type() string { return xdswire.ListenerType }

func (u httpProxyListener) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := wire.Generator{Enc: enc}
	at := u.families.Loopbacks()
	name := at[0] + "_" + wire.PortString(u.port)
	http := filters.OutboundHTTP(&g, "outbound_"+name+";", routes.HTTPProxyRoutesName, filters.HTTPOptions{Port: u.port, Settings: u.settings})
	l := &listenerv3.Listener{
		Name: name, TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{http}}},
	}
	wire.ListenAt(l, u.port, at)
	filters.ClientListener(&g, l, u.settings, u.port)
	return g.Resources()
}
