// Package registry derives the facts about the mesh from the objects of all
// clusters, and publishes them as snapshots.
//
// One goroutine owns the indexes. For a batch of events it recomputes only the facts
// that the events can change; a fact that turns out equal keeps its address. Each new
// snapshot is published together with the names of the facts that changed.
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
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Config configures a Registry.
type Config struct {
	// Local is the cluster whose configuration objects count.
	Local mesh.ClusterID
	// Clusters holds the clusters that must be Synced before the first snapshot is
	// published, including Local. Expect adds more.
	Clusters []mesh.ClusterID
	// Network holds the networks of clusters whose system namespace has no network
	// label.
	Network map[mesh.ClusterID]mesh.NetworkID
	// TrustDomain overrides the trust domain of MeshConfig if it is not empty.
	TrustDomain     string
	SystemNamespace string
	// Publish gets every snapshot, in order, on the registry's goroutine. It must not
	// block.
	Publish func(*snapshot.Snapshot, *snapshot.Changes)
	// Resolve gets the host names of gateways, sorted, whenever they change. The
	// answer comes by SetAddresses; the first snapshot waits for the first answer.
	// Resolve must not block. If it is nil, host names are not used.
	Resolve func(hosts []string)
	// FetchKeys gets the sources of key sets of each namespace, sorted, whenever they change. The answer
	// comes by SetKeySets; the first snapshot waits for the first answer. FetchKeys must
	// not block. If it is nil, no key set is fetched.
	FetchKeys func([]snapshot.WantedKeys)
	Log       *slog.Logger
	Now       func() time.Time
}

// Registry implements snapshot.Sink.
type Registry struct {
	cfg     Config
	current atomic.Pointer[snapshot.Snapshot]
	report  atomic.Pointer[report]
	ready   chan struct{}       // closed with the first snapshot
	asks    chan chan *Contents // answered by Run

	mu      sync.Mutex
	pending batch
	waiting map[mesh.ClusterID]struct{} // clusters to sync before the first snapshot
	wake    chan struct{}

	// Owned by Run.
	state   *state
	changes changeLog             // since the last snapshot
	held    *snapshot.Snapshot    // the first one, until host names are resolved and keys fetched
	asked   []string              // host names of the last call of Resolve
	wanted  []snapshot.WantedKeys // of the last call of FetchKeys
}

// report holds the problems and objects that only status pages show. It is immutable once
// published.
type report struct {
	// rules holds the DestinationRules by Key.String.
	rules      *snapshot.Table[string, snapshot.DestinationRule]
	duplicates []string
	// serverConflicts and unknownProviders are sorted.
	serverConflicts, unknownProviders []string
	refused                           map[mesh.ClusterID]facts.RefusedGateways
	gateways                          []facts.Gateway
	omitted                           *snapshot.Table[string, facts.Omitted]
	conflicts                         []facts.AddressConflict
	// hostConflicts is sorted by host.
	hostConflicts []facts.HostConflict
	unreachable   []facts.UnreachableNetwork
	// routes is sorted.
	routes []facts.RouteProblem
	// beyond is sorted.
	beyond    []beyondLimit
	unwritten []facts.UnwrittenAddresses
	injection facts.Injection
	faults    []derive.Fault
	computed  map[string]uint64 // by table
}

// New returns a Registry. Run does its work.
func New(cfg Config) *Registry {
	r := &Registry{
		cfg:     cfg,
		ready:   make(chan struct{}),
		asks:    make(chan chan *Contents),
		pending: newBatch(),
		waiting: make(map[mesh.ClusterID]struct{}),
		wake:    make(chan struct{}, 1),
		state:   newState(cfg),
	}
	r.report.Store(&report{})
	for _, c := range cfg.Clusters {
		r.waiting[c] = struct{}{}
	}
	return r
}

// Faults returns the facts that could not be computed. Each keeps its last good value.
func (r *Registry) Faults() []derive.Fault { return r.report.Load().faults }

// Current returns the newest snapshot, or nil before the first.
func (r *Registry) Current() *snapshot.Snapshot { return r.current.Load() }

// Rules returns the DestinationRules by Key.String, also those that concern no service.
func (r *Registry) Rules() *snapshot.Table[string, snapshot.DestinationRule] {
	return r.report.Load().rules
}

// Ready is closed when the first snapshot is published.
func (r *Registry) Ready() <-chan struct{} { return r.ready }

// Apply implements snapshot.Sink. Only the newest event of an object counts if several
// arrive before the next snapshot.
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

// Expect adds a cluster. The first snapshot, if not published yet, waits until the
// cluster is Synced.
func (r *Registry) Expect(c mesh.ClusterID) {
	r.change(func(b *batch) {
		b.expected[c] = struct{}{}
		r.waiting[c] = struct{}{}
	})
}

// Replace makes the objects of the events all objects of a cluster and removes the
// others. An object that stays equal changes nothing.
func (r *Registry) Replace(c mesh.ClusterID, events []snapshot.Event) {
	r.change(func(b *batch) { b.replace(c, events) })
}

// Remove removes a cluster and all its objects. A cluster of the same name may be
// added again.
func (r *Registry) Remove(c mesh.ClusterID) {
	r.change(func(b *batch) {
		b.remove(c)
		delete(r.waiting, c)
	})
}

// SetBalancing sets how the endpoints of a cluster take part in load balancing. The
// cluster may be added later.
func (r *Registry) SetBalancing(c mesh.ClusterID, s snapshot.Balancing) {
	r.change(func(b *batch) { b.balancing[c] = s })
}

// SetTrustBundle sets the roots with which workloads verify each other, one PEM
// certificate per element, sorted.
func (r *Registry) SetTrustBundle(roots []string) {
	r.change(func(b *batch) { b.trust = &snapshot.TrustBundle{Roots: roots} })
}

// SetAddresses sets the addresses of the host names of gateways. A name without
// addresses cannot be resolved, and a name that is not in the map is still being
// resolved. The caller must not change the map afterwards.
func (r *Registry) SetAddresses(of map[string][]netip.Addr) {
	r.change(func(b *batch) { b.hosts = of })
}

// SetKeySets sets the fetched key sets, each a JWKS. The caller must not change the map
// afterwards.
func (r *Registry) SetKeySets(of map[snapshot.KeySource]string) {
	r.change(func(b *batch) { b.keySets = of })
}

// SetHealth sets the health of a WorkloadEntry as reported by its own proxy, which runs
// as the service account. If the entry has that account, the report overrides the
// status of the object. Unknown withdraws the report.
func (r *Registry) SetHealth(entry snapshot.PodKey, account string, health snapshot.Condition) {
	r.change(func(b *batch) { b.health[facts.HealthReporter{Entry: entry, Account: account}] = health })
}

// change calls enter with the pending batch, holding r.mu, and wakes Run.
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

// Run builds snapshots and answers Contents until the context ends, and then returns
// nil. It ends before the next fact is computed.
func (r *Registry) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
			r.turn(ctx)
		case answer := <-r.asks:
			answer <- r.state.contents(r.current.Load())
		}
	}
}

// resolve calls Resolve if the host names of gateways changed. It reports whether
// there are host names and no answer has come so far.
func (r *Registry) resolve() bool {
	if r.cfg.Resolve == nil {
		return false
	}
	if hosts := r.state.Found.Get(nil).HostNames(); !slices.Equal(hosts, r.asked) {
		r.asked = hosts
		r.cfg.Resolve(hosts)
	}
	return len(r.asked) > 0 && !r.state.resolved
}

// fetchKeys calls FetchKeys if the sources of key sets changed. It reports whether there are
// sources and no answer has come so far.
func (r *Registry) fetchKeys() bool {
	if r.cfg.FetchKeys == nil {
		return false
	}
	if wanted := r.state.Wanted.Get(nil); !slices.Equal(wanted, r.wanted) {
		r.wanted = wanted
		r.cfg.FetchKeys(wanted)
	}
	return len(r.wanted) > 0 && !r.state.fetched
}

// turn applies the pending batch and publishes a snapshot if facts changed. If the context ends
// before the facts are computed, it publishes nothing.
func (r *Registry) turn(ctx context.Context) {
	r.mu.Lock()
	batch, complete := r.pending, len(r.waiting) == 0 || r.current.Load() != nil
	r.pending = newBatch()
	r.mu.Unlock()

	taken := r.cfg.Now()
	r.changes.add(&batch, batch.into(r.state))
	if !complete {
		return
	}
	before := r.current.Load()
	next, changes := r.state.build(ctx, cmp.Or(before, r.held))
	if next == nil {
		return
	}
	report := r.state.report
	r.report.Store(&report)
	waits := r.resolve()
	if waits = r.fetchKeys() || waits; waits && before == nil {
		r.held = next
		return
	}
	if r.held != nil {
		r.held, changes.Everywhere = nil, true
	}
	log := r.changes
	r.changes = changeLog{}
	if before != nil && changes.Empty() {
		return
	}
	changes.Causes, changes.Events = log.causes, log.events
	changes.Since, changes.Taken, changes.Built = log.since, taken, r.cfg.Now()
	r.current.Store(next)
	r.cfg.Publish(next, changes)
	if before == nil {
		r.cfg.Log.Info("first snapshot", "services", next.Services.Len(), "pods", next.Pods.Len(),
			"networks_with_gateways", len(next.Gateways.ByNetwork))
		close(r.ready) // after Publish: waiters on Ready find everything in place
	}
}
