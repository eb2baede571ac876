// Package registry joins the objects of all clusters to one snapshot of facts.
// One goroutine owns the indexes; a batch of events recomputes only what the
// events can touch, and what comes out equal keeps its address. Each new
// snapshot is published through an atomic pointer together with the names of
// what changed.
package registry

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Config says what the registry joins.
type Config struct {
	// Local is the cluster whose configuration objects count.
	Local mesh.ClusterID
	// Clusters are those to wait for before the first snapshot is published,
	// Local among them; Expect adds more.
	Clusters []mesh.ClusterID
	// Network is that of a cluster whose system namespace has no network
	// label.
	Network map[mesh.ClusterID]mesh.NetworkID
	// TrustDomain, when not empty, wins over that of MeshConfig.
	TrustDomain     string
	SystemNamespace string
	// Publish is told of every snapshot, in order, on the registry's
	// goroutine. It must not block.
	Publish func(*snapshot.Snapshot, *snapshot.Changes)
	// Resolve is told of the host names of gateways, sorted, whenever they change,
	// and answered by SetAddresses: the first snapshot waits for the first answer.
	// It must not block. Without it host names are not used.
	Resolve func(hosts []string)
	Log     *slog.Logger
	Now     func() time.Time
}

// Registry implements snapshot.Sink.
type Registry struct {
	cfg     Config
	current atomic.Pointer[snapshot.Snapshot]
	ready   chan struct{} // closed with the first snapshot

	mu      sync.Mutex
	pending batch
	// waiting are the clusters to wait for before the first snapshot.
	waiting   map[mesh.ClusterID]struct{}
	wake      chan struct{}
	double    atomic.Pointer[[]string]
	refused   atomic.Pointer[map[mesh.ClusterID]RefusedGateways]
	omitted   atomic.Pointer[snapshot.Table[string, Omitted]]
	conflicts atomic.Pointer[[]AddressConflict]
	// unreachable are the networks that cannot be reached from others.
	unreachable atomic.Pointer[[]UnreachableNetwork]

	// Owned by Run.
	state *state
	story story              // of what was taken since the last snapshot
	held  *snapshot.Snapshot // the first one, while host names are resolved
	asked []string           // the host names that were told of last
}

// New makes a registry; Run makes it work.
func New(cfg Config) *Registry {
	r := &Registry{
		cfg:     cfg,
		ready:   make(chan struct{}),
		pending: newBatch(),
		waiting: make(map[mesh.ClusterID]struct{}),
		wake:    make(chan struct{}, 1),
		state:   newState(cfg),
	}
	r.state.double = func(lines []string) { r.double.Store(&lines) }
	for _, c := range cfg.Clusters {
		r.waiting[c] = struct{}{}
	}
	return r
}

// Current is the newest snapshot, nil before the first.
func (r *Registry) Current() *snapshot.Snapshot { return r.current.Load() }

// Ready is closed when the first snapshot was published: every cluster has
// been read once.
func (r *Registry) Ready() <-chan struct{} { return r.ready }

// Apply implements snapshot.Sink. Events of one object that arrive while a
// snapshot is being built merge: the newest counts.
func (r *Registry) Apply(events []snapshot.Event) {
	if len(events) == 0 {
		return
	}
	r.change(func(b *batch) { b.apply(events) })
}

// Synced implements snapshot.Sink.
func (r *Registry) Synced(c mesh.ClusterID) {
	r.mu.Lock()
	delete(r.waiting, c)
	r.mu.Unlock()
	r.signal()
}

// Expect makes a cluster known. If nothing was published yet, the first
// snapshot waits until it is Synced.
func (r *Registry) Expect(c mesh.ClusterID) {
	r.change(func(b *batch) {
		b.expected[c] = struct{}{}
		r.waiting[c] = struct{}{}
	})
}

// Replace makes the events all that there is of a cluster: objects that they
// do not name are gone. What stays as it was changes nothing.
func (r *Registry) Replace(c mesh.ClusterID, events []snapshot.Event) {
	r.change(func(b *batch) { b.replace(c, events) })
}

// Remove forgets a cluster with all its objects. One of that name may come
// back.
func (r *Registry) Remove(c mesh.ClusterID) {
	r.change(func(b *batch) {
		b.remove(c)
		delete(r.waiting, c)
	})
}

// SetBalancing says how the endpoints of a cluster take part in load balancing,
// whether there is such a cluster now or later.
func (r *Registry) SetBalancing(c mesh.ClusterID, s snapshot.Balancing) {
	r.change(func(b *batch) { b.balancing[c] = s })
}

// SetTrustBundle says which roots workloads check each other with: PEM texts of
// one certificate each, sorted.
func (r *Registry) SetTrustBundle(roots []string) {
	r.change(func(b *batch) { b.trust = &snapshot.TrustBundle{Roots: roots} })
}

// SetAddresses sets the addresses of the host names of gateways: none for those
// that cannot be resolved. Names that the map lacks are still being asked for. The
// map must not be changed any more.
func (r *Registry) SetAddresses(of map[string][]netip.Addr) {
	r.change(func(b *batch) { b.hosts = of })
}

// SetHealth says what a proxy of that service account says of the health of the
// WorkloadEntry that it belongs to. It counts more than what the object says, if
// the entry is of that account; Unknown takes it back.
func (r *Registry) SetHealth(entry snapshot.PodKey, account string, is snapshot.Condition) {
	r.change(func(b *batch) { b.said[saidBy{entry, account}] = is })
}

// change enters something into the batch; r.mu is held meanwhile.
func (r *Registry) change(enter func(*batch)) {
	r.mu.Lock()
	if r.pending.empty() {
		r.pending.since = r.cfg.Now()
	}
	enter(&r.pending)
	r.mu.Unlock()
	r.signal()
}

func (r *Registry) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run builds snapshots until the context ends. It returns nil then.
func (r *Registry) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		}
		r.turn()
	}
}

// resolve has the host names of gateways resolved when they changed. It reports
// whether there are some and no answer has come so far.
func (r *Registry) resolve() bool {
	if r.cfg.Resolve == nil {
		return false
	}
	if hosts := r.state.hostNames(); !slices.Equal(hosts, r.asked) {
		r.asked = hosts
		r.cfg.Resolve(hosts)
	}
	return len(r.asked) > 0 && r.state.hosts == nil
}

// turn takes what is pending and publishes a snapshot if something changed.
func (r *Registry) turn() {
	r.mu.Lock()
	batch, complete := r.pending, len(r.waiting) == 0 || r.current.Load() != nil
	r.pending = newBatch()
	r.mu.Unlock()

	taken := r.cfg.Now()
	r.story.add(&batch, batch.into(r.state))
	if !complete {
		return
	}
	before := r.current.Load()
	next, changes := r.state.build(cmp.Or(before, r.held))
	refused := r.state.refused
	r.refused.Store(&refused)
	r.omitted.Store(r.state.omitted)
	unreachable, conflicts := r.state.unreachable, r.state.conflictList
	r.unreachable.Store(&unreachable)
	r.conflicts.Store(&conflicts)
	if r.resolve() && before == nil {
		r.held = next
		return
	}
	if r.held != nil {
		r.held, changes.Everywhere = nil, true
	}
	told := r.story
	r.story = story{}
	if before != nil && changes.Empty() {
		return
	}
	changes.Causes, changes.Events = told.causes, told.events
	changes.Since, changes.Taken, changes.Built = told.since, taken, r.cfg.Now()
	r.current.Store(next)
	r.cfg.Publish(next, changes)
	if before == nil {
		r.cfg.Log.Info("first snapshot", "services", next.Services.Len(), "pods", next.Pods.Len(),
			"networks_with_gateways", len(next.Gateways.ByNetwork))
		close(r.ready) // after Publish: who waits for it finds everything in place
	}
}
