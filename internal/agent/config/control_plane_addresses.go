package config

import (
	"cmp"
	"net"
	"net/netip"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/agent/bootstrap"
	"github.com/meshctl/meshctl/internal/mesh"
)

// servers resolves the addresses of control plane and certificate authority, and the names
// that their certificates must hold.
func (r *resolver) servers(cfg *Config, pc *meshv1alpha1.ProxyConfig) {
	if pc.GetControlPlaneAuthPolicy() == meshv1alpha1.AuthenticationPolicy_NONE {
		r.errorf("PROXY_CONFIG: controlPlaneAuthPolicy NONE is not supported: the agent talks to the control plane over TLS only")
	}
	discovery := setting{pc.GetDiscoveryAddress(), "discoveryAddress of PROXY_CONFIG (or --discovery-address)"}
	ca := r.pick("ca-address", r.flags.CAAddress, "CA_ADDR", discovery.value)
	san := r.lookup("ISTIOD_SAN")
	cfg.Discovery, cfg.MoreDiscovery = r.serverList(discovery, san)
	cfg.CA, cfg.MoreCA = cfg.Discovery, cfg.MoreDiscovery
	if ca.value != discovery.value {
		cfg.CA, cfg.MoreCA = r.serverList(ca, r.flags.CAName)
	}
	cfg.Direct = r.boolean(setting{cmp.Or(r.flags.NoRelay, "false"), "--no-relay"})
	if cfg.Direct && len(cfg.MoreDiscovery) > 0 {
		r.errorf("%s=%q has several addresses: Envoy itself (--no-relay) connects to one", discovery.from, discovery.value)
	}
	cfg.FollowRoots = r.boolean(setting{cmp.Or(r.lookup(followRoots), "false"), followRoots})
	cfg.Delta = r.boolean(r.pick("delta", r.flags.Delta, "ISTIO_DELTA_XDS", "true"))
}

// followRoots is Istio's variable that enables PCDS; no flag exists.
const followRoots = "PROXY_CONFIG_XDS_AGENT"

// serverList resolves a list of addresses that commas separate. Their certificates must hold
// name or, if it is empty, the names of their hosts.
func (r *resolver) serverList(s setting, name string) (first bootstrap.Server, more []bootstrap.Server) {
	for i, addr := range strings.Split(s.value, ",") {
		server := r.server(setting{strings.TrimSpace(addr), s.from})
		server.Name = cmp.Or(name, server.Name)
		if i == 0 {
			first = server
		} else {
			more = append(more, server)
		}
	}
	return first, more
}

func (r *resolver) server(s setting) bootstrap.Server {
	if s.isReported() {
		return bootstrap.Server{}
	}
	host, portText, err := net.SplitHostPort(s.value)
	if err != nil {
		r.errorf("%s=%q is not host:port", s.from, s.value)
		return bootstrap.Server{}
	}
	port, ok := parsePort(portText)
	if !ok {
		r.errorf("%s=%q: %q is not a port, 1 to 65535", s.from, s.value, portText)
	}
	if port == mesh.PortPlaintextXDS {
		r.errorf("%s=%q is the port without TLS, which would expose the token: use port %d",
			s.from, s.value, mesh.PortSecureXDS)
	}
	_, notIP := netip.ParseAddr(host)
	switch {
	case notIP != nil && !mesh.IsDNSName(host):
		r.errorf("%s=%q: %q is neither a DNS name nor an IP address", s.from, s.value, host)
	case notIP != nil && !strings.Contains(host, "localhost"):
		return bootstrap.Server{Host: host, Port: port, Name: host}
	}
	// Certificates of control planes hold names of services, not addresses.
	return bootstrap.Server{Host: host, Port: port, Name: defaultServerName}
}
