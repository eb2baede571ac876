package clusters

import (
	"cmp"
	"context"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// cluster is a cluster with its registrations. The first registration counts.
type cluster struct {
	id            mesh.ClusterID
	registrations []*registration
	life          uint64 // unique, even among clusters of the same name
	reader        *clusterReader
	nextReader    *clusterReader // replaces reader when it has read everything
	since         time.Time
	synced        bool // everything was read once
	overdue       bool // the first read took too long
	// balancing is the last value of Registry.SetBalancing.
	balancing        snapshot.Balancing
	loggedCredential loggedCredential
}

func (m *Manager) cluster(id mesh.ClusterID) *cluster {
	c := m.clusters[id]
	if c == nil {
		m.order++
		c = &cluster{id: id, life: m.order, since: m.cfg.Now()}
		m.clusters[id] = c
	}
	return c
}

// reconcile makes the reader match the first registration.
func (m *Manager) reconcile(ctx context.Context, c *cluster) {
	if len(c.registrations) == 0 {
		m.remove(c)
		return
	}
	want := c.registrations[0]
	switch {
	case c.reader == nil:
		m.expect(c)
		c.reader = m.read(ctx, c, want)
		m.notifyHandlers(c)
		m.cfg.Log.Info("finished callback for cluster and starting to sync", "cluster", c.id)
	case c.reader.registration.same(want):
		c.reader.registration = want
		c.dropNext()
	case c.nextReader != nil && c.nextReader.registration.same(want):
		c.nextReader.registration = want
	case !c.synced: // nothing to keep
		c.dropNext()
		c.reader.end()
		c.reader = m.read(ctx, c, want)
		m.notifyHandlers(c)
	default:
		c.dropNext()
		c.nextReader = m.read(ctx, c, want)
	}
}

// expect makes the first snapshot wait for the cluster, for RemoteTimeout at most.
func (m *Manager) expect(c *cluster) {
	m.cfg.Registry.Expect(c.id)
	m.setBalancing(c)
	if c.id != m.cfg.Own {
		m.queue.AddAfter(queueItem{kind: clusterOverdue, cluster: c.id, life: c.life}, m.cfg.RemoteTimeout)
	}
}

// read starts a reader.
func (m *Manager) read(ctx context.Context, c *cluster, reg *registration) *clusterReader {
	ctx, cancel := context.WithCancel(ctx)
	r := &clusterReader{
		id: c.id, registration: reg, started: m.cfg.Now(), stop: cancel,
		feed: &feed{
			cluster: c.id, registry: m.cfg.Registry,
			notify: func() { m.queue.Add(queueItem{kind: readerSynced, cluster: c.id}) },
		},
	}
	if c.id == m.cfg.Own {
		r.feed.settings = m.setSettings
	}
	m.running.Go(func() {
		defer cancel()
		r.run(ctx, reg.access, &m.cfg, m.failure(r))
	})
	return r
}

// failure returns the function that handles errors of a reader. It logs each error once
// and ends the manager if the own cluster cannot be read.
func (m *Manager) failure(r *clusterReader) func(error) bool {
	last := ""
	return func(err error) bool {
		if r.id == m.cfg.Own {
			m.fail(err)
			return false
		}
		if err.Error() != last {
			m.cfg.Log.Error("a remote cluster cannot be read, trying again", "cluster", r.id, "error", err)
		}
		last = err.Error()
		return true
	}
}

// advance puts readers that have read everything into use.
func (m *Manager) advance(ctx context.Context, c *cluster) {
	if c.nextReader != nil && c.nextReader.feed.complete() {
		old := c.reader
		old.feed.close() // from now on only the new reader updates the cluster
		c.reader, c.nextReader = c.nextReader, nil
		c.reader.feed.open()
		old.end()
		m.cfg.Log.Info("cluster is read with the new credential", "cluster", c.id)
		m.notifyHandlers(c)
	} else if c.reader.feed.open() && !c.synced {
		c.synced, c.overdue, c.since = true, false, m.cfg.Now()
		m.cfg.Log.Info("cluster is read", "cluster", c.id, "took", c.since.Sub(c.reader.started).Round(time.Millisecond))
		if c.id == m.cfg.Own {
			m.reminded = c.since
			m.search(ctx)
			m.markReady()
			return
		}
		m.cfg.Registry.Synced(c.id)
	}
}

// giveUp serves the mesh without a cluster that was not read in time.
func (m *Manager) giveUp(c *cluster) {
	c.overdue = true
	m.counters.timeout(c.id)
	reason := c.reader.report().Reason
	m.cfg.Log.Error("serving without a remote cluster until it can be read", "cluster", c.id,
		"origin", c.registrations[0].origin.Name, "error", cmp.Or(reason, "it was not read completely"))
	m.cfg.Registry.Synced(c.id)
}

// remove removes a cluster without registrations.
func (m *Manager) remove(c *cluster) {
	c.dropNext()
	if c.reader != nil {
		c.reader.end()
	}
	delete(m.clusters, c.id)
	m.cfg.Registry.Remove(c.id)
	m.cfg.Registry.SetBalancing(c.id, snapshot.Balancing{})
	m.counters.forget(c.id)
	m.cfg.Log.Info("cluster is removed", "cluster", c.id)
	for _, l := range m.handlers {
		l.set(c.id, nil)
	}
}

// notifyHandlers notifies the handlers of the current access to the cluster.
func (m *Manager) notifyHandlers(c *cluster) {
	for _, l := range m.handlers {
		l.set(c.id, c.reader.registration.access.Config)
	}
}

func (c *cluster) dropNext() {
	if c.nextReader != nil {
		c.nextReader.end()
		c.nextReader = nil
	}
}
