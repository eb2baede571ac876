// Package xds delivers Envoy resources over ADS, in the state-of-the-world and the
// delta variant. The Hub generates and encodes each view that some stream uses
// once; a stream only chooses which of the shared bytes to send. There is no
// debounce: changes that arrive while the hub or a stream is busy are merged, and
// the newest state wins.
package xds

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Generator holds the functions that choose and make configuration; package xdsgen
// implements them.
type Generator struct {
	ParseNode func(n *corev3.Node, maxMetadata int) (proxy.Node, error)
	Assign    func(*snapshot.Snapshot, proxy.Node) units.Assignment
	// AssignReads returns the only facts about a proxy that Assign reads. Concerned reports
	// which proxies the changes of other facts concern; nil means none.
	AssignReads func(proxy.Node) (pod, namespace string)
	Concerned   func(*snapshot.Snapshot, *snapshot.Changes) func(proxy.Node) bool
	// Fallback makes the answer for an EDS or RDS name that no view has. It may
	// return nil: then there is no answer.
	Fallback func(typeURL, name string, e *xdswire.Encoder) (*xdswire.Resource, error)
	// Secrets chooses which of the named secrets a caller gets. Private keys are
	// among them only if keys is set.
	Secrets func(s *snapshot.Snapshot, c mesh.Caller, keys bool, names *xdswire.NameSet) units.Secrets
}

// Config configures a Hub. Ready, MayReadKeys and Memory may be nil.
type Config struct {
	Generator Generator
	Metrics   *Metrics
	Log       *slog.Logger
	Now       func() time.Time
	// Ready refuses streams until it reports true. The hub refuses streams before
	// the first snapshot in any case.
	Ready  func() bool
	Limits Limits
	// MayReadKeys decides whether a caller gets private keys of its own namespace
	// and cluster; the error is the reason why not. Nil permits no caller. It is
	// called whenever the hub chooses a stream's views and must not block: when it
	// has to ask an API server, it returns xdsgen.ErrUndecided and calls
	// Hub.Reconsider later.
	MayReadKeys func(*snapshot.Snapshot, mesh.Caller, proxy.Node) error
	// VirtualHostDiscovery sends virtual hosts one by one to the sidecars that support it.
	// HostsOnDemand limits them to the requested ones if the sidecar sees many services.
	VirtualHostDiscovery, HostsOnDemand bool
	// Memory returns the used share of the process's memory limit. Above 0.8 new
	// streams wait, and the hub closes the largest connections.
	Memory func() float64
}

// numTypes is the number of resource types that the hub serves.
const numTypes = len(xdswire.PushOrder)

// Indexes of the types in xdswire.PushOrder.
const (
	cds = iota
	eds
	lds
	rds
	vhds
	sds
	ecds
	nds
	pcds
	bds
)

// typeIndex returns the index of a type in xdswire.PushOrder, or -1.
func typeIndex(url string) int { return slices.Index(xdswire.PushOrder[:], url) }

// typeName returns the short name of the type with an index, such as CDS.
func typeName(i int) string { return xdswire.ShortType(xdswire.PushOrder[i]) }

// Hub owns the live views and the streams that use them.
type Hub struct {
	cfg       Config
	encoder   xdswire.Encoder
	names     *xdswire.NameSets
	history   *history.Recorder
	done      chan struct{} // closed when Run ends
	turns     *admission.Turns
	queue     sessionQueue
	fallbacks fallbackCache
	ready     atomic.Bool                       // Update was called
	seq       atomic.Uint64                     // of the snapshot that all views show
	current   atomic.Pointer[snapshot.Snapshot] // stored by Run only

	mu      sync.Mutex
	mail    mail
	wake    chan struct{} // capacity 1: the mail is not empty
	proxies map[*subscriber]struct{}
	streams uint64 // streams so far, to number them
	conns   []*admission.Conns

	// showing is held while a round stores view states and assignments: a stream
	// sees a change whole or not at all.
	showing sync.RWMutex

	overlays atomic.Uint64 // view states that streams made so far

	patchFaults patchFaults
	patched     patchedUnits

	// The fields below belong to the goroutine of Run.
	subs    streamIndex
	left    leftProxies
	views   viewIndex
	units   map[units.Unit]*unit
	missing []*unit           // to generate in this round
	early   *snapshot.Changes // the last changes that publishEndpoints handled
	idle    []*unit           // units that lost a view since the last sweep
	states  uint64            // view states so far, to number them
}

// mail collects the work for the hub's goroutine.
type mail struct {
	snapshot   *snapshot.Snapshot
	changes    *snapshot.Changes
	attach     []*subscriber
	detach     []*subscriber
	demands    map[demandKey]demand
	moved      map[*subscriber]*assignment // that their proxies have, see moving_policies.go
	reconsider map[string]struct{}         // pods whose permission to read keys may have changed
	inspect    []chan<- []LiveView
}

// NewHub returns a hub. It does nothing until Run.
func NewHub(cfg Config) *Hub {
	cfg.Limits = cfg.Limits.withDefaults()
	h := &Hub{
		cfg:     cfg,
		names:   xdswire.NewNameSets(),
		history: history.New(),
		done:    make(chan struct{}),
		turns:   admission.NewTurns(cfg.Limits.Starting, cfg.Limits.MemoryWait, cfg.Memory),
		wake:    make(chan struct{}, 1),
		proxies: make(map[*subscriber]struct{}),
		subs:    newStreamIndex(),
		views:   newViewIndex(),
		units:   make(map[units.Unit]*unit),
	}
	h.encoder.Encoded = func(url string) {
		if i := typeIndex(url); i >= 0 {
			cfg.Metrics.encoded[i].Inc()
			if i == vhds {
				cfg.Metrics.generated[i].Inc()
			}
		}
	}
	return h
}

// Update passes a new snapshot and the changes since the previous one; nil changes
// mean that everything changed. Update never blocks: while the hub is busy, changes
// are merged and only the newest snapshot is used. Only one goroutine at a time may
// call it.
func (h *Hub) Update(s *snapshot.Snapshot, c *snapshot.Changes) {
	if c == nil {
		c = &snapshot.Changes{Everywhere: true}
	}
	h.cfg.Metrics.push.published(c)
	h.post(func(m *mail) {
		m.snapshot = s
		m.changes = m.changes.Merge(c)
	})
	h.ready.Store(true)
}

// Reconsider makes the streams of pods, named as snapshot.PodKey names them, call
// MayReadKeys again. It never blocks.
func (h *Hub) Reconsider(pods []string) {
	h.post(func(m *mail) {
		if m.reconsider == nil {
			m.reconsider = make(map[string]struct{})
		}
		for _, pod := range pods {
			m.reconsider[pod] = struct{}{}
		}
	})
}

// Seq returns the sequence number of the snapshot that all views show, or 0 before
// the first.
func (h *Hub) Seq() uint64 { return h.seq.Load() }

// post adds work to the mail and wakes the hub. The lock is held during add.
func (h *Hub) post(add func(*mail)) {
	h.mu.Lock()
	add(&h.mail)
	h.mu.Unlock()
	signal(h.wake)
}

// signal sends on a channel of capacity 1 unless it is full.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run runs the hub until ctx ends, then ends every stream. It returns nil.
func (h *Hub) Run(ctx context.Context) error {
	defer close(h.done)
	ctx, cancel := context.WithCancel(ctx)
	var relief sync.WaitGroup
	if h.cfg.Memory != nil {
		relief.Go(func() { h.relieve(ctx) })
	}
	defer func() {
		cancel()
		relief.Wait()
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.wake:
			h.deliver()
		}
	}
}

// deliver takes the mail and runs a round on it.
func (h *Hub) deliver() {
	h.mu.Lock()
	m := h.mail
	h.mail = mail{}
	h.mu.Unlock()
	h.round(m)
}
