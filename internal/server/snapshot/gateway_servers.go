package snapshot

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
)

// GatewayPort is a port that gateways open: the servers of all Gateway objects that select
// the same workload and have the same port and address.
type GatewayPort struct {
	Number  uint32 // of the workload; 0 for a Unix socket
	Bind    string // IP address or Unix socket; empty means all addresses
	Servers []GatewayServer
}

// GatewayServer is a server of a Gateway object.
type GatewayServer struct {
	Gateway *Gateway
	*networkingv1alpha3.Server
	Protocol mesh.Protocol
	// Hosts are in lower case: "<namespace>/<host>", or "<host>" for VirtualServices of all
	// namespaces.
	Hosts []string
	// Routes is the name of the route configuration. It is empty for TCP.
	Routes string
}

// GatewayName returns the namespace and name of the Gateway object as VirtualServices use them.
func (s *GatewayServer) GatewayName() string { return s.Gateway.Namespace + "/" + s.Gateway.Name }

// PlainHTTP reports whether clients use HTTP without TLS. All servers of the port then do.
func (s *GatewayServer) PlainHTTP() bool { return s.Protocol.IsHTTP() }

// PassesTLS reports whether settings pass connections on without terminating their TLS.
func PassesTLS(t *networkingv1alpha3.ServerTLSSettings) bool {
	return t != nil && (t.GetMode() == networkingv1alpha3.ServerTLSSettings_PASSTHROUGH || t.GetMode() == networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH)
}

// IsUnixSocket reports whether the address of a listener is a Unix socket.
func IsUnixSocket(bind string) bool { return strings.HasPrefix(bind, UnixScheme) }

// UnixScheme precedes the path of a Unix socket.
const UnixScheme = "unix://"

// ServerConflict is a server that is not opened because of an earlier one.
type ServerConflict struct {
	Gateway *Gateway
	Index   int // in Gateway.Spec.Servers
	Reason  string
}

// MergeGateways returns the ports that Gateway objects open together for one workload,
// and the servers that conflict with earlier ones. target returns the port of the workload
// for the port of a server.
func MergeGateways(gateways []*Gateway, target func(uint32) uint32) ([]*GatewayPort, []ServerConflict) {
	m := gatewayMerge{at: make(map[listenAddress]*mergedPort), routes: make(map[string]struct{})}
	for _, gw := range gateways {
		for i, s := range gw.Spec.GetServers() {
			if reason := m.add(gw, s, target); reason != "" {
				m.conflicts = append(m.conflicts, ServerConflict{gw, i, reason})
			}
		}
	}
	out := make([]*GatewayPort, len(m.ports))
	for i, p := range m.ports {
		out[i] = &p.GatewayPort
	}
	return out, m.conflicts
}

type gatewayMerge struct {
	ports     []*mergedPort
	at        map[listenAddress]*mergedPort
	routes    map[string]struct{} // route configurations of HTTPS servers
	conflicts []ServerConflict
}

type listenAddress struct {
	number uint32
	bind   string
}

type mergedPort struct {
	GatewayPort
	hosts map[string]*Gateway // of servers with TLS settings
}

func (m *gatewayMerge) port(number uint32, bind string) *mergedPort {
	at := listenAddress{number, bind}
	if m.at[at] == nil {
		m.at[at] = &mergedPort{GatewayPort: GatewayPort{Number: number, Bind: bind}, hosts: make(map[string]*Gateway)}
		m.ports = append(m.ports, m.at[at])
	}
	return m.at[at]
}

// add adds a server, or returns the reason why it conflicts with an earlier one.
func (m *gatewayMerge) add(gw *Gateway, spec *networkingv1alpha3.Server, target func(uint32) uint32) (conflict string) {
	number, bind := target(spec.GetPort().GetNumber()), spec.GetBind()
	if IsUnixSocket(bind) {
		number = 0
	} else if mesh.IsProxyPort(number) {
		return fmt.Sprintf("port %d is the proxy's own", number)
	} else if ip, err := netip.ParseAddr(bind); err == nil && ip.IsUnspecified() {
		bind = ""
	}
	p := m.port(number, bind)
	s := newGatewayServer(gw, spec)
	s.Routes = routesName(&s, &p.GatewayPort)
	if _, taken := m.routes[s.Routes]; taken {
		return fmt.Sprintf("port %d has another server with the port name %q", number, s.Port.GetName())
	}
	if reason := p.conflict(&s); reason != "" {
		return reason
	}
	if s.Routes != "" && !s.PlainHTTP() {
		m.routes[s.Routes] = struct{}{}
	}
	p.Servers = append(p.Servers, s)
	return ""
}

func newGatewayServer(gw *Gateway, spec *networkingv1alpha3.Server) GatewayServer {
	protocol, _ := mesh.ParseProtocol(spec.GetPort().GetProtocol())
	return GatewayServer{Gateway: gw, Server: spec, Protocol: protocol, Hosts: serverHosts(gw, spec)}
}

// GatewayServers returns the servers of a Gateway object, without their Routes.
func GatewayServers(gw *Gateway) []GatewayServer {
	out := make([]GatewayServer, len(gw.Spec.GetServers()))
	for i, spec := range gw.Spec.GetServers() {
		out[i] = newGatewayServer(gw, spec)
	}
	return out
}

// conflict returns the reason why a server cannot share the port with its servers, or "".
func (p *mergedPort) conflict(s *GatewayServer) string {
	if len(p.Servers) > 0 {
		first := &p.Servers[0]
		switch {
		case first.PlainHTTP() && s.PlainHTTP():
		case first.PlainHTTP() || s.PlainHTTP() || first.Tls == nil || s.Tls == nil:
			return fmt.Sprintf("port %d has protocol %s, by Gateway %s: %s cannot share it", p.Number, first.Port.GetProtocol(), first.GatewayName(), s.Port.GetProtocol())
		}
	}
	if s.Tls == nil {
		return ""
	}
	hosts := slices.Clone(s.Hosts)
	if !s.PlainHTTP() && !PassesTLS(s.Tls) {
		for i, h := range hosts { // the server name of a connection has no namespace
			hosts[i] = h[strings.Index(h, "/")+1:]
		}
	}
	for _, h := range hosts {
		if other := p.hosts[h]; other != nil {
			return fmt.Sprintf("port %d has the host %s already, by Gateway %s/%s", p.Number, h, other.Namespace, other.Name)
		}
	}
	for _, h := range hosts {
		p.hosts[h] = s.Gateway
	}
	return ""
}

// serverHosts returns the hosts of a server as GatewayServer has them.
func serverHosts(gw *Gateway, s *networkingv1alpha3.Server) []string {
	out := make([]string, 0, len(s.GetHosts()))
	for _, h := range s.GetHosts() {
		h = mesh.CanonicalHost(h)
		switch namespace, host, two := strings.Cut(h, "/"); {
		case two && namespace == "*" && host == "*":
			return []string{"*"}
		case two && namespace == "*":
			h = host
		case two && namespace == ".":
			h = gw.Namespace + "/" + host
		}
		out = append(out, h)
	}
	return out
}

// routesName returns the name of the route configuration of a server. All plain HTTP
// servers of a port share one.
func routesName(s *GatewayServer, p *GatewayPort) string {
	bind := ""
	if p.Bind != "" {
		bind = "." + p.Bind
	}
	switch {
	case s.PlainHTTP():
		return "http." + strconv.FormatUint(uint64(p.Number), 10) + bind
	case s.Protocol == mesh.HTTPS && !PassesTLS(s.Tls):
		return fmt.Sprintf("https.%d.%s.%s.%s%s", s.Port.GetNumber(), s.Port.GetName(), s.Gateway.Name, s.Gateway.Namespace, bind)
	}
	return ""
}
