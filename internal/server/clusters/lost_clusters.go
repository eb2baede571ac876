package clusters

import (
	"cmp"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// judge updates the load balancing of lost and recovered clusters, and logs credentials
// that end.
func (m *Manager) judge() {
	for _, c := range m.clusters {
		m.setBalancing(c)
		m.logCredential(c)
	}
}

func (m *Manager) setBalancing(c *cluster) {
	standing := m.balancingOf(c)
	if standing == c.balancing {
		return
	}
	m.cfg.Log.Info("cluster takes another part in load balancing", "cluster", c.id,
		"drained", standing.Drained, "demoted", standing.Demoted, "weight", cmp.Or(standing.Weight, 100))
	c.balancing = standing
	m.cfg.Registry.SetBalancing(c.id, standing)
}

func (m *Manager) balancingOf(c *cluster) snapshot.Balancing {
	set := m.Setting(c.id)
	standing := snapshot.Balancing{Drained: set.Drain, Weight: set.Weight}
	since := m.lostSince(c)
	if c.id == m.cfg.Own || since.IsZero() {
		return standing
	}
	switch cmp.Or(set.OnLost, m.cfg.OnLost, mesh.Keep) {
	case mesh.Keep:
	case mesh.Demote:
		standing.Demoted = true
	case mesh.Drop:
		standing.Demoted = true
		standing.Drained = standing.Drained || m.cfg.Now().Sub(since) >= m.cfg.Grace
	}
	return standing
}

// lostSince returns the time since which a cluster is lost; zero if it is followed or may
// recover in a moment.
func (m *Manager) lostSince(c *cluster) time.Time {
	if !c.synced || c.reader == nil {
		return time.Time{}
	}
	since := c.reader.report().LostSince
	if since.IsZero() || m.cfg.Now().Sub(since) < m.cfg.timing.lost {
		return time.Time{}
	}
	return since
}
