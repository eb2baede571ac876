package registry

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// definition is a service of a host: the Services of Kubernetes in the order of precedence
// of their clusters, or a ServiceEntry.
type definition struct {
	services []*snapshot.Service
	entry    *snapshot.ServiceEntry
	exportTo []string // nil means all namespaces
}

// meta returns the metadata of the object that decides.
func (d *definition) meta() *snapshot.Meta {
	if d.entry != nil {
		return &d.entry.Meta
	}
	return &d.services[0].Meta
}

// serviceKeys indexes a ServiceEntry by the keys of services that it may define, see
// MeshService.Key.
func serviceKeys(into []string, k objectKey, e *snapshot.ServiceEntry) []string {
	for _, host := range e.Hosts {
		into = append(into, host, snapshot.FurtherKey(host, k.namespace))
	}
	return into
}

// definitions returns the services of a host in the order of precedence, at most one for
// each namespace: the Service of Kubernetes, then ServiceEntries, oldest first.
func (t *tables) definitions(r *derive.Reads, host string) []definition {
	var out []definition
	if services := t.servicesNamed(r, host); len(services) > 0 {
		to := t.exportTo(r, services[0].Cluster, services[0].ExportTo)
		out = append(out, definition{services: services, exportTo: to})
		if len(to) == 0 || slices.Contains(to, "*") {
			return out // no namespace sees a ServiceEntry
		}
	}
	entries := values(t.entriesOf.Lookup(r, host))
	slices.SortFunc(entries, compareAge)
	for _, e := range entries {
		if !slices.ContainsFunc(out, func(d definition) bool { return d.meta().Namespace == e.Namespace }) {
			out = append(out, definition{entry: e, exportTo: t.entryExportTo(r, e)})
		}
	}
	return out
}

// define returns the definition of the service with a key, with its rivals.
func (t *tables) define(r *derive.Reads, key string) (d definition, host string, rivals []snapshot.Rival, ok bool) {
	host, namespace, further := strings.Cut(key, "/")
	list := t.definitions(r, host)
	at := 0
	if further {
		at = max(slices.IndexFunc(list, func(d definition) bool { return d.meta().Namespace == namespace }), 0)
	}
	if len(list) == 0 || further != (at > 0) {
		return definition{}, host, nil, false
	}
	for i := range list {
		if i != at {
			rivals = append(rivals, snapshot.Rival{
				Namespace: list[i].meta().Namespace, ExportTo: list[i].exportTo, Kubernetes: list[i].entry == nil, Earlier: i < at,
			})
		}
	}
	return list[at], host, rivals, true
}

// entryService returns the service of a host of a ServiceEntry.
func (t *tables) entryService(r *derive.Reads, key, host string, d definition) *snapshot.MeshService {
	e := d.entry
	j, _ := t.joins.Get(r, key)
	root, own := t.mtlsPolicies(r, e.Namespace)
	out := &snapshot.MeshService{
		Key: key, Host: host, Name: host, Namespace: e.Namespace, Created: e.Created,
		Entry: true, External: e.External, Resolution: e.Resolution, CIDRs: e.CIDRs, Ports: e.Ports, ExportTo: d.exportTo,
		Plaintext: e.External || snapshot.AllPlaintext(root, own),
		Clusters:  []snapshot.ClusterService{{Cluster: e.Cluster, VIPs: e.VIPs, Selector: e.Selector, Ports: e.Ports, ExportTo: d.exportTo}},
	}
	if e.Allocate {
		out.Allocated, _ = t.allocated.Get(r, host)
	}
	if j == nil {
		return out
	}
	if e.Resolution.DNS() {
		out.Targets = j.Endpoints
	}
	if !e.External {
		out.Accounts = withNames(j.backends.accounts, e.SubjectAltNames)
		out.AllTLS, out.AllDirectTLS, out.PlainPorts = j.backends.allTLS, j.backends.allDirectTLS, j.backends.plainPorts
	}
	return out
}

// accounts adds the subject alternative names of a Service's host to the accounts of its
// pods. Only ServiceEntries of its own namespace give it names: another namespace must not
// decide which servers its clients accept.
func (t *tables) accounts(r *derive.Reads, host, namespace string, ofPods []string) []string {
	for _, e := range t.entriesOf.Lookup(r, snapshot.FurtherKey(host, namespace)) {
		if !e.External {
			ofPods = withNames(ofPods, e.SubjectAltNames)
		}
	}
	return ofPods
}

// withNames returns the union of sorted accounts and further names, sorted.
func withNames(accounts, names []string) []string {
	if len(names) == 0 {
		return accounts
	}
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(accounts, names))))
}

// collectEntry adds the endpoints of a host of a ServiceEntry.
func (j *join) collectEntry(host string, e *snapshot.ServiceEntry) {
	j.enter(e.Cluster)
	b := &j.out.backends
	switch {
	case e.Resolution == snapshot.ByDestination:
		return
	case len(e.Selector) > 0:
		for _, w := range j.selectedBy(j.r, e.Cluster, e.Namespace, e.Selector) {
			j.entry(e.Ports, e.Resolution, w)
		}
		for _, p := range j.podsIn.Lookup(j.r, e.Namespace) {
			if snapshot.Selects(e.Selector, p.Labels) {
				j.pod(e.Ports, p)
			}
		}
		return
	case e.Resolution.DNS() && len(e.Endpoints) == 0:
		for i := range e.Ports {
			j.add(snapshot.Endpoint{Target: host, Cluster: e.Cluster}, e.Ports[i].Name, cmp.Or(e.Ports[i].Target, e.Ports[i].Number), nil)
		}
		return
	}
	for i := range e.Endpoints {
		j.listed(e, &e.Endpoints[i])
		b.selectorless = true
	}
}

// listed adds an endpoint that a ServiceEntry lists, one for each port.
func (j *join) listed(entry *snapshot.ServiceEntry, listed *snapshot.EntryEndpoint) {
	w := &listed.Workload
	var address netip.Addr
	if len(w.IPs) > 0 {
		address = w.IPs[0]
	}
	e := j.endpoint(&snapshot.SliceEndpoint{Ready: true}, w, address)
	e.Target, e.Pod, e.Locality = listed.Target, "", cmp.Or(listed.Locality, e.Locality)
	switch {
	case listed.Network != "":
		e.Network = listed.Network
	case entry.External, entry.Resolution.DNS(), !address.IsValid():
		e.Network = "" // every proxy reaches it directly
	}
	if listed.Weight > 1 {
		e.Weight = listed.Weight * max(e.Weight, 1)
	}
	e.TLSMode = e.TLSMode && !entry.External
	for _, pod := range j.podsAt.Lookup(j.r, clusterAddress{j.cluster, address}) {
		e.Pod = snapshot.PodKey{Cluster: j.cluster, Namespace: pod.Namespace, Name: pod.Name}.String()
		break
	}
	for i := range entry.Ports {
		port := &entry.Ports[i]
		if number := w.TargetPort(port); number != 0 {
			j.add(e, port.Name, number, w)
		}
	}
	if w.ServiceAccount != "" && !entry.External {
		j.account(w)
	}
}

// pod adds the endpoints of a pod, one for each address and port.
func (j *join) pod(ports []snapshot.ServicePort, pod *snapshot.Pod) {
	for _, address := range pod.IPs {
		e := j.endpoint(&snapshot.SliceEndpoint{Ready: !pod.Unready}, pod, address)
		for i := range ports {
			if number := pod.TargetPort(&ports[i]); number != 0 {
				j.add(e, ports[i].Name, number, pod)
			}
		}
	}
	if pod.ServiceAccount != "" {
		j.account(pod)
	}
}

// The ranges of allocated addresses, as in Istio: 240.240.0.0/16 and 2001:2::/48.
const allocatableAddresses = 1<<16 - 2 // without the first and the last one

func allocatable(n uint32) []netip.Addr {
	high, low := byte((n+1)>>8), byte(n+1)
	return []netip.Addr{
		netip.AddrFrom4([4]byte{240, 240, high, low}),
		netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 3: 0x02, 14: high, 15: low}),
	}
}

// allocate returns the addresses of the hosts that need one. Hosts keep the addresses in
// the status of their ServiceEntry. The others get an address by the hash of their name,
// or the next free one; the host of the oldest ServiceEntry chooses first, so that later
// ones do not change its address.
func (t *tables) allocate(r *derive.Reads) map[string][]netip.Addr {
	out := make(map[string][]netip.Addr)
	taken := make(map[netip.Addr]struct{})
	entries := values(t.allocating.Lookup(r, struct{}{}))
	slices.SortFunc(entries, compareAge)
	for _, e := range entries {
		for _, host := range e.Hosts {
			free := slices.DeleteFunc(slices.Clone(e.Allocated[host]), func(ip netip.Addr) bool {
				_, used := taken[ip]
				return used
			})
			if len(out[host]) > 0 || len(free) == 0 {
				continue
			}
			out[host] = free
			for _, ip := range free {
				taken[ip] = struct{}{}
			}
		}
	}
	for _, e := range entries {
		for _, host := range e.Hosts {
			if len(out[host]) > 0 || strings.HasPrefix(host, "*") {
				continue
			}
			first := hashOf(host)
			for probe := range uint32(allocatableAddresses) {
				ips := allocatable((first + probe) % allocatableAddresses)
				if slices.ContainsFunc(ips, func(ip netip.Addr) bool { _, used := taken[ip]; return used }) {
					continue
				}
				for _, ip := range ips {
					taken[ip] = struct{}{}
				}
				out[host] = ips
				break
			}
		}
	}
	return out
}

// UnwrittenAddresses holds the allocated addresses that the status of a ServiceEntry lacks, by
// host.
type UnwrittenAddresses struct {
	Namespace, Name string
	Hosts           map[string][]netip.Addr
}

func (u UnwrittenAddresses) equal(other UnwrittenAddresses) bool {
	return u.Namespace == other.Namespace && u.Name == other.Name && equalAllocation(u.Hosts, other.Hosts)
}

// UnwrittenAddresses returns the addresses that must be written for hosts to keep them. The
// caller must not change the result.
func (r *Registry) UnwrittenAddresses() []UnwrittenAddresses { return r.report.Load().unwritten }

// findUnwritten returns the addresses of hosts that no ServiceEntry has in its status, each
// for the oldest one.
func (t *tables) findUnwritten(r *derive.Reads) []UnwrittenAddresses {
	entries := values(t.allocating.Lookup(r, struct{}{}))
	slices.SortFunc(entries, compareAge)
	written := set[string]{}
	for _, e := range entries {
		for host := range e.Allocated {
			written.add(host)
		}
	}
	var out []UnwrittenAddresses
	for _, e := range entries {
		u := UnwrittenAddresses{Namespace: e.Namespace, Name: e.Name}
		for _, host := range e.Hosts {
			ips := t.allocation.Get(r)[host]
			if _, done := written[host]; done || len(ips) == 0 {
				continue
			}
			written.add(host)
			if u.Hosts == nil {
				u.Hosts = make(map[string][]netip.Addr)
			}
			u.Hosts[host] = ips
		}
		if u.Hosts != nil {
			out = append(out, u)
		}
	}
	return out
}

// hashOf returns the FNV-1a hash of a host as the number of an allocatable address.
func hashOf(host string) uint32 {
	hash := uint32(2166136261)
	for i := range len(host) {
		hash = (hash ^ uint32(host[i])) * 16777619
	}
	return hash % allocatableAddresses
}

func equalAllocation(a, b map[string][]netip.Addr) bool {
	return maps.EqualFunc(a, b, slices.Equal[[]netip.Addr])
}

// HostConflict is a host that several objects define.
type HostConflict struct {
	Host string `json:"host"`
	// First is the object that proxies use, unless their own namespace has another one or
	// First is not exported to them.
	First string `json:"first"`
	// Others are the other objects, in the order of precedence.
	Others []string `json:"others"`

	losers []snapshot.Key // the keys of Others
}

func (c HostConflict) String() string {
	return "host " + c.Host + ": several objects define it, proxies use " + c.First + " before " + strings.Join(c.Others, ", ")
}

func (c HostConflict) equal(other HostConflict) bool {
	return c.Host == other.Host && c.First == other.First && slices.Equal(c.Others, other.Others)
}

// maxRivals is the number of other objects that a HostConflict names.
const maxRivals = 8

// HostConflicts returns the hosts that several objects define, sorted. The caller must
// not change the result.
func (r *Registry) HostConflicts() []HostConflict { return r.report.Load().hostConflicts }

// hostConflict returns the conflict of a host, if there is one.
func (t *tables) hostConflict(r *derive.Reads, host string) (HostConflict, bool) {
	if strings.Contains(host, "/") {
		return HostConflict{}, false
	}
	entries := values(t.entriesOf.Lookup(r, host))
	slices.SortFunc(entries, compareAge)
	var names []string
	var keys []snapshot.Key
	if s := t.decisive(r, host); s != nil {
		names, keys = append(names, "Service "+s.Namespace+"/"+s.Name), append(keys, s.Key())
	}
	for _, e := range entries[:min(len(entries), maxRivals+1)] {
		names, keys = append(names, "ServiceEntry "+e.Namespace+"/"+e.Name), append(keys, e.Key())
	}
	if len(names) < 2 {
		return HostConflict{}, false
	}
	return HostConflict{host, names[0], names[1:], keys[1:]}, true
}

// logHostConflicts logs the conflicts that were not there before.
func (s *state) logHostConflicts(before, now []HostConflict) {
	logNew(now, func(c HostConflict) bool {
		_, old := slices.BinarySearchFunc(before, c.Host, func(b HostConflict, host string) int { return cmp.Compare(b.Host, host) })
		return old
	}, func(c HostConflict) {
		s.cfg.Log.Warn("several objects define one host: proxies use the first one", "host", c.Host, "first", c.First, "others", c.Others)
	}, func(more int) {
		s.cfg.Log.Warn("more hosts are defined several times", "more", more)
	})
}

// podNamespaces indexes the pods of the local cluster by namespace.
func (t *tables) podNamespaces(into []string, k objectKey, _ *snapshot.Pod) []string {
	if k.cluster == t.cfg.Local {
		into = append(into, k.namespace)
	}
	return into
}

// equalEntryService compares the fields of services that only ServiceEntries set.
func equalEntryService(a, b *snapshot.MeshService) bool {
	return a.Entry == b.Entry && a.External == b.External && a.Resolution == b.Resolution && a.Namespace == b.Namespace &&
		slices.Equal(a.CIDRs, b.CIDRs) && slices.Equal(a.Allocated, b.Allocated) && slices.EqualFunc(a.Rivals, b.Rivals, equalRival) &&
		(a.Targets == b.Targets || a.Targets != nil && b.Targets != nil && equalEndpoints(a.Targets, b.Targets))
}

func equalRival(x, y snapshot.Rival) bool {
	return x.Namespace == y.Namespace && x.Kubernetes == y.Kubernetes && x.Earlier == y.Earlier && slices.Equal(x.ExportTo, y.ExportTo)
}
