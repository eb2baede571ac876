package clusters

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Manager reads and follows the clusters. Run makes it work.
type Manager struct {
	cfg      Config
	queue    workqueue.TypedDelayingInterface[queueItem]
	handlers []*handlerQueue
	running  sync.WaitGroup
	counters counters
	failed   chan error // capacity 1: the error that ends Run

	mu        sync.Mutex
	specs     map[Origin][]Spec    // the latest of each origin
	processed map[Origin]time.Time // time of the last processOrigin
	settings  mesh.ClusterSettings

	published atomic.Pointer[publishedState]

	// The goroutine of Run owns what follows.
	clusters      map[mesh.ClusterID]*cluster
	registrations map[Origin]map[mesh.ClusterID]*registration
	problems      map[Origin][]Problem
	unlisted      int       // finders that have not called Listed
	searched      bool      // finders were started
	ready         bool      // Synced was called for the own cluster
	reminded      time.Time // time of the last log line about unenforced policies
	order         uint64    // counts registrations and clusters
}

// queueItem is a key of the queue.
type queueItem struct {
	kind    queueItemKind
	origin  Origin
	cluster mesh.ClusterID
	life    uint64 // of the cluster, for clusterOverdue
}

type queueItemKind uint8

const (
	originChanged   queueItemKind = iota
	readerSynced                  // a reader has read everything
	clusterOverdue                // the wait for a cluster is over
	finderListed                  // a finder has called Listed
	findersOverdue                // the wait for finders is over
	settingsChanged               // the settings of clusters changed
	timePassed
)

// New returns a Manager.
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

// Run reads clusters until ctx ends, and waits for all that it started. It fails if the
// own cluster cannot be read.
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

// registerStatic registers the own cluster and the static ones.
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

// Set implements Registrar.
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

// Listed implements Registrar.
func (m *Manager) Listed() { m.queue.Add(queueItem{kind: finderListed}) }

// setSettings sets the settings of clusters; nil means none.
func (m *Manager) setSettings(s *snapshot.ClusterSettings) {
	m.mu.Lock()
	m.settings = nil
	if s != nil {
		m.settings = s.Clusters
	}
	m.mu.Unlock()
	m.queue.Add(queueItem{kind: settingsChanged})
}

// Setting returns the settings of a cluster. It may be called concurrently.
func (m *Manager) Setting(id mesh.ClusterID) mesh.ClusterSetting {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.settings[id]
}

// applySettings applies the settings of clusters: the permissions of their kubeconfigs,
// and the load balancing of their endpoints.
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

// affected reports whether changed permissions may affect a cluster of the origin.
func (m *Manager) affected(o Origin) bool {
	for id, c := range m.registrations[o] {
		if !slices.Equal(c.allow, m.Setting(id).Allow) {
			return true
		}
	}
	return len(m.problems[o]) > 0
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

// fail ends Run with the error.
func (m *Manager) fail(err error) {
	select {
	case m.failed <- err:
	default:
	}
	m.queue.ShutDown()
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
				m.cfg.Log.Error("the search for other clusters has ended", "error", err)
				m.Listed()
			}
		})
	}
}

// markReady allows the first snapshot when the own cluster is read and all finders have
// listed the other clusters.
func (m *Manager) markReady() {
	own := m.clusters[m.cfg.Own]
	if !m.ready && own.synced && m.unlisted <= 0 {
		m.ready = true
		m.cfg.Registry.Synced(own.id)
	}
}
