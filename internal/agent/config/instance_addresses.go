package config

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
)

// addresses resolves the workload's addresses and the addresses to listen on.
func (r *resolver) addresses(cfg *Config, interfaces []netip.Addr) {
	var own []netip.Addr
	bind, bound := r.addr(setting{r.flags.BindAddress, "--bind-address"})
	if bound && bind.IsUnspecified() {
		r.errorf("--bind-address=%s: want one address; without the flag, the agent listens on all", bind)
	}
	instance := r.pick("instance-ip", r.flags.InstanceIP, "INSTANCE_IP", "")
	for text := range strings.SplitSeq(instance.value, ",") { // as status.podIPs gives them
		if ip, ok := r.addr(setting{text, instance.from}); ok && !slices.Contains(own, ip) {
			own = append(own, ip)
		}
	}
	if len(own) == 0 && bound {
		own = append(own, bind)
	}
	if !bound {
		for _, a := range interfaces {
			if a.IsGlobalUnicast() && a.String() != mesh.PassthroughIPv6 && !slices.Contains(own, a) {
				own = append(own, a)
			}
		}
	}
	if len(own) == 0 {
		own = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
		if slices.Contains(interfaces, netip.IPv6Loopback()) {
			own = append(own, netip.IPv6Loopback())
		}
	}
	cfg.Node.IP = own[0]
	var ips []string
	for _, a := range own {
		ips = append(ips, a.String())
	}
	cfg.Metadata = map[string]any{"INSTANCE_IPS": strings.Join(ips, ",")}

	switch {
	case bound:
		cfg.Listen, cfg.Local = bind, bind
	case !slices.ContainsFunc(own, netip.Addr.Is4):
		cfg.Listen, cfg.Local = netip.IPv6Unspecified(), netip.IPv6Loopback()
	default:
		cfg.Listen, cfg.Local = netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{127, 0, 0, 1})
		cfg.DualStack = slices.ContainsFunc(own, netip.Addr.Is6)
	}
}

func (r *resolver) addr(s setting) (netip.Addr, bool) {
	if s.value == "" {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s.value)
	if err != nil || a.Zone() != "" {
		r.errorf("%s=%q is not an IP address", s.from, s.value)
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}
