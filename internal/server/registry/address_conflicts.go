package registry

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// AddressConflict is an address of two Services. Proxies use it for one of them: the
// Service in their own cluster, else the oldest.
type AddressConflict struct {
	Address netip.Addr `json:"address"`
	// Used is the host for which proxies in Clusters use the address, and Unused the
	// host of the other Service.
	Used     string           `json:"used"`
	Unused   string           `json:"unused"`
	Clusters []mesh.ClusterID `json:"clusters"`
}

func (c AddressConflict) String() string {
	return fmt.Sprintf("address %s: proxies of %v use it for %s, not for %s", c.Address, c.Clusters, c.Used, c.Unused)
}

// AddressConflicts returns all conflicts, sorted by address and hosts. The caller must
// not change the result.
func (r *Registry) AddressConflicts() []AddressConflict { return r.report.Load().conflicts }

// vipOwner is a Service of one cluster with a cluster IP.
type vipOwner struct {
	cluster mesh.ClusterID
	name    name
}

// addVIPs indexes the cluster IPs of a Service, which may be nil.
func (s *state) addVIPs(c *clusterState, n name, svc *snapshot.Service) {
	if svc == nil {
		return
	}
	for _, vip := range svc.VIPs {
		s.vips[vip] = append(s.vips[vip], vipOwner{c.id, n})
		s.vipChanged(c, vip)
	}
}

// removeVIPs removes the cluster IPs of a Service, which may be nil, from the index.
func (s *state) removeVIPs(c *clusterState, n name, svc *snapshot.Service) {
	if svc == nil {
		return
	}
	for _, vip := range svc.VIPs {
		i := slices.Index(s.vips[vip], vipOwner{c.id, n})
		if s.vips[vip] = slices.Delete(s.vips[vip], i, i+1); len(s.vips[vip]) == 0 {
			delete(s.vips, vip)
		}
		s.vipChanged(c, vip)
	}
}

// vipChanged marks the facts that depend on the owners of a cluster IP in a cluster.
func (s *state) vipChanged(c *clusterState, vip netip.Addr) {
	s.dirty.addresses.add(vip)
	if c.remote {
		return
	}
	s.markRemoteAt(vip)
	if _, held := s.gatewayIPs[vip]; held {
		s.dirty.gateways = true
	}
}

// isLocalVIP reports whether a Service of the local cluster has the address.
func (s *state) isLocalVIP(addr netip.Addr) bool {
	return slices.ContainsFunc(s.vips[addr], func(o vipOwner) bool { return o.cluster == s.cfg.Local })
}

// markSharers marks the services with one of the dirty addresses.
func (b *builder) markSharers() {
	for vip := range b.dirty.addresses {
		for _, h := range b.vips[vip] {
			b.dirty.services.add(h.name)
		}
	}
}

// vipUse is the use of an address by the proxies of a cluster.
type vipUse struct {
	address netip.Addr
	cluster mesh.ClusterID
}

// contested returns the parts of a service for the clusters whose proxies use some of
// its addresses for another service. It notes the conflicts.
func (b *builder) contested(n name, svc *snapshot.MeshService) []snapshot.ClusterService {
	var out []snapshot.ClusterService
	var conflicts []AddressConflict
	if b.sharesAddress(n, svc) {
		for _, c := range b.order {
			part := svc.For(c.id)
			left := slices.DeleteFunc(slices.Clone(part.VIPs), func(vip netip.Addr) bool {
				user := b.user(vipUse{vip, c.id})
				if user != n {
					conflicts = b.conflict(conflicts, AddressConflict{
						Address: vip, Used: mesh.ServiceHost(user.name, user.namespace, b.next.Mesh.Domain), Unused: svc.Host,
					}, c.id)
				}
				return user != n
			})
			if len(left) < len(part.VIPs) {
				out = append(out, snapshot.ClusterService{Cluster: c.id, VIPs: left})
			}
		}
	}
	b.noteConflicts(n, conflicts)
	return out
}

// conflict adds a cluster to the conflict c of the list, and first c if it is missing.
func (b *builder) conflict(list []AddressConflict, c AddressConflict, id mesh.ClusterID) []AddressConflict {
	i := slices.IndexFunc(list, c.same)
	if i < 0 {
		i, list = len(list), append(list, c)
	}
	list[i].Clusters = append(list[i].Clusters, id)
	return list
}

// same reports whether two conflicts have the same address and services.
func (c AddressConflict) same(other AddressConflict) bool {
	return c.Address == other.Address && c.Used == other.Used && c.Unused == other.Unused
}

// sharesAddress reports whether another service has an address of this one in any
// cluster.
func (b *builder) sharesAddress(n name, svc *snapshot.MeshService) bool {
	for i := range svc.Clusters {
		for _, vip := range svc.Clusters[i].VIPs {
			if slices.ContainsFunc(b.vips[vip], func(h vipOwner) bool { return h.name != n }) {
				return true
			}
		}
	}
	return false
}

// user returns the service for which proxies of a cluster use an address: the oldest
// with a Service in their own cluster, else the oldest.
func (b *builder) user(at vipUse) name {
	if n, known := b.users[at]; known {
		return n
	}
	own := b.clusters[at.cluster].services
	var best name
	for _, h := range b.vips[at.address] {
		if !b.uses(h, at) || best != (name{}) && b.compareUsers(own, best, h.name) <= 0 {
			continue
		}
		best = h.name
	}
	if b.users == nil {
		b.users = make(map[vipUse]name)
	}
	b.users[at] = best
	return best
}

// uses reports whether a Service decides the addresses of its service for proxies of a
// cluster. The Service in their own cluster does, else the first one by cluster id.
func (b *builder) uses(h vipOwner, at vipUse) bool {
	if b.clusters[at.cluster].services[h.name] != nil {
		return h.cluster == at.cluster
	}
	for id, c := range b.clusters {
		if id < h.cluster && c.services[h.name] != nil {
			return false
		}
	}
	return true
}

// compareUsers compares two services by precedence for an address. own holds the
// Services of the proxies' cluster.
func (b *builder) compareUsers(own map[name]*snapshot.Service, x, y name) int {
	if (own[x] != nil) != (own[y] != nil) {
		if own[x] != nil {
			return -1
		}
		return 1
	}
	return cmp.Or(b.decisive(x).Created.Compare(b.decisive(y).Created), cmp.Compare(x.name, y.name), cmp.Compare(x.namespace, y.namespace))
}

// maxConflicts is the number of new conflicts of one change that are logged.
const maxConflicts = 16

// noteConflicts sets the conflicts that a service loses.
func (b *builder) noteConflicts(n name, list []AddressConflict) {
	old := b.conflicts[n]
	if len(old) == 0 && len(list) == 0 {
		return
	}
	b.conflictsChanged = true
	for _, c := range list {
		if slices.ContainsFunc(old, c.same) {
			continue
		}
		if b.newConflicts++; b.newConflicts <= maxConflicts {
			b.cfg.Log.Warn("two services have one address: proxies use it for the first one only", "address", c.Address.String(),
				"first", c.Used, "second", c.Unused, "proxies_of", c.Clusters)
		}
	}
	if b.conflicts[n] = list; len(list) == 0 {
		delete(b.conflicts, n)
	}
}

// listConflicts updates the published list.
func (b *builder) listConflicts() {
	if !b.conflictsChanged {
		return
	}
	if more := b.newConflicts - maxConflicts; more > 0 {
		b.cfg.Log.Warn("more services share addresses: see the status page clusters", "more", more)
	}
	var list []AddressConflict
	for _, conflicts := range b.conflicts {
		list = append(list, conflicts...)
	}
	slices.SortFunc(list, func(x, y AddressConflict) int {
		return cmp.Or(x.Address.Compare(y.Address), cmp.Compare(x.Used, y.Used), cmp.Compare(x.Unused, y.Unused))
	})
	b.report.conflicts = list
}

// markRemoteAt marks the endpoints of remote clusters at an address.
func (s *state) markRemoteAt(addr netip.Addr) {
	for _, c := range s.clusters {
		if c.remote {
			s.markEndpoints(c.byIP[addr])
			for n := range c.entriesAt[addr] {
				s.markServicesOf(c, c.entries[n])
			}
		}
	}
}

// takesLocalAddress reports whether an endpoint of a remote cluster has the cluster IP
// of a local Service, and proxies would call it directly: the calls would reach the
// local Service. Proxies of an unknown network also call a network without gateways
// directly.
func (b *builder) takesLocalAddress(c *clusterState, addr netip.Addr, network mesh.NetworkID) bool {
	return c.remote && b.isLocalVIP(addr) &&
		(network == b.next.Mesh.Networks[b.cfg.Local] || len(b.next.Gateways.For(network, c.id)) == 0)
}
