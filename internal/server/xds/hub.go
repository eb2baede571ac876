// Package xds delivers Envoy resources over the aggregated discovery service,
// state of the world and delta. The Hub keeps each view that some stream uses
// generated and encoded; a stream only chooses which of the shared bytes to
// send. Nothing waits before it is sent: what changes while the hub or a
// stream is busy is merged, and the newest wins.
package xds

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Generation is what the hub needs of package xdsgen besides views.
type Generation struct {
	ParseNode func(n *corev3.Node, maxMetadata int) (xdsgen.Node, error)
	Assign    func(*snapshot.Snapshot, xdsgen.Node) xdsgen.Assignment
	// AssignReads is what Assign reads of the proxy alone; AssignAll says that
	// changes concern every proxy.
	AssignReads func(xdsgen.Node) (pod, namespace string)
	AssignAll   func(*snapshot.Snapshot, *snapshot.Changes) bool
	// Fallback answers names of EDS and RDS that no view has; nil is no
	// answer.
	Fallback func(typeURL, name string, e *xdswire.Encoder) (*xdswire.Resource, error)
	// Secrets chooses what a caller is given of the secrets of those names; keys
	// says whether private keys may be among it.
	Secrets func(s *snapshot.Snapshot, c mesh.Caller, keys bool, names *xdswire.NameSet) xdsgen.Secrets
}

// Config is what a Hub works with. All fields but the last four are needed.
type Config struct {
	Generation Generation
	Metrics    *Metrics
	Log        *slog.Logger
	Now        func() time.Time
	// Ready, when set, refuses streams until it reports true. Before the
	// first snapshot they are refused anyway.
	Ready  func() bool
	Limits Limits
	// MayReadKeys decides which callers are given private keys of their own
	// namespace and cluster; an error says why not, nil MayReadKeys is nobody.
	// It is asked each time a stream's views are chosen and must not block: one
	// that asks elsewhere says xdsgen.ErrUndecided and has the stream look again
	// by Reconsider.
	MayReadKeys func(*snapshot.Snapshot, mesh.Caller, xdsgen.Node) error
	// Observer, when set, is told how changes reach proxies.
	Observer history.Observer
	// Memory, when set, is the share of the process's memory limit that is in
	// use. While it is above 0.8 new streams wait and the largest connections are
	// closed.
	Memory func() float64
}

// numTypes is the number of types that are served.
const numTypes = len(xdswire.PushOrder)

// Indexes of types in xdswire.PushOrder that have rules of their own.
const (
	cds = iota
	eds
	lds
	rds
	sds
	ecds
	nds
	pcds
)

// typeIndex is the place of a type in xdswire.PushOrder, or -1.
func typeIndex(url string) int {
	for i, t := range xdswire.PushOrder {
		if t == url {
			return i
		}
	}
	return -1
}

// Hub owns the table of live views.
type Hub struct {
	cfg     Config
	encoder xdswire.Encoder
	names   *xdswire.NameSets
	history *history.Recorder
	done    chan struct{} // closed when Run ends
	turns   *admission.Turns
	queue   queue
	fallbacks fallbackCache
	ready   atomic.Bool                       // a snapshot has arrived
	seq     atomic.Uint64                     // of the snapshot that the views show
	current atomic.Pointer[snapshot.Snapshot] // stored by Run alone

	mu      sync.Mutex
	mail    mail
	wake    chan struct{} // capacity 1: mail has come
	proxies map[*subscriber]struct{}
	streams uint64 // streams so far, for their ids
	conns   []*admission.Conns

	// showing is held while a round's states and assignments are stored, so that
	// a stream sees all of a change or nothing.
	showing sync.RWMutex

	overlays atomic.Uint64 // states made by streams so far

	// What follows belongs to the goroutine of Run.
	subs    streamIndex
	views   viewIndex
	units   map[xdsgen.Unit]*unit
	missing []*unit // to generate in this round
	idle    []*unit // perhaps without a view since the last sweep
	states  uint64  // ids of view states so far
	// times are those of the round's generation, nil without an Observer.
	times *generationTimes
}

// mail is what waits for the hub's goroutine.
type mail struct {
	snapshot   *snapshot.Snapshot
	changes    *snapshot.Changes
	attach     []*subscriber
	detach     []*subscriber
	demands    map[demandKey]demand
	reconsider map[string]struct{} // pods whose rights may have changed
	inspect    []chan<- []LiveView
}

// NewHub makes a hub. Nothing happens until Run.
func NewHub(cfg Config) *Hub {
	cfg.Limits = cfg.Limits.withDefaults()
	h := &Hub{
		cfg:     cfg,
		names:   xdswire.NewNameSets(),
		history: history.New(cfg.Observer),
		done:    make(chan struct{}),
		turns:   admission.NewTurns(cfg.Limits.Starting, cfg.Limits.MemoryWait, cfg.Memory),
		wake:    make(chan struct{}, 1),
		proxies: make(map[*subscriber]struct{}),
		subs:    newStreamIndex(),
		views:   newViewIndex(),
		units:   make(map[xdsgen.Unit]*unit),
	}
	h.encoder.Encoded = func(url string) {
		if i := typeIndex(url); i >= 0 {
			cfg.Metrics.encoded[i].Inc()
		}
	}
	return h
}

// Update hands over a snapshot and what changed since the one handed over
// before; nil changes mean everything. It never blocks: while the hub is busy
// changes are merged and only the newest snapshot is used. It must be called
// by one goroutine at a time.
func (h *Hub) Update(s *snapshot.Snapshot, c *snapshot.Changes) {
	if c == nil {
		c = &snapshot.Changes{Everywhere: true}
	}
	h.cfg.Metrics.istio.published(c)
	h.post(func(m *mail) {
		m.snapshot = s
		m.changes = mergeChanges(m.changes, c)
	})
	h.ready.Store(true)
}

// Reconsider has the streams of pods, named as snapshot.PodKey does, look again at
// what MayReadKeys says of them. It never blocks.
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

// Seq is the sequence number of the snapshot that all views show; 0 before
// the first.
func (h *Hub) Seq() uint64 { return h.seq.Load() }

// post adds to the mail and wakes the hub.
func (h *Hub) post(add func(*mail)) {
	h.mu.Lock()
	add(&h.mail)
	h.mu.Unlock()
	signal(h.wake)
}

// signal leaves a sign in a channel of capacity 1, where one is enough.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// maxCauses is how many causes a merged change keeps.
const maxCauses = 16

// mergeChanges is both changes as one. It writes to neither.
func mergeChanges(a, b *snapshot.Changes) *snapshot.Changes {
	if a == nil {
		return b
	}
	causes := append(slices.Clip(a.Causes), b.Causes...)
	out := &snapshot.Changes{
		Services:    union(a.Services, b.Services),
		Endpoints:   union(a.Endpoints, b.Endpoints),
		Ports:       union(a.Ports, b.Ports),
		Pods:        union(a.Pods, b.Pods),
		Secrets:     union(a.Secrets, b.Secrets),
		Namespaces:  union(a.Namespaces, b.Namespaces),
		TrustBundle: a.TrustBundle || b.TrustBundle,
		Everywhere:  a.Everywhere || b.Everywhere,
		Causes:      causes[:min(len(causes), maxCauses)],
		Events:      a.Events + b.Events,
		Since:       a.Since, Taken: a.Taken, Built: b.Built,
	}
	if a.Since.IsZero() || !b.Since.IsZero() && b.Since.Before(a.Since) {
		out.Since, out.Taken = b.Since, b.Taken
	}
	return out
}

func union[K comparable](a, b map[K]struct{}) map[K]struct{} {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// Run is the hub's goroutine. It returns nil when ctx ends, and ends every
// stream.
func (h *Hub) Run(ctx context.Context) error {
	defer close(h.done)
	if h.cfg.Memory != nil {
		relieved := make(chan struct{})
		ctx, cancel := context.WithCancel(ctx)
		go func() {
			defer close(relieved)
			h.relieve(ctx)
		}()
		defer func() {
			cancel()
			<-relieved
		}()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.wake:
			h.deliver()
		}
	}
}

// deliver works off the mail that has come.
func (h *Hub) deliver() {
	h.mu.Lock()
	m := h.mail
	h.mail = mail{}
	h.mu.Unlock()
	h.round(m)
}
