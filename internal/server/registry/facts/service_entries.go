package facts

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// definition is a service of a host: the Services of Kubernetes in the order of precedence
// of their clusters, or a ServiceEntry.
type definition struct {
	services []*snapshot.Service
	entry    *snapshot.ServiceEntry
	// more holds younger ServiceEntries of the namespace, with the ports that they share with entry
	// or add to it.
	more []furtherEntry
	// ports holds the ports of entry and of more, each number once.
	ports    []snapshot.ServicePort
	exportTo []string // nil means all namespaces
}

// furtherEntry is a ServiceEntry that is merged into an older one.
type furtherEntry struct {
	// ServiceEntry has only the ports that the service has.
	*snapshot.ServiceEntry
	names []string // of its ports in definition.ports
}

// entryDefinition returns the definition by a ServiceEntry.
func entryDefinition(e *snapshot.ServiceEntry, exportTo []string) definition {
	return definition{entry: e, ports: e.Ports, exportTo: exportTo}
}

// meta returns the metadata of the object that decides.
func (d *definition) meta() *snapshot.Meta {
	if d.entry != nil {
		return &d.entry.Meta
	}
	return &d.services[0].Meta
}

// MaxMergedPorts bounds the ports of a host that several ServiceEntries of a namespace define.
const MaxMergedPorts = 500

// merge adds the ports of a younger ServiceEntry with the same properties, as Istio does. It
// returns false if some port is not added.
func (d *definition) merge(e *snapshot.ServiceEntry) bool {
	first := d.entry
	if first == nil || first.Resolution != e.Resolution || first.External != e.External || !maps.Equal(first.Labels, e.Labels) ||
		!maps.Equal(first.Selector, e.Selector) || !sameExports(first.ExportTo, e.ExportTo) {
		return false
	}
	part := *e
	part.Ports = nil
	next := furtherEntry{ServiceEntry: &part}
	for _, p := range e.Ports {
		if name, ok := d.mergePort(p); ok {
			part.Ports, next.names = append(part.Ports, p), append(next.names, name)
		}
	}
	if len(part.Ports) > 0 {
		d.more = append(d.more, next)
	}
	return len(part.Ports) == len(e.Ports)
}

// mergePort adds a port, unless there is one of its number. It returns the name of the port, and
// false if the port of the number has another protocol.
func (d *definition) mergePort(p snapshot.ServicePort) (string, bool) {
	for _, k := range d.ports {
		if k.Number == p.Number && (k.Protocol == mesh.UDP) == (p.Protocol == mesh.UDP) {
			return k.Name, k.Protocol == p.Protocol
		}
	}
	// Endpoints belong to the name of a port.
	if len(d.ports) >= MaxMergedPorts {
		return "", false
	}
	for slices.ContainsFunc(d.ports, func(k snapshot.ServicePort) bool { return k.Name == p.Name }) {
		p.Name += "-" + strconv.FormatUint(uint64(p.Number), 10)
	}
	d.ports = append(slices.Clip(d.ports), p)
	return p.Name, true
}

// eachEntry calls yield for the ServiceEntries, oldest first, with the names of their ports in
// d.ports.
func (d *definition) eachEntry(yield func(e *snapshot.ServiceEntry, names []string)) {
	yield(d.entry, portNames(d.entry.Ports))
	for _, e := range d.more {
		yield(e.ServiceEntry, e.names)
	}
}

func portNames(ports []snapshot.ServicePort) []string {
	out := make([]string, len(ports))
	for i := range ports {
		out[i] = ports[i].Name
	}
	return out
}

// placesOf returns the places of the ports, if they differ: several ServiceEntries define them, or an
// address is that of a pod, which a headless Service of another namespace has at its ports.
func (t *Tables) placesOf(r *derive.Reads, d definition) []snapshot.PortPlace {
	pods := map[uint32][]netip.Addr{}
	d.eachEntry(func(e *snapshot.ServiceEntry, _ []string) {
		for _, vip := range e.VIPs {
			for host := range t.headlessAt.Lookup(r, vip) {
				s := t.headlessService(r, host)
				if s == nil || s.Namespace == e.Namespace {
					continue
				}
				for i := range s.Ports {
					pods[s.Ports[i].Number] = append(pods[s.Ports[i].Number], vip)
				}
			}
		}
	})
	if len(d.more) == 0 && len(pods) == 0 {
		return nil
	}
	places := d.places()
	for i := range places {
		p := &places[i]
		if taken := pods[p.Number]; len(taken) > 0 {
			p.VIPs = slices.DeleteFunc(slices.Clone(p.VIPs), func(vip netip.Addr) bool { return slices.Contains(taken, vip) })
		}
	}
	return places
}

// places returns the places of the ports of the ServiceEntries.
func (d *definition) places() []snapshot.PortPlace {
	var out []snapshot.PortPlace
	d.eachEntry(func(e *snapshot.ServiceEntry, _ []string) {
		for i := range e.Ports {
			p := &e.Ports[i]
			if p.Protocol == mesh.UDP {
				continue // proxies ignore it
			}
			at := slices.IndexFunc(out, func(o snapshot.PortPlace) bool { return o.Number == p.Number })
			if at < 0 {
				at, out = len(out), append(out, snapshot.PortPlace{Number: p.Number})
			}
			o := &out[at]
			o.VIPs, o.CIDRs = withItems(o.VIPs, e.VIPs), withItems(o.CIDRs, e.CIDRs)
			o.AnyAddress, o.SubjectAltNames = o.AnyAddress || e.AnyAddress, withItems(o.SubjectAltNames, e.SubjectAltNames)
		}
	})
	return out
}

// withItems adds the items that a list lacks.
func withItems[T comparable](list, more []T) []T {
	list = slices.Clip(list)
	known := make(map[T]struct{}, len(list)+len(more))
	for _, item := range list {
		known[item] = struct{}{}
	}
	for _, item := range more {
		if _, is := known[item]; !is {
			known[item] = struct{}{}
			list = append(list, item)
		}
	}
	return list
}

func sameExports(a, b []string) bool {
	return slices.Equal(slices.Compact(slices.Sorted(slices.Values(a))), slices.Compact(slices.Sorted(slices.Values(b))))
}

// serviceKeys indexes a ServiceEntry by the keys of services that it may define, see
// MeshService.Key.
func serviceKeys(into []string, k ObjectKey, e *snapshot.ServiceEntry) []string {
	for _, host := range e.Hosts {
		into = append(into, host, snapshot.FurtherKey(host, k.Namespace))
	}
	return into
}

// definitions returns the services of a host in the order of precedence, at most one for
// each namespace: the Service of Kubernetes, then ServiceEntries, oldest first.
func (t *Tables) definitions(r *derive.Reads, host string) []definition {
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
		if i := slices.IndexFunc(out, func(d definition) bool { return d.meta().Namespace == e.Namespace }); i >= 0 {
			out[i].merge(e)
		} else {
			out = append(out, entryDefinition(e, t.entryExportTo(r, e)))
		}
	}
	return out
}

// define returns the definition of the service with a key, with its rivals.
func (t *Tables) define(r *derive.Reads, key string) (d definition, host string, rivals []snapshot.Rival, ok bool) {
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
	// Short names with the namespace, such as db.shop, lead to the Service also in the DNS of Kubernetes.
	if full := mesh.FullHost(host); full != host && list[at].entry != nil {
		if services := t.servicesNamed(r, full); len(services) > 0 {
			s := services[0]
			rivals = append(rivals, snapshot.Rival{Namespace: s.Namespace, ExportTo: t.exportTo(r, s.Cluster, s.ExportTo), Kubernetes: true, Earlier: true})
		}
	}
	if list[at].entry != nil && !strings.Contains(host, ".") {
		rivals = append(rivals, t.servicesCalled(r, host)...)
	}
	if e := list[at].entry; e != nil {
		rivals = append(rivals, t.servicesOfPod(r, host, e.Namespace)...)
	}
	return list[at], host, rivals, true
}

// servicesOfPod returns the headless Services of other namespaces whose pods may have a name, as rivals
// of a ServiceEntry: the name leads to the pod also in the DNS of Kubernetes.
func (t *Tables) servicesOfPod(r *derive.Reads, name, namespace string) []snapshot.Rival {
	_, service, ok := strings.Cut(name, ".")
	if !ok {
		return nil
	}
	var out []snapshot.Rival
	if s := t.headlessService(r, service); s != nil && s.Namespace != namespace {
		out = append(out, snapshot.Rival{Namespace: s.Namespace, ExportTo: t.exportTo(r, s.Cluster, s.ExportTo), Kubernetes: true, Earlier: true})
	}
	if !strings.Contains(service, ".") {
		for _, rival := range t.servicesCalled(r, service) {
			if rival.Namespace != namespace && t.headlessService(r, service+"."+rival.Namespace) != nil {
				out = append(out, rival)
			}
		}
	}
	return out
}

// headlessService returns the Service of a host, which may lack the domain, if it is headless.
func (t *Tables) headlessService(r *derive.Reads, host string) *snapshot.Service {
	if services := t.servicesNamed(r, mesh.FullHost(host)); len(services) > 0 && services[0].Headless {
		return services[0]
	}
	return nil
}

// servicesCalled returns the Services with a name, as rivals of a ServiceEntry in their namespaces: there
// the name leads to the Service also in the DNS of Kubernetes.
func (t *Tables) servicesCalled(r *derive.Reads, name string) []snapshot.Rival {
	var out []snapshot.Rival
	for k := range t.servicesNamedBy.Lookup(r, name) {
		rival := snapshot.Rival{Namespace: k.Namespace, ExportTo: []string{k.Namespace}, Kubernetes: true, Earlier: true}
		if !slices.ContainsFunc(out, func(o snapshot.Rival) bool { return o.Namespace == k.Namespace }) {
			out = append(out, rival)
		}
	}
	return out
}

// entryService returns the service of a host of a ServiceEntry.
func (t *Tables) entryService(r *derive.Reads, key, host string, d definition) *snapshot.MeshService {
	e := d.entry
	j, _ := t.Joins.Get(r, key)
	root, own := t.mtlsPolicies(r, e.Namespace)
	out := &snapshot.MeshService{
		Key: key, Host: host, Name: host, Namespace: e.Namespace, Created: e.Created,
		Entry: true, External: e.External, Resolution: e.Resolution, AnyAddress: e.AnyAddress, Ports: d.ports, ExportTo: d.exportTo,
		Places: t.placesOf(r, d), Plaintext: e.External || snapshot.AllPlaintext(root, own),
		Distribution: t.distribution(r, e.Cluster, e.Namespace, e.Distribution),
	}
	var vips []netip.Addr
	allocate := false
	d.eachEntry(func(e *snapshot.ServiceEntry, _ []string) {
		vips, out.CIDRs = withItems(vips, e.VIPs), withItems(out.CIDRs, e.CIDRs)
		out.SubjectAltNames = withItems(out.SubjectAltNames, e.SubjectAltNames)
		allocate = allocate || e.Allocate
	})
	out.Clusters = []snapshot.ClusterService{{Cluster: e.Cluster, VIPs: vips, Selector: e.Selector, Ports: d.ports, ExportTo: d.exportTo}}
	if e.External {
		out.Accounts = withNames(nil, out.SubjectAltNames)
	}
	out.Aliases = t.aliases(r, host, out.Namespace)
	out.Contested = t.contested(r, out)
	if allocate && len(vips) == 0 { // else the host resolves to these
		out.Allocated, _ = t.allocated.Get(r, host)
	}
	if j == nil {
		return out
	}
	if e.Resolution.DNS() {
		out.Targets = j.Endpoints
	}
	if !e.External {
		out.Accounts = withNames(j.Backends.accounts, out.SubjectAltNames)
		out.AllTLS, out.AllDirectTLS, out.PlainPorts = j.Backends.allTLS, j.Backends.allDirectTLS, j.Backends.plainPorts
	}
	return out
}

// accounts adds the subject alternative names of a Service's host to the accounts of its
// pods. Only ServiceEntries of its own namespace give it names: another namespace must not
// decide which servers its clients accept.
func (t *Tables) accounts(r *derive.Reads, host, namespace string, ofPods []string) []string {
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

// collectEntry adds the endpoints of a host of a ServiceEntry. names are those of its ports in the
// service.
func (j *join) collectEntry(host string, e *snapshot.ServiceEntry, names []string) {
	b := &j.out.Backends
	switch {
	case e.Resolution == snapshot.ByDestination:
		return
	case len(e.Selector) > 0:
		for _, w := range j.selectedBy(j.r, e.Cluster, e.Namespace, e.Selector) {
			j.entry(e.Ports, names, e.Resolution, w, false)
		}
		for _, p := range j.podsIn.Lookup(j.r, e.Namespace) {
			if snapshot.Selects(e.Selector, p.Labels) {
				j.pod(e.Ports, names, p)
			}
		}
		return
	case e.Resolution.DNS() && len(e.Endpoints) == 0:
		for i := range e.Ports {
			j.add(snapshot.Endpoint{Target: host, Cluster: e.Cluster}, names[i], cmp.Or(e.Ports[i].Target, e.Ports[i].Number), nil)
		}
		return
	}
	for i := range e.Endpoints {
		j.listed(e, names, &e.Endpoints[i])
		b.Selectorless = true
	}
}

// listed adds an endpoint that a ServiceEntry lists, one for each port.
func (j *join) listed(entry *snapshot.ServiceEntry, names []string, listed *snapshot.EntryEndpoint) {
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
	if pod := j.podAt(address); pod != nil {
		e.Pod = snapshot.PodKey{Cluster: j.cluster, Namespace: pod.Namespace, Name: pod.Name}.String()
	}
	for i := range entry.Ports {
		port := &entry.Ports[i]
		if number := w.TargetPort(port); number != 0 {
			j.add(e, names[i], number, w)
		}
	}
	if w.ServiceAccount != "" && !entry.External {
		j.account(w)
	}
}

// pod adds the endpoints of a pod, one for each address and port.
func (j *join) pod(ports []snapshot.ServicePort, names []string, pod *snapshot.Pod) {
	for _, address := range pod.IPs {
		e := j.endpoint(&snapshot.SliceEndpoint{Ready: !pod.Unready}, pod, address)
		for i := range ports {
			if number := pod.TargetPort(&ports[i]); number != 0 {
				j.add(e, names[i], number, pod)
			}
		}
	}
	if pod.ServiceAccount != "" && len(pod.IPs) > 0 {
		j.account(pod)
	}
}

// podNamespaces indexes the pods of the local cluster by namespace.
func (t *Tables) podNamespaces(into []string, k ObjectKey, _ *snapshot.Pod) []string {
	if k.Cluster == t.Cfg.Local {
		into = append(into, k.Namespace)
	}
	return into
}

// equalEntryService compares the fields of services that only ServiceEntries set.
func equalEntryService(a, b *snapshot.MeshService) bool {
	return a.Entry == b.Entry && a.External == b.External && a.Resolution == b.Resolution && a.Namespace == b.Namespace &&
		a.AnyAddress == b.AnyAddress && slices.EqualFunc(a.Places, b.Places, equalPlace) &&
		slices.Equal(a.CIDRs, b.CIDRs) && slices.Equal(a.SubjectAltNames, b.SubjectAltNames) && slices.Equal(a.Allocated, b.Allocated) && slices.EqualFunc(a.Rivals, b.Rivals, equalRival) &&
		(a.Targets == b.Targets || a.Targets != nil && b.Targets != nil && EqualEndpoints(a.Targets, b.Targets))
}

func equalPlace(x, y snapshot.PortPlace) bool {
	return x.Number == y.Number && x.AnyAddress == y.AnyAddress && slices.Equal(x.VIPs, y.VIPs) && slices.Equal(x.CIDRs, y.CIDRs) &&
		slices.Equal(x.SubjectAltNames, y.SubjectAltNames)
}

func equalRival(x, y snapshot.Rival) bool {
	return x.Namespace == y.Namespace && x.Kubernetes == y.Kubernetes && x.Earlier == y.Earlier && slices.Equal(x.ExportTo, y.ExportTo)
}
