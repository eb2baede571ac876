package registry

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// AddressConflict is an address that two Services have. Proxies use it for one of
// them: for the Service of their own cluster, else for the oldest.
type AddressConflict struct {
	Address netip.Addr `json:"address"`
	// Used is the host of the Service that proxies of these clusters use the address
	// for, and Unused the host of the other one.
	Used     string           `json:"used"`
	Unused   string           `json:"unused"`
	Clusters []mesh.ClusterID `json:"clusters"`
}

func (c AddressConflict) String() string {
	return fmt.Sprintf("address %s: proxies of %v use it for %s, not for %s", c.Address, c.Clusters, c.Used, c.Unused)
}

// AddressConflicts returns all conflicts, by address and hosts. The result must not
// be changed.
func (r *Registry) AddressConflicts() []AddressConflict {
	if list := r.conflicts.Load(); list != nil {
		return *list
	}
	return nil
}

// holder is a Service of one cluster that has an address.
type holder struct {
	cluster mesh.ClusterID
	name    name
}

// hold enters the addresses of a Service of a cluster, which may be nil.
func (s *state) hold(c *clusterState, n name, svc *snapshot.Service) {
	if svc == nil {
		return
	}
	for _, vip := range svc.VIPs {
		s.vips[vip] = append(s.vips[vip], holder{c.id, n})
		s.heldChanged(c, vip)
	}
}

// release takes the addresses of a Service of a cluster, which may be nil, out.
func (s *state) release(c *clusterState, n name, svc *snapshot.Service) {
	if svc == nil {
		return
	}
	for _, vip := range svc.VIPs {
		i := slices.Index(s.vips[vip], holder{c.id, n})
		if s.vips[vip] = slices.Delete(s.vips[vip], i, i+1); len(s.vips[vip]) == 0 {
			delete(s.vips, vip)
		}
		s.heldChanged(c, vip)
	}
}

// heldChanged marks what depends on who has an address of a cluster.
func (s *state) heldChanged(c *clusterState, vip netip.Addr) {
	s.dirty.addresses.add(vip)
	if c.remote {
		return
	}
	s.touchRemoteAt(vip)
	if _, held := s.heldGateways[vip]; held {
		s.dirty.gateways = true
	}
}

// isLocalVIP reports whether a Service of the local cluster has the address.
func (s *state) isLocalVIP(addr netip.Addr) bool {
	return slices.ContainsFunc(s.vips[addr], func(h holder) bool { return h.cluster == s.cfg.Local })
}

// sharers marks the services that have one of the dirty addresses.
func (b *builder) sharers() {
	for vip := range b.dirty.addresses {
		for _, h := range b.vips[vip] {
			b.dirty.services.add(h.name)
		}
	}
}

// usedAt is an address as proxies of one cluster use it.
type usedAt struct {
	address netip.Addr
	cluster mesh.ClusterID
}

// contested returns the parts of a service for proxies of those clusters that use
// some of its addresses for another service, and notes the conflicts.
func (b *builder) contested(n name, svc *snapshot.MeshService) []snapshot.ClusterService {
	var out []snapshot.ClusterService
	var conflicts []AddressConflict
	if b.sharesAddress(n, svc) {
		for _, c := range b.ordered() {
			part := svc.For(c.id)
			left := slices.DeleteFunc(slices.Clone(part.VIPs), func(vip netip.Addr) bool {
				user := b.user(usedAt{vip, c.id})
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

// conflict adds a cluster to a conflict of the list, or the conflict.
func (b *builder) conflict(list []AddressConflict, c AddressConflict, id mesh.ClusterID) []AddressConflict {
	i := slices.IndexFunc(list, c.same)
	if i < 0 {
		i, list = len(list), append(list, c)
	}
	list[i].Clusters = append(list[i].Clusters, id)
	return list
}

// same reports whether two conflicts are of one address and the same services.
func (c AddressConflict) same(other AddressConflict) bool {
	return c.Address == other.Address && c.Used == other.Used && c.Unused == other.Unused
}

// sharesAddress reports whether another service has an address of this one,
// in any cluster.
func (b *builder) sharesAddress(n name, svc *snapshot.MeshService) bool {
	for i := range svc.Clusters {
		for _, vip := range svc.Clusters[i].VIPs {
			if slices.ContainsFunc(b.vips[vip], func(h holder) bool { return h.name != n }) {
				return true
			}
		}
	}
	return false
}

// user returns the service that proxies of a cluster use an address for: one of
// their own cluster, else of those that only other clusters have, the oldest.
func (b *builder) user(at usedAt) name {
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
		b.users = make(map[usedAt]name)
	}
	b.users[at] = best
	return best
}

// uses reports whether the Service of a cluster decides about the addresses of its
// name for proxies of a cluster: that of their own, else that of the first by id.
func (b *builder) uses(h holder, at usedAt) bool {
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

// compareUsers orders two services by which comes first for an address; own are
// those of the proxies' cluster.
func (b *builder) compareUsers(own map[name]*snapshot.Service, x, y name) int {
	if (own[x] != nil) != (own[y] != nil) {
		if own[x] != nil {
			return -1
		}
		return 1
	}
	return cmp.Or(b.created(x).Compare(b.created(y)), cmp.Compare(x.name, y.name), cmp.Compare(x.namespace, y.namespace))
}

// maxConflicts is how many new conflicts of one change are logged.
const maxConflicts = 16

// noteConflicts replaces the conflicts that a service loses.
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
			b.cfg.Log.Warn("two services have one address: proxies use it for the first alone", "address", c.Address.String(),
				"first", c.Used, "second", c.Unused, "proxies_of", c.Clusters)
		}
	}
	if b.conflicts[n] = list; len(list) == 0 {
		delete(b.conflicts, n)
	}
}

// listConflicts makes the list that is published.
func (b *builder) listConflicts() {
	if !b.conflictsChanged {
		return
	}
	if more := b.newConflicts - maxConflicts; more > 0 {
		b.cfg.Log.Warn("more services have the address of another one: see the status page clusters", "more", more)
	}
	var list []AddressConflict
	for _, conflicts := range b.conflicts {
		list = append(list, conflicts...)
	}
	slices.SortFunc(list, func(x, y AddressConflict) int {
		return cmp.Or(x.Address.Compare(y.Address), cmp.Compare(x.Used, y.Used), cmp.Compare(x.Unused, y.Unused))
	})
	b.conflictList = list
}

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
