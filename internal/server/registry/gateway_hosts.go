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

// addressesOf returns the address in text, or the addresses of the host name in text,
// for a gateway of a cluster. It refuses a text that gives no usable address.
func (s *gatewaySearch) addressesOf(c mesh.ClusterID, network mesh.NetworkID, text string) []netip.Addr {
	if addr, err := netip.ParseAddr(text); err == nil {
		return []netip.Addr{addr.Unmap()}
	}
	refuse := func(reason string) { s.refuse(c, RefusedGateway{network, text, reason}) }
	host := strings.ToLower(text)
	switch {
	case !mesh.IsDNSName(strings.TrimSuffix(host, ".")):
		refuse(refusedNotHost)
		return nil
	case s.cfg.Resolve == nil:
		refuse(refusedNotResolved)
		return nil
	}
	if s.named[c] == nil {
		s.named[c] = set[string]{}
	}
	s.named[c].add(host)
	addresses, asked := s.hosts.Get(s.r, host)
	if len(addresses) == 0 {
		refuse(refusedUnknownHost)
		if !asked {
			s.faultsOf(network).pending = true
		}
		return nil
	}
	var out []netip.Addr
	for _, addr := range addresses {
		// Remote clusters, and the owners of their DNS zones, are not trusted.
		if kind := mesh.AddressKindOf(addr); kind != mesh.AddressOrdinary && c != s.cfg.Local {
			refuse(refusedAddressKind(addr, kind))
			continue
		}
		out = append(out, addr)
	}
	return out
}
