// Package registry joins the objects of all clusters to one snapshot of facts.
// One goroutine owns the indexes; a batch of events recomputes only what the
// events can touch, and what comes out equal keeps its address. Each new
// snapshot is published through an atomic pointer together with the names of
// what changed.
package registry

import (
	"context"
	"log/slog"
	"slices"
	"strings"
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
	// Clusters are all clusters to wait for before the first snapshot is
	// published, Local among them.
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
	Log     *slog.Logger
	Now     func() time.Time
}

// Registry implements snapshot.Sink.
type Registry struct {
	cfg     Config
	current atomic.Pointer[snapshot.Snapshot]
	ready   chan struct{} // closed with the first snapshot

	mu      sync.Mutex
	pending map[snapshot.Key]snapshot.Event
	since   time.Time // arrival of the oldest pending event
	synced  map[mesh.ClusterID]bool
	wake    chan struct{}

	state *state // owned by Run
}

// New makes a registry; Run makes it work.
func New(cfg Config) *Registry {
	return &Registry{
		cfg:     cfg,
		ready:   make(chan struct{}),
		pending: make(map[snapshot.Key]snapshot.Event),
		synced:  make(map[mesh.ClusterID]bool),
		wake:    make(chan struct{}, 1),
		state:   newState(cfg),
	}
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
	r.mu.Lock()
	if len(r.pending) == 0 {
		r.since = r.cfg.Now()
	}
	for _, e := range events {
		r.pending[e.Key] = e
	}
	r.mu.Unlock()
	r.signal()
}

// Synced implements snapshot.Sink.
func (r *Registry) Synced(c mesh.ClusterID) {
	r.mu.Lock()
	r.synced[c] = true
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

// turn takes what is pending and publishes a snapshot if something changed.
func (r *Registry) turn() {
	r.mu.Lock()
	events, since := r.pending, r.since
	r.pending = make(map[snapshot.Key]snapshot.Event)
	complete := true
	for _, c := range r.cfg.Clusters {
		complete = complete && r.synced[c]
	}
	r.mu.Unlock()

	causes := make([]snapshot.Cause, 0, min(len(events), maxCauses))
	for k, e := range events {
		r.state.apply(e)
		if len(causes) < maxCauses {
			cause := snapshot.Cause{Key: k, Gone: e.Object == nil}
			if e.Object != nil {
				cause.Place = e.Object.ReadFrom()
			}
			causes = append(causes, cause)
		}
	}
	if !complete {
		return
	}
	slices.SortFunc(causes, func(a, b snapshot.Cause) int { return strings.Compare(a.String(), b.String()) })
	before := r.current.Load()
	next, changes := r.state.build(before)
	if before != nil && changes.Empty() {
		return
	}
	changes.Causes, changes.Events, changes.Since = causes, len(events), since
	r.current.Store(next)
	r.cfg.Publish(next, changes)
	if before == nil {
		r.cfg.Log.Info("first snapshot", "services", next.Services.Len(), "pods", next.Pods.Len(),
			"networks_with_gateways", len(next.Gateways.ByNetwork))
		close(r.ready) // after Publish: who waits for it finds everything in place
	}
}

// maxCauses bounds how many objects a change names.
const maxCauses = 8
