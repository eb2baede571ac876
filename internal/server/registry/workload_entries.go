package registry

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

func (s *state) applyEntry(c *clusterState, n name, w *snapshot.WorkloadEntry) {
	old := c.entries[n]
	if reflect.DeepEqual(old, w) {
		return
	}
	if old != nil {
		within(c.entriesIn, n.namespace, n, false)
		within(c.entriesAt, old.IPs[0], n, false)
		s.markServicesOf(c, old)
	}
	put(c.entries, n, w)
	if w != nil {
		within(c.entriesIn, n.namespace, n, true)
		within(c.entriesAt, w.IPs[0], n, true)
		s.markServicesOf(c, w)
	}
	if old == nil || w == nil || !reflect.DeepEqual(old.Pod, w.Pod) {
		s.dirty.entries.add(snapshot.PodKey{Cluster: c.id, Namespace: n.namespace, Name: n.name})
	}
}

// markServicesOf marks the endpoints of the services that select a WorkloadEntry.
func (s *state) markServicesOf(c *clusterState, w *snapshot.WorkloadEntry) {
	for n := range c.servicesIn[w.Namespace] {
		if selects(c.services[n], w) {
			s.dirty.endpoints.add(n)
		}
	}
}

// selects reports whether a WorkloadEntry is an endpoint of a service in its namespace.
func selects(svc *snapshot.Service, w *snapshot.WorkloadEntry) bool {
	return len(svc.Selector) > 0 && svc.ExternalName == "" && snapshot.Selects(svc.Selector, w.Labels)
}

// selected returns the WorkloadEntries that a service selects, sorted by name.
func (c *clusterState) selected(svc *snapshot.Service) []*snapshot.WorkloadEntry {
	var out []*snapshot.WorkloadEntry
	for n := range c.entriesIn[svc.Namespace] {
		if w := c.entries[n]; selects(svc, w) {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(x, y *snapshot.WorkloadEntry) int { return cmp.Compare(x.Name, y.Name) })
	return out
}

// entry adds the endpoints of a WorkloadEntry, one for each port.
func (j *endpointCollector) entry(svc *snapshot.Service, w *snapshot.WorkloadEntry) {
	c := j.cluster
	e := j.endpoint(&snapshot.SliceEndpoint{Ready: j.isHealthy(w)}, &w.Pod, w.IPs[0])
	e.Pod = snapshot.WorkloadEntryKey(c.id, w.Namespace, w.Name)
	e.Network, e.Locality = cmp.Or(w.Network, e.Network), cmp.Or(w.Locality, e.Locality)
	if w.Weight > 1 {
		e.Weight = w.Weight * max(e.Weight, 1)
	}
	if j.refuses(&e) {
		return
	}
	for i := range svc.Ports {
		port := &svc.Ports[i]
		if number := w.TargetPort(port); number != 0 {
			j.add(e, port.Name, number, &w.Pod)
		}
	}
	if w.ServiceAccount != "" {
		j.account(&w.Pod)
	}
}

// healthReporter names a WorkloadEntry and the authenticated service account that
// reports its health.
type healthReporter struct {
	entry   snapshot.PodKey
	account string
}

// isHealthy reports the health of a WorkloadEntry. A report of its own proxy overrides
// the status of the object.
func (s *state) isHealthy(w *snapshot.WorkloadEntry) bool {
	reported := s.health[healthReporter{snapshot.PodKey{Cluster: w.Cluster, Namespace: w.Namespace, Name: w.Name}, w.ServiceAccount}]
	return !w.HealthChecked || cmp.Or(reported, w.Health) == snapshot.True
}

// setHealth notes a report, or withdraws it if health is Unknown. The WorkloadEntry may
// be added later.
func (s *state) setHealth(by healthReporter, health snapshot.Condition) {
	if s.health[by] == health {
		return
	}
	if s.health[by] = health; health == snapshot.Unknown {
		delete(s.health, by)
	}
	if c := s.clusters[by.entry.Cluster]; c != nil {
		if w := c.entries[name{by.entry.Namespace, by.entry.Name}]; w != nil && w.ServiceAccount == by.account {
			s.markServicesOf(c, w)
		}
	}
}
