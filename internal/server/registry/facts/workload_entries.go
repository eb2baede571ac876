package facts

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// entryLabel is a label of a WorkloadEntry, in its namespace.
type entryLabel struct {
	cluster                mesh.ClusterID
	namespace, name, value string
}

// entryLabels indexes a WorkloadEntry by its labels, so that a service finds the entries
// with one of the labels of its selector.
func entryLabels(into []entryLabel, k ObjectKey, w *snapshot.WorkloadEntry) []entryLabel {
	for name, value := range w.Labels {
		into = append(into, entryLabel{k.Cluster, k.Namespace, name, value})
	}
	return into
}

// selected returns the WorkloadEntries that a service selects, sorted by name.
func (t *Tables) selected(r *derive.Reads, svc *snapshot.Service) []*snapshot.WorkloadEntry {
	if len(svc.Selector) == 0 || svc.ExternalName != "" {
		return nil
	}
	return t.selectedBy(r, svc.Cluster, svc.Namespace, svc.Selector)
}

// selectedBy returns the WorkloadEntries of a namespace that a selector selects, sorted by
// name.
func (t *Tables) selectedBy(r *derive.Reads, c mesh.ClusterID, namespace string, selector map[string]string) []*snapshot.WorkloadEntry {
	name := slices.Min(slices.Collect(maps.Keys(selector)))
	var out []*snapshot.WorkloadEntry
	for _, w := range t.entriesWith.Lookup(r, entryLabel{c, namespace, name, selector[name]}) {
		if snapshot.Selects(selector, w.Labels) {
			out = append(out, w)
		}
	}
	return out
}

// entry adds the endpoints of a WorkloadEntry to a service, which may be headless, one for each port. A
// host name is an endpoint only of services that proxies resolve by DNS.
func (j *join) entry(ports []snapshot.ServicePort, names []string, by snapshot.Resolution, w *snapshot.WorkloadEntry, headless bool) {
	var address netip.Addr
	switch {
	case w.Target == "":
		address = w.IPs[0]
	case !by.DNS():
		return
	}
	e := j.endpoint(&snapshot.SliceEndpoint{Ready: j.isHealthy(j.r, w)}, &w.Pod, address)
	e.Target, e.Pod = w.Target, snapshot.WorkloadEntryKey(j.cluster, w.Namespace, w.Name)
	e.Network, e.Locality = cmp.Or(w.Network, e.Network), cmp.Or(w.Locality, e.Locality)
	e.Foreign = headless && j.isForeign(&e, nil, w.Namespace)
	if e.Target != "" {
		e.Network = "" // every proxy connects to the addresses of the name
	}
	if w.Weight > 1 {
		e.Weight = w.Weight * max(e.Weight, 1)
	}
	if j.refuses(&e) {
		return
	}
	for i := range ports {
		port := &ports[i]
		if number := w.TargetPort(port); number != 0 {
			j.add(e, names[i], number, &w.Pod)
		}
	}
	if w.ServiceAccount != "" {
		j.account(&w.Pod)
	}
}

// HealthReporter names a WorkloadEntry and the authenticated service account that
// reports its health.
type HealthReporter struct {
	Entry   snapshot.PodKey
	Account string
}

func (h HealthReporter) compare(other HealthReporter) int {
	x, y := h.Entry, other.Entry
	return cmp.Or(ObjectKey{x.Cluster, x.Namespace, x.Name}.Compare(ObjectKey{y.Cluster, y.Namespace, y.Name}), cmp.Compare(h.Account, other.Account))
}

// isHealthy reports the health of a WorkloadEntry. A report of its own proxy overrides
// the status of the object.
func (t *Tables) isHealthy(r *derive.Reads, w *snapshot.WorkloadEntry) bool {
	if !w.HealthChecked {
		return true
	}
	reported, _ := t.Health.Get(r, HealthReporter{snapshot.PodKey{Cluster: w.Cluster, Namespace: w.Namespace, Name: w.Name}, w.ServiceAccount})
	return cmp.Or(reported, w.Health) == snapshot.True
}

// SetHealth notes a report, or withdraws it if health is Unknown. The WorkloadEntry may
// be added later.
func (t *Tables) SetHealth(by HealthReporter, health snapshot.Condition) {
	if health == snapshot.Unknown {
		t.Health.Delete(by)
		return
	}
	t.Health.Set(by, health)
}
