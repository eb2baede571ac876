package registry

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// maxGateways is how many addresses of gateways one cluster may have.
const maxGateways = 64

// touchRemoteAt marks the endpoints of an address that other clusters have.
func (s *state) touchRemoteAt(addr netip.Addr) {
	for _, c := range s.clusters {
		if c.remote {
			s.touchAll(c.byIP[addr])
			for n := range c.entriesAt[addr] {
				s.touchEntry(c, c.entries[n])
			}
		}
	}
}

// takesLocal reports whether an endpoint of another cluster, where the local
// one would reach it directly, has the address of a local service: what is sent
// to it would end at that service. Proxies whose network is not known reach a
// network without gateways directly, too.
func (b *builder) takesLocal(c *clusterState, addr netip.Addr, network mesh.NetworkID) bool {
	return c.remote && b.isLocalVIP(addr) &&
		(network == b.next.Mesh.Networks[b.cfg.Local] || len(b.next.Gateways.For(network, c.id)) == 0)
}

// withoutHostile leaves out the gateways of other clusters that have addresses
// of local services, and those that are more than a cluster may have.
func (b *builder) withoutHostile(found set[snapshot.NetworkGateway]) []snapshot.NetworkGateway {
	b.heldGateways = set[netip.Addr]{}
	number := make(map[mesh.ClusterID]int)
	var out []snapshot.NetworkGateway
	sorted := slices.CompactFunc(slices.SortedFunc(maps.Keys(found), compareGateways), func(x, y snapshot.NetworkGateway) bool {
		x.Namespace = y.Namespace
		return x == y // a Service and a Gateway of two namespaces may give one address
	})
	for _, g := range sorted {
		b.heldGateways.add(g.Address)
		remote := g.Cluster != "" && g.Cluster != b.cfg.Local
		if remote && b.isLocalVIP(g.Address) {
			b.cfg.Log.Warn("gateway of another cluster has the address of a service of this one: it is not used",
				"cluster", g.Cluster, "network", g.Network, "address", g.Address.String())
			b.refuseFound(g, "it is the address of a service of the own cluster")
			continue
		}
		if number[g.Cluster]++; remote && number[g.Cluster] > maxGateways {
			b.refuseFound(g, fmt.Sprintf("the cluster has more than %d addresses of gateways", maxGateways))
			continue
		}
		out = append(out, g)
	}
	for _, id := range slices.Sorted(maps.Keys(number)) {
		if n := number[id]; n > maxGateways && id != "" && id != b.cfg.Local {
			b.cfg.Log.Warn("cluster has too many addresses of gateways: the first by network and address are used",
				"cluster", id, "addresses", n, "used", maxGateways)
		}
	}
	return out
}
