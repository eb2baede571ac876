package facts

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// AddressConflict is an address of two Services, of a Service and a ServiceEntry, or of a pod and a
// Service of another cluster. Proxies use it for one of them: the Service or pod in their own cluster,
// else the oldest Service.
type AddressConflict struct {
	Address netip.Addr `json:"address"`
	// Used is the host for which proxies in Clusters use the address, or "a pod", and Unused
	// the host of the other object.
	Used     string           `json:"used"`
	Unused   string           `json:"unused"`
	Clusters []mesh.ClusterID `json:"clusters"`
}

func (c AddressConflict) String() string {
	return fmt.Sprintf("address %s: proxies of %v use it for %s, not for %s", c.Address, c.Clusters, c.Used, c.Unused)
}

// same reports whether two conflicts have the same address and services.
func (c AddressConflict) same(other AddressConflict) bool {
	return c.Address == other.Address && c.Used == other.Used && c.Unused == other.Unused
}

func (c AddressConflict) equal(other AddressConflict) bool {
	return c.same(other) && slices.Equal(c.Clusters, other.Clusters)
}

func equalConflicts(a, b []AddressConflict) bool {
	return slices.EqualFunc(a, b, AddressConflict.equal)
}

// usersOf returns the Service, by host, for which the proxies of each cluster use an address that
// other Services or ServiceEntries have, too. It returns false if only one Service has the address.
func (t *Tables) usersOf(r *derive.Reads, vip netip.Addr) (map[mesh.ClusterID]string, bool) {
	owners := values(t.servicesAt.Lookup(r, vip))
	first := mesh.ServiceHost(owners[0].Name, owners[0].Namespace, mesh.DefaultDomain)
	shared := slices.ContainsFunc(owners, func(s *snapshot.Service) bool { return s.Name != owners[0].Name || s.Namespace != owners[0].Namespace })
	for _, e := range t.EntriesAt.Lookup(r, vip) {
		shared = shared || slices.ContainsFunc(e.Hosts, func(host string) bool { return host != first })
	}
	if !shared {
		return nil, false
	}
	candidates := make([]candidate, len(owners))
	for i, s := range owners {
		host := mesh.ServiceHost(s.Name, s.Namespace, mesh.DefaultDomain)
		candidates[i] = candidate{s, host, t.decisive(r, host), values(t.servicesOf.Lookup(r, host))}
	}
	slices.SortFunc(candidates, candidate.compare)
	out := make(map[mesh.ClusterID]string)
	for _, c := range t.ordered(r) {
		user := ""
		for _, own := range []bool{true, false} { // a service of the proxies' cluster wins
			for _, o := range candidates {
				if user == "" && o.has(c) == own && o.decides(c) {
					user = o.host
				}
			}
		}
		out[c] = user
	}
	return out, true
}

// candidate is a Service with an address that several services have.
type candidate struct {
	service *snapshot.Service
	host    string
	first   *snapshot.Service   // the decisive one of the host
	all     []*snapshot.Service // of the host, sorted by cluster
}

// compare compares two services by precedence: the older one wins.
func (o candidate) compare(other candidate) int {
	return cmp.Or(o.first.Created.Compare(other.first.Created), cmp.Compare(o.service.Name, other.service.Name),
		cmp.Compare(o.service.Namespace, other.service.Namespace))
}

// has reports whether a cluster has a Service of the host.
func (o candidate) has(c mesh.ClusterID) bool {
	return slices.ContainsFunc(o.all, func(s *snapshot.Service) bool { return s.Cluster == c })
}

// decides reports whether the Service decides the addresses of the host for the proxies of
// a cluster. The Service in their own cluster does, else the first one by cluster id.
func (o candidate) decides(c mesh.ClusterID) bool {
	if o.has(c) {
		return o.service.Cluster == c
	}
	return o.service.Cluster == o.all[0].Cluster
}

// contested returns the parts of a service for the clusters whose proxies use some of
// its addresses for another service, or for a pod.
func (t *Tables) contested(r *derive.Reads, svc *snapshot.MeshService) []snapshot.ClusterService {
	shared := false
	for i := range svc.Clusters {
		for _, vip := range svc.Clusters[i].VIPs {
			_, several := t.vipUsers.Get(r, vip)
			shared = shared || several || t.isOfPod(r, svc, svc.Clusters[i].Cluster, vip)
		}
	}
	if !shared {
		return nil
	}
	var out []snapshot.ClusterService
	for _, c := range t.ordered(r) {
		part := svc.For(c)
		left := slices.DeleteFunc(slices.Clone(part.VIPs), func(vip netip.Addr) bool {
			users, several := t.vipUsers.Get(r, vip)
			return several && users[c] != svc.Host || c == t.Cfg.Local && t.isOfPod(r, svc, part.Cluster, vip)
		})
		if len(left) < len(part.VIPs) {
			out = append(out, snapshot.ClusterService{Cluster: c, VIPs: left})
		}
	}
	return out
}

// isOfPod reports whether a pod of the local cluster has an address of a Service of another cluster.
func (t *Tables) isOfPod(r *derive.Reads, svc *snapshot.MeshService, c mesh.ClusterID, vip netip.Addr) bool {
	return !svc.Entry && c != t.Cfg.Local && t.podIn(r, t.Cfg.Local, vip) != nil
}

// findConflicts returns the conflicts that services lose, sorted by address and hosts.
func (t *Tables) findConflicts(r *derive.Reads) []AddressConflict {
	var out []AddressConflict
	for _, svc := range t.special.Lookup(r, contestedService) {
		first := len(out)
		for i := range svc.Contested {
			c := svc.Contested[i].Cluster
			part := cmp.Or(svc.In(c), &svc.Clusters[0])
			for _, vip := range part.VIPs {
				users, _ := t.vipUsers.Get(r, vip)
				if slices.Contains(svc.Contested[i].VIPs, vip) {
					continue
				}
				conflict := AddressConflict{Address: vip, Used: cmp.Or(users[c], "a pod"), Unused: svc.Host}
				at := slices.IndexFunc(out[first:], conflict.same) + first
				if at < first {
					at, out = len(out), append(out, conflict)
				}
				out[at].Clusters = append(out[at].Clusters, c)
			}
		}
	}
	slices.SortFunc(out, func(x, y AddressConflict) int {
		return cmp.Or(x.Address.Compare(y.Address), cmp.Compare(x.Used, y.Used), cmp.Compare(x.Unused, y.Unused))
	})
	return out
}
