package config

import (
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// DNS configures the DNS server of an agent.
type DNS struct {
	// Listen are the addresses to listen on. With several, some may not exist.
	Listen []netip.AddrPort
	// ResolvConf are paths of the resolv.conf; the first that exists counts.
	ResolvConf []string
	// Timeout bounds the time for which the name servers of the machine are asked; Parallel
	// asks them at once.
	Timeout  time.Duration
	Parallel bool
	// ForwardEarly forwards all queries until there is a name table.
	ForwardEarly bool
}

const (
	defaultDNSTimeout = 5 * time.Second
	resolvConf        = "/etc/resolv.conf"
	// savedResolvConf is the original resolv.conf of a machine whose own one names the agent.
	savedResolvConf = "/var/lib/istio/resolv.conf"
	portDNS         = 53
)

// dns resolves whether and how the agent answers DNS queries.
func (r *resolver) dns(cfg *Config) {
	captured := cfg.Node.Type == mesh.Sidecar && metadataIs(cfg, "DNS_CAPTURE")
	if !captured && !metadataIs(cfg, "ENABLE_DNS_SERVER") {
		return
	}
	host := "localhost"
	if r.flags.BindAddress != "" {
		host = cfg.Listen.String()
	}
	address := setting{r.lookup("DNS_PROXY_ADDR"), "DNS_PROXY_ADDR"}
	if address.value == "" {
		address.value = net.JoinHostPort(host, strconv.Itoa(mesh.PortAgentDNS))
	}
	d := &DNS{Timeout: r.durationOf("DNS_FORWARD_TIMEOUT", defaultDNSTimeout), ResolvConf: []string{resolvConf}}
	cfg.DNS = d
	d.Parallel = r.boolean(r.pick("dns-forward-parallel", r.flags.DNSForwardParallel, "DNS_FORWARD_PARALLEL", "false"))
	if address.isReported() {
		return
	}
	name, portText, _ := net.SplitHostPort(address.value)
	port, _ := parsePort(portText)
	if name == "localhost" {
		d.Listen = []netip.AddrPort{
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port), netip.AddrPortFrom(netip.IPv6Loopback(), port),
		}
	} else if ip, ok := r.addr(setting{name, address.from}); ok {
		d.Listen = []netip.AddrPort{netip.AddrPortFrom(ip, port)}
		if !ip.IsLoopback() {
			r.warnf("DNS_PROXY_ADDR=%q: every host that reaches this address may ask the agent for names", address.value)
		}
	}
	if port == portDNS {
		// The machine's own resolver asks the agent.
		d.ResolvConf, d.ForwardEarly = []string{savedResolvConf, resolvConf}, true
	}
}

// metadataIs reports whether the node's metadata has the key with the value true.
func metadataIs(cfg *Config, key string) bool {
	switch v := cfg.Metadata[key].(type) {
	case bool:
		return v
	case string:
		return v == "true"
	}
	return false
}
