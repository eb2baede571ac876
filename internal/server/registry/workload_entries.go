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
		s.touchEntry(c, old)
	}
	put(c.entries, n, w)
	if w != nil {
		within(c.entriesIn, n.namespace, n, true)
		within(c.entriesAt, w.IPs[0], n, true)
		s.touchEntry(c, w)
	}
	if old == nil || w == nil || !reflect.DeepEqual(old.Pod, w.Pod) {
		s.dirty.entries.add(snapshot.PodKey{Cluster: c.id, Namespace: n.namespace, Name: n.name})
	}
}

// touchEntry marks the endpoints of the services that select the entry.
func (s *state) touchEntry(c *clusterState, w *snapshot.WorkloadEntry) {
	for n := range c.servicesIn[w.Namespace] {
		if selects(c.services[n], w) {
			s.dirty.endpoints.add(n)
		}
	}
}

// selects reports whether the entry is an endpoint of the service, which is of its
// namespace.
func selects(svc *snapshot.Service, w *snapshot.WorkloadEntry) bool {
	return len(svc.Selector) > 0 && svc.ExternalName == "" && snapshot.Selects(svc.Selector, w.Labels)
}

// selected are the entries that a service selects, by name.
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

// entry adds the endpoints that a WorkloadEntry is.
func (j *joining) entry(svc *snapshot.Service, w *snapshot.WorkloadEntry) {
	c := j.cluster
	e := j.endpoint(&snapshot.SliceEndpoint{Ready: j.isHealthy(w)}, &w.Pod, w.IPs[0])
	e.Pod = snapshot.WorkloadEntryKey(c.id, w.Namespace, w.Name)
	e.Network, e.Locality = cmp.Or(w.Network, e.Network), cmp.Or(w.Locality, e.Locality)
	if w.Weight > 1 {
		e.Weight = w.Weight * max(e.Weight, 1)
	}
	if j.isHostile(&e) {
		return
	}
	for i := range svc.Ports {
		port := &svc.Ports[i]
		if number := w.TargetPort(port); number != 0 {
			j.add(e, port.Name, number, &w.Pod)
		}
	}
	if w.ServiceAccount != "" {
		j.account(j.accounts, c, &w.Pod)
	}
}

// saidBy names a WorkloadEntry and the service account that somebody who speaks for
// it was proved to be of.
type saidBy struct {
	entry   snapshot.PodKey
	account string
}

// isHealthy goes by what the entry's own proxy says, else by the object.
func (s *state) isHealthy(w *snapshot.WorkloadEntry) bool {
	said := s.said[saidBy{snapshot.PodKey{Cluster: w.Cluster, Namespace: w.Namespace, Name: w.Name}, w.ServiceAccount}]
	return !w.HealthChecked || cmp.Or(said, w.Health) == snapshot.True
}

// setHealth takes what a proxy says, whether there is the entry now or later;
// Unknown takes it back.
func (s *state) setHealth(by saidBy, is snapshot.Condition) {
	if s.said[by] == is {
		return
	}
	if s.said[by] = is; is == snapshot.Unknown {
		delete(s.said, by)
	}
	if c := s.clusters[by.entry.Cluster]; c != nil {
		if w := c.entries[name{by.entry.Namespace, by.entry.Name}]; w != nil && w.ServiceAccount == by.account {
			s.touchEntry(c, w)
		}
	}
}
