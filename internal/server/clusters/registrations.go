package clusters

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

// registration is a valid spec of an origin for one cluster, with its access.
type registration struct {
	origin Origin
	spec   Spec
	allow  []string
	access *Access
	order  uint64 // the lowest comes first
}

// same reports whether both reach the cluster in the same way.
func (c *registration) same(other *registration) bool {
	return c.spec.Hash == other.spec.Hash && c.origin.Kind == other.origin.Kind && slices.Equal(c.allow, other.allow)
}

// processOrigin applies the latest specs of an origin: it removes old registrations, then
// adds and updates others, by cluster.
func (m *Manager) processOrigin(ctx context.Context, o Origin) {
	m.mu.Lock()
	specs, known := m.specs[o]
	m.processed[o] = m.cfg.Now()
	if len(specs) == 0 {
		delete(m.specs, o)
		delete(m.processed, o)
	}
	m.mu.Unlock()
	if !known {
		return
	}
	if o.Kind != OriginDirectory {
		m.cfg.Log.Info("processing remote config event for "+o.Name, "origin", string(o.Kind)) //nolint:sloglint // people search Istio's message
	}
	m.problems[o] = nil
	var touched []mesh.ClusterID
	for _, id := range slices.Sorted(maps.Keys(m.registrations[o])) {
		// An invalid spec without an id may be for this cluster.
		if !slices.ContainsFunc(specs, func(s Spec) bool { return s.ID == id || s.ID == "" && s.Err != nil }) {
			m.unregister(o, id)
			touched = append(touched, id)
		}
	}
	for _, s := range specs {
		if m.register(o, s) {
			touched = append(touched, s.ID)
		}
	}
	for _, id := range touched {
		m.reconcile(ctx, m.clusters[id])
	}
	if len(m.problems[o]) == 0 {
		delete(m.problems, o)
	}
	remote := len(m.clusters) - 1
	if o.Kind != OriginDirectory {
		m.cfg.Log.Info(fmt.Sprintf("Number of remote clusters: %d", remote)) //nolint:sloglint // the same
	}
}

func (m *Manager) unregister(o Origin, id mesh.ClusterID) {
	c := m.clusters[id]
	c.registrations = slices.DeleteFunc(c.registrations, func(r *registration) bool { return r.origin == o })
	if delete(m.registrations[o], id); len(m.registrations[o]) == 0 {
		delete(m.registrations, o)
	}
	m.counters.event("delete")
}

// register registers a spec. If the spec is not valid, the earlier registration of the
// origin stays. It reports whether the registration changed.
func (m *Manager) register(o Origin, s Spec) bool {
	log := m.cfg.Log.With("cluster", s.ID, "secret", o.Name)
	old := m.registrations[o][s.ID]
	refuse := func(err error) bool {
		reason := err.Error()
		var refused []remotesecret.Finding
		if e, ok := errors.AsType[*remotesecret.RefusedError](err); ok {
			refused = e.Findings
		}
		if old != nil || s.ID == "" && len(m.registrations[o]) > 0 {
			reason += "; the last good one stays in use"
		}
		m.problems[o] = append(m.problems[o], Problem{Cluster: s.ID, Reason: reason, Refused: refused})
		log.Warn("cluster cannot be used as it is configured", "reason", reason)
		return false
	}
	if s.ID == m.cfg.Own {
		m.problems[o] = append(m.problems[o], Problem{Cluster: s.ID, Reason: "it has the name of the own cluster, which it cannot replace"})
		log.Info("ignoring cluster as it would overwrite the config cluster")
		return false
	}
	if s.Err != nil {
		return refuse(s.Err)
	}
	next := &registration{origin: o, spec: s, allow: m.Setting(s.ID).Allow}
	if old != nil && old.same(next) {
		log.Info("skipping update (kubeconfig are identical)")
		return false
	}
	access, err := s.Open(next.allow)
	if err != nil {
		return refuse(err)
	}
	next.access = access
	c := m.cluster(s.ID)
	if old != nil {
		next.order = old.order
		c.registrations[slices.Index(c.registrations, old)] = next
		log.Info("Updating cluster")
		m.counters.event("update")
	} else {
		m.order++
		next.order = m.order
		c.registrations = append(c.registrations, next)
		m.counters.event("add")
		if len(c.registrations) > 1 {
			log.Warn("cluster has already been registered", "by", c.registrations[0].origin.Name, "fix", "delete one of the two")
		} else {
			log.Info("Adding cluster")
		}
	}
	if m.registrations[o] == nil {
		m.registrations[o] = make(map[mesh.ClusterID]*registration)
	}
	m.registrations[o][s.ID] = next
	return true
}
