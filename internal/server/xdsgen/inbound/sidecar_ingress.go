package inbound

import (
	"net/netip"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// ingressPorts returns the ports that a Sidecar declares. A service with the same port
// gives its name to routes and metadata.
func ingressPorts(m *snapshot.Mesh, sc *snapshot.Sidecar, n proxy.Node, services []inboundPort) []inboundPort {
	var out []inboundPort
	for _, in := range sc.Spec.GetIngress() {
		if !proxy.Accepts(m, n, in.GetPort().GetNumber()) {
			continue
		}
		protocol, _ := mesh.ParseProtocol(in.GetPort().GetProtocol())
		p := inboundPort{Number: in.GetPort().GetNumber(), Service: in.GetPort().GetNumber(), Protocol: protocol, Name: sc.Name, Space: sc.Namespace}
		if i := slices.IndexFunc(services, func(s inboundPort) bool { return s.Number == p.Number }); i >= 0 {
			s := services[i]
			p.Service, p.Name, p.Space, p.Host, p.Pool, p.Stats = s.Service, s.Name, s.Space, s.Host, s.Pool, s.Stats
		}
		p.Endpoint = in.GetDefaultEndpoint()
		if ap, err := netip.ParseAddrPort(p.Endpoint); err == nil {
			if !proxy.Accepts(m, n, uint32(ap.Port())) {
				continue
			}
			if ap.Addr().IsUnspecified() {
				// In Istio an unspecified address stands for the address of the pod.
				p.Endpoint = netip.AddrPortFrom(ownAddress(n, ap.Addr()), ap.Port()).String()
			}
		}
		if !n.Captured || in.GetCaptureMode() == networkingv1alpha3.CaptureMode_NONE {
			if p.Bind = in.GetBind(); p.Bind == "" {
				p.Bind = n.ID.IP.String()
			}
		}
		out = append(out, p)
	}
	return out
}

// ownAddress returns the proxy's address of the IP version of another one, else its first address.
func ownAddress(n proxy.Node, like netip.Addr) netip.Addr {
	if i := slices.IndexFunc(n.IPs, func(ip netip.Addr) bool { return proxy.FamilyOf(ip) == proxy.FamilyOf(like) }); i >= 0 {
		return n.IPs[i]
	}
	return n.ID.IP
}

// ingressAt returns the ingress listener of a Sidecar, which may be nil, at a port, or nil.
func ingressAt(sc *snapshot.Sidecar, number uint32) *networkingv1alpha3.IstioIngressListener {
	if sc != nil {
		for _, in := range sc.Spec.GetIngress() {
			if in.GetPort().GetNumber() == number {
				return in
			}
		}
	}
	return nil
}

// withoutTLS returns the protocol of a port whose TLS the proxy terminates.
func withoutTLS(p mesh.Protocol) mesh.Protocol {
	switch p {
	case mesh.HTTPS:
		return mesh.HTTP
	case mesh.TLS:
		return mesh.TCP
	}
	return p
}

// sidecarPool returns the connection pool that a Sidecar sets for a port, or nil. The
// Sidecar may be nil.
func sidecarPool(sc *snapshot.Sidecar, number uint32) *networkingv1alpha3.ConnectionPoolSettings {
	if pool := ingressAt(sc, number).GetConnectionPool(); pool != nil || sc == nil {
		return pool
	}
	return sc.Spec.GetInboundConnectionPool()
}

// serverTLS returns the settings by which a Sidecar terminates TLS, or nil.
func (p *inboundPort) serverTLS() *networkingv1alpha3.ServerTLSSettings {
	if p.TLS == "" {
		return nil
	}
	var out networkingv1alpha3.ServerTLSSettings
	DecodeSettings(p.TLS, &out)
	return &out
}
