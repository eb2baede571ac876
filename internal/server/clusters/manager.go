package clusters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Manager owns the clusters. New makes it, Run makes it work.
type Manager struct {
	cfg      Config
	queue    workqueue.TypedDelayingInterface[queueItem]
	handlers []*handlerQueue
	running  sync.WaitGroup
	counters counters
	failed   chan error // why the own cluster cannot be read

	mu        sync.Mutex
	specs     map[Origin][]Spec    // what origins claim, by the newest word
	processed map[Origin]time.Time // when an origin was looked at last
	settings  mesh.ClusterSettings

	published atomic.Pointer[publishedState]

	// What follows is owned by the goroutine of Run.
	clusters      map[mesh.ClusterID]*cluster
	registrations map[Origin]map[mesh.ClusterID]*registration // those that count
	problems      map[Origin][]Problem
	unlisted      int       // finders that have not handed everything over
	searched      bool      // finders were started
	ready         bool      // the registry was told that the own cluster is synced
	reminded      time.Time // when policies that are not enforced were logged last
	order         uint64    // counts claims and clusters
}

// item is a key of the queue.
type queueItem struct {
	kind    queueItemKind
	origin  Origin
	cluster mesh.ClusterID
	life    uint64 // of the cluster, where it matters
}

type queueItemKind uint8

const (
	originChanged   queueItemKind = iota
	readerSynced                  // a reading has everything
	clusterOverdue                // the time to wait for a cluster is over
	finderListed                  // one finder has handed everything over
	findersOverdue                // the time to wait for finders is over
	settingsChanged               // those of all clusters
	timePassed
)

// claim is a cluster that an origin claims with an access that passed.
type registration struct {
	origin Origin
	spec   Spec
	allow  []string
	access *Access
	order  uint64 // the lowest is first
}

// same reports whether both lead to the cluster in the same way.
func (c *registration) same(other *registration) bool {
	return c.spec.Hash == other.spec.Hash && c.origin.Kind == other.origin.Kind && slices.Equal(c.allow, other.allow)
}

// cluster is one cluster and its claims, the first of which counts.
type cluster struct {
	id            mesh.ClusterID
	registrations []*registration
	life          uint64 // no other cluster has it, not even one of the same name
	reader        *clusterReader
	nextReader    *clusterReader // is to take the place of reading when it has everything
	since         time.Time
	synced        bool // everything was read once
	overdue       bool // that took too long
	// standing is what the registry was told.
	standing         snapshot.Balancing
	loggedCredential loggedCredential
}

// New makes a manager.
func New(cfg Config) *Manager {
	if cfg.timing == (timing{}) {
		cfg.timing = defaultTiming()
	}
	m := &Manager{
		cfg:           cfg,
		queue:         workqueue.NewTypedDelayingQueue[queueItem](),
		failed:        make(chan error, 1),
		specs:         make(map[Origin][]Spec),
		processed:     make(map[Origin]time.Time),
		clusters:      make(map[mesh.ClusterID]*cluster),
		registrations: make(map[Origin]map[mesh.ClusterID]*registration),
		problems:      make(map[Origin][]Problem),
		unlisted:      len(cfg.Finders),
		searched:      len(cfg.Finders) == 0,
	}
	for _, h := range cfg.Handlers {
		m.handlers = append(m.handlers, newHandlerQueue(h))
	}
	m.counters = newCounters(cfg.Metrics)
	cfg.Metrics.MustRegister(collector{m})
	m.publish()
	return m
}

// Run reads clusters until ctx ends; then it waits for everything that it
// started. The error is that the own cluster cannot be read.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer m.running.Wait()
	defer m.queue.ShutDown()
	defer cancel()
	for _, l := range m.handlers {
		m.running.Go(func() { l.run(ctx) })
	}
	m.registerStatic(ctx)
	m.publish()
	m.queue.AddAfter(queueItem{kind: timePassed}, m.cfg.timing.tick)

	stop := context.AfterFunc(ctx, m.queue.ShutDown)
	defer stop()
	for {
		it, down := m.queue.Get()
		if down {
			break
		}
		m.handle(ctx, it)
		m.queue.Done(it)
		m.publish()
	}
	select {
	case err := <-m.failed:
		return err
	default:
		return nil
	}
}

// enter takes the clusters of the command line.
func (m *Manager) registerStatic(ctx context.Context) {
	own := m.cluster(m.cfg.Own)
	access := m.cfg.OwnAccess
	own.registrations = []*registration{{origin: m.cfg.OwnOrigin, access: &access}}
	m.reconcile(ctx, own)
	for _, s := range m.cfg.Static {
		m.mu.Lock()
		m.specs[s.Origin] = []Spec{s.Spec}
		m.mu.Unlock()
		m.processOrigin(ctx, s.Origin)
	}
}

// Set implements Claims.
func (m *Manager) Set(o Origin, specs []Spec) {
	m.mu.Lock()
	m.specs[o] = specs
	if specs == nil {
		m.specs[o] = []Spec{}
	}
	wait := m.cfg.timing.gap - m.cfg.Now().Sub(m.processed[o])
	m.mu.Unlock()
	m.queue.AddAfter(queueItem{kind: originChanged, origin: o}, max(wait, 0))
}

// Listed implements Claims.
func (m *Manager) Listed() { m.queue.Add(queueItem{kind: finderListed}) }

// setSettings takes the settings of clusters; nil is none.
func (m *Manager) setSettings(s *snapshot.ClusterSettings) {
	m.mu.Lock()
	m.settings = nil
	if s != nil {
		m.settings = s.Clusters
	}
	m.mu.Unlock()
	m.queue.Add(queueItem{kind: settingsChanged})
}

// Setting is what is set for a cluster. It may be called from any goroutine.
func (m *Manager) Setting(id mesh.ClusterID) mesh.ClusterSetting { return m.setting(id) }

func (m *Manager) setting(id mesh.ClusterID) mesh.ClusterSetting {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.settings[id]
}

func (m *Manager) handle(ctx context.Context, it queueItem) {
	switch it.kind {
	case originChanged:
		m.processOrigin(ctx, it.origin)
	case readerSynced:
		if c := m.clusters[it.cluster]; c != nil {
			m.advance(ctx, c)
		}
	case clusterOverdue:
		if c := m.clusters[it.cluster]; c != nil && c.life == it.life && !c.synced {
			m.giveUp(c)
		}
	case finderListed:
		m.unlisted--
		m.markReady()
	case findersOverdue:
		if m.unlisted > 0 {
			m.cfg.Log.Error("serving without the other clusters until it is known which there are")
			m.unlisted = 0
			m.markReady()
		}
	case settingsChanged:
		m.applySettings(ctx)
	case timePassed:
		m.judge()
		m.remind()
		m.queue.AddAfter(it, m.cfg.timing.tick)
	}
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

// lookAt takes what an origin claims now: first what it does not claim any
// more, then the rest, by name.
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
		// What cannot be read at all may still be about the cluster.
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
	c.registrations = slices.DeleteFunc(c.registrations, func(claim *registration) bool { return claim.origin == o })
	if delete(m.registrations[o], id); len(m.registrations[o]) == 0 {
		delete(m.registrations, o)
	}
	m.counters.event("delete")
}

// take makes a claim of a spec, or keeps the one that the origin had when the
// spec cannot be used. It reports whether something changed.
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
	next := &registration{origin: o, spec: s, allow: m.setting(s.ID).Allow}
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

// reconcile makes what is read what the first claim says.
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
	case !c.synced: // there is nothing to keep
		c.dropNext()
		c.reader.end()
		c.reader = m.read(ctx, c, want)
		m.notifyHandlers(c)
	default:
		c.dropNext()
		c.nextReader = m.read(ctx, c, want)
	}
}

func (c *cluster) dropNext() {
	if c.nextReader != nil {
		c.nextReader.end()
		c.nextReader = nil
	}
}

// expect makes the first snapshot wait for the cluster, but not for ever.
func (m *Manager) expect(c *cluster) {
	m.cfg.Registry.Expect(c.id)
	m.setStanding(c)
	if c.id != m.cfg.Own {
		m.queue.AddAfter(queueItem{kind: clusterOverdue, cluster: c.id, life: c.life}, m.cfg.RemoteTimeout)
	}
}

// read begins a reading.
func (m *Manager) read(ctx context.Context, c *cluster, claim *registration) *clusterReader {
	ctx, cancel := context.WithCancel(ctx)
	r := &clusterReader{
		id: c.id, registration: claim, started: m.cfg.Now(), stop: cancel,
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
		r.run(ctx, claim.access, &m.cfg, m.failure(r))
	})
	return r
}

// failure logs why a reading failed, each reason once, and says whether to try
// again: the own cluster must be readable at the start.
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

// advance lets readings that have everything take effect.
func (m *Manager) advance(ctx context.Context, c *cluster) {
	if c.nextReader != nil && c.nextReader.feed.complete() {
		old := c.reader
		old.feed.close() // from here on only the new one speaks of the cluster
		c.reader, c.nextReader = c.nextReader, nil
		c.reader.feed.open()
		old.end()
		m.cfg.Log.Info("cluster is read with the new credential", "cluster", c.id)
		m.notifyHandlers(c)
	} else if c.id == m.cfg.Own && !c.synced && c.reader.feed.complete() && m.refused(c) {
		return
	} else if c.reader.feed.open() && !c.synced {
		c.synced, c.overdue, c.since = true, false, m.cfg.Now()
		m.cfg.Log.Info("cluster is read", "cluster", c.id, "took", c.since.Sub(c.reader.started).Round(time.Millisecond))
		if c.id == m.cfg.Own {
			m.search(ctx)
			m.markReady()
			return
		}
		m.cfg.Registry.Synced(c.id)
	}
}

// refused ends the manager when the own cluster has security policies that are
// not enforced.
func (m *Manager) refused(c *cluster) bool {
	list := c.reader.report().Unenforced
	if m.cfg.IgnorePolicies || len(list) == 0 {
		m.reminded = m.cfg.Now()
		return false
	}
	m.fail(&UnenforcedError{Cluster: c.id, Policies: list})
	return true
}

// fail ends the manager, which the own cluster must not go without.
func (m *Manager) fail(err error) {
	select {
	case m.failed <- err:
	default:
	}
	m.queue.ShutDown()
}

// remind logs the security policies of the own cluster that are not enforced.
func (m *Manager) remind() {
	own, now := m.clusters[m.cfg.Own], m.cfg.Now()
	if own == nil || !own.synced || now.Sub(m.reminded) < m.cfg.timing.remind {
		return
	}
	m.reminded = now
	if list := own.reader.report().Unenforced; len(list) > 0 {
		m.cfg.Log.Warn("security policies are not enforced", "cluster", own.id, "policies", names(list))
	}
}

// search starts the finders.
func (m *Manager) search(ctx context.Context) {
	if m.searched {
		return
	}
	m.searched = true
	m.queue.AddAfter(queueItem{kind: findersOverdue}, m.cfg.RemoteTimeout)
	for _, f := range m.cfg.Finders {
		m.running.Go(func() {
			if err := f.Run(ctx, m); err != nil && ctx.Err() == nil {
				m.cfg.Log.Error("other clusters are not looked for any more", "error", err)
				m.Listed()
			}
		})
	}
}

// tellReady lets the first snapshot be made: the own cluster is read, and it is
// known which others there are.
func (m *Manager) markReady() {
	own := m.clusters[m.cfg.Own]
	if !m.ready && own.synced && m.unlisted <= 0 {
		m.ready = true
		m.cfg.Registry.Synced(own.id)
	}
}

// giveUp lets the mesh be served without a cluster that was not read in time.
func (m *Manager) giveUp(c *cluster) {
	c.overdue = true
	m.counters.timeout(c.id)
	reason := c.reader.report().Reason
	m.cfg.Log.Error("serving without a remote cluster until it can be read", "cluster", c.id,
		"origin", c.registrations[0].origin.Name, "error", cmp.Or(reason, "it was not read completely"))
	m.cfg.Registry.Synced(c.id)
}

// remove forgets a cluster that nobody claims any more.
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
		l.remove(c.id)
	}
}

// tell tells the handlers how the cluster is reached now.
func (m *Manager) notifyHandlers(c *cluster) {
	for _, l := range m.handlers {
		l.set(Cluster{ID: c.id, Own: c.id == m.cfg.Own, Config: c.reader.registration.access.Config})
	}
}

// applySettings takes the settings of clusters: what their kubeconfigs may do,
// and how their endpoints take part.
func (m *Manager) applySettings(ctx context.Context) {
	m.mu.Lock()
	origins := slices.SortedFunc(maps.Keys(m.specs), func(a, b Origin) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	m.mu.Unlock()
	for _, o := range origins {
		if m.affected(o) {
			m.processOrigin(ctx, o)
		}
	}
	m.judge()
}

// affected reports whether what is allowed to a cluster of the origin changed,
// or may have been missing.
func (m *Manager) affected(o Origin) bool {
	for id, c := range m.registrations[o] {
		if !slices.Equal(c.allow, m.setting(id).Allow) {
			return true
		}
	}
	return len(m.problems[o]) > 0
}

// judge finds clusters that were lost or are back, and what that means for
// their endpoints, and credentials that end.
func (m *Manager) judge() {
	for _, c := range m.clusters {
		m.setStanding(c)
		m.logCredential(c)
	}
}

func (m *Manager) setStanding(c *cluster) {
	standing := m.standingOf(c)
	if standing == c.standing {
		return
	}
	m.cfg.Log.Info("cluster takes another part in load balancing", "cluster", c.id,
		"drained", standing.Drained, "demoted", standing.Demoted, "weight", cmp.Or(standing.Weight, 100))
	c.standing = standing
	m.cfg.Registry.SetBalancing(c.id, standing)
}

func (m *Manager) standingOf(c *cluster) snapshot.Balancing {
	set := m.setting(c.id)
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

// lostSince is since when a cluster that was read is not followed any more;
// zero when it is, or when it may be back in a moment.
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
