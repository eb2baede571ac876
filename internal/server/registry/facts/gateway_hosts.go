package facts

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
)

// MaxHosts is the number of host names of gateways that are resolved for one cluster.
const MaxHosts = MaxGateways

// HostNames returns the host names to resolve, sorted.
func (f *foundGateways) HostNames() []string {
	var out []string
	for _, names := range f.named {
		out = append(out, inTurns(names, MaxHosts, strings.Compare)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// inTurns returns at most a number of the items of namespaces: first those of the namespace "", in
// order, then one of each other namespace in turn, so that no namespace leaves out those of another.
func inTurns[T comparable](of map[string]Set[T], most int, compare func(T, T) int) []T {
	turn := map[T]int{}
	for namespace, items := range of {
		for i, item := range slices.SortedFunc(maps.Keys(items), compare) {
			if namespace != "" {
				i++
			} else {
				i = 0
			}
			if before, ok := turn[item]; !ok || i < before {
				turn[item] = i
			}
		}
	}
	all := slices.SortedFunc(maps.Keys(turn), func(x, y T) int { return cmp.Or(cmp.Compare(turn[x], turn[y]), compare(x, y)) })
	return all[:min(len(all), most)]
}

// ofOperators returns a namespace, or "" for the system namespace, for inTurns.
func (s *gatewaySearch) ofOperators(namespace string) string {
	if namespace == s.Cfg.SystemNamespace {
		return ""
	}
	return namespace
}

// addressesOf returns the address of a gateway of a namespace, or the addresses of its host name. It
// refuses a gateway without a usable address.
func (s *gatewaySearch) addressesOf(g *Gateway, namespace string) []netip.Addr {
	if addr, err := netip.ParseAddr(g.Address); err == nil {
		return []netip.Addr{addr.Unmap()}
	}
	c, host := g.Cluster, strings.ToLower(g.Address)
	switch {
	case !mesh.IsDNSName(strings.TrimSuffix(host, ".")):
		s.refuse(g, refusedNotHost)
		return nil
	case !s.Cfg.ResolvesHosts:
		s.refuse(g, refusedNotResolved)
		return nil
	}
	if s.named[c] == nil {
		s.named[c] = map[string]Set[string]{}
	}
	if namespace = s.ofOperators(namespace); s.named[c][namespace] == nil {
		s.named[c][namespace] = Set[string]{}
	}
	s.named[c][namespace].Add(host)
	addresses, asked := s.Hosts.Get(s.r, host)
	if len(addresses) == 0 {
		s.refuse(g, RefusedUnknownHost)
		if !asked {
			s.faultsOf(g.Network).pending = true
		}
		return nil
	}
	var out []netip.Addr
	for _, addr := range addresses {
		// Remote clusters, and the owners of their DNS zones, are not trusted.
		if kind := mesh.AddressKindOf(addr); kind != mesh.AddressOrdinary && c != s.Cfg.Local {
			s.refuse(g, refusedAddressKind(addr, kind))
			continue
		}
		out = append(out, addr)
	}
	return out
}
