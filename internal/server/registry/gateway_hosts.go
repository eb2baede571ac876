package registry

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
)

// maxHosts is the number of host names of gateways that are resolved for one cluster.
const maxHosts = maxGateways

// hostNames returns the host names to resolve, sorted.
func (f *foundGateways) hostNames() []string {
	var out []string
	for _, names := range f.named {
		sorted := slices.Sorted(maps.Keys(names))
		out = append(out, sorted[:min(len(sorted), maxHosts)]...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// addressesOf returns the address of a gateway, or the addresses of its host name. It
// refuses a gateway without a usable address.
func (s *gatewaySearch) addressesOf(g *Gateway) []netip.Addr {
	if addr, err := netip.ParseAddr(g.Address); err == nil {
		return []netip.Addr{addr.Unmap()}
	}
	c, host := g.Cluster, strings.ToLower(g.Address)
	switch {
	case !mesh.IsDNSName(strings.TrimSuffix(host, ".")):
		s.refuse(g, refusedNotHost)
		return nil
	case s.cfg.Resolve == nil:
		s.refuse(g, refusedNotResolved)
		return nil
	}
	if s.named[c] == nil {
		s.named[c] = set[string]{}
	}
	s.named[c].add(host)
	addresses, asked := s.hosts.Get(s.r, host)
	if len(addresses) == 0 {
		s.refuse(g, refusedUnknownHost)
		if !asked {
			s.faultsOf(g.Network).pending = true
		}
		return nil
	}
	var out []netip.Addr
	for _, addr := range addresses {
		// Remote clusters, and the owners of their DNS zones, are not trusted.
		if kind := mesh.AddressKindOf(addr); kind != mesh.AddressOrdinary && c != s.cfg.Local {
			s.refuse(g, refusedAddressKind(addr, kind))
			continue
		}
		out = append(out, addr)
	}
	return out
}
