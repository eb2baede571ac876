package xds

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// subscriber is the hub's side of a stream; session is the other.
type subscriber struct {
	id          string
	node        proxy.Node
	caller      mesh.Caller
	certificate *mesh.ClientCertificate // of the caller, nil without one
	address     string                  // of the peer
	variant     xdswire.Variant
	connected   time.Time
	session     *session
	recheck     func() error // returns an error once the caller's access was revoked
	// assigned is set once the views are generated.
	assigned atomic.Pointer[assignment]
	// pod and namespace are the results of AssignReads. attach sets them and record.
	pod, namespace string
	record         *history.StreamRecord
	// The hub's goroutine owns the fields up to mu: the views that the proxy may have, or
	// the error that prevented the choice, and the types that it demands.
	views   [numTypes]allowedViews
	err     error
	demands [numTypes]demand
	// moving is set if the views have old versions of moved policies; latest is the view of
	// extensions without them.
	moving bool
	latest units.View
	draining

	mu     sync.Mutex
	status [numTypes]typeStatus
}

// attach registers a stream. The hub chooses the stream's views afterwards, so the
// stream misses no later publication.
func (h *Hub) attach(s *subscriber) {
	s.pod, s.namespace = h.cfg.Generator.AssignReads(s.node)
	s.record = h.history.Open(history.Info{
		Stream: s.id, Proxy: s.node.ID.ProxyID(), Variant: s.variant.String(), Connected: s.connected,
	})
	h.post(func(m *mail) {
		h.proxies[s] = struct{}{}
		m.attach = append(m.attach, s)
	})
	h.cfg.Metrics.streams.Inc()
}

func (h *Hub) detach(s *subscriber) {
	s.record.Close(h.cfg.Now())
	s.mu.Lock()
	for i := range s.status {
		h.cfg.Metrics.refused[i].Sub(float64(len(s.status[i].quarantined)))
	}
	s.mu.Unlock()
	h.post(func(m *mail) {
		delete(h.proxies, s)
		m.detach = append(m.detach, s)
	})
	h.cfg.Metrics.streams.Dec()
}

// setStatus changes the status of one type.
func (s *subscriber) setStatus(i int, set func(*typeStatus)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set(&s.status[i])
}

// subscribers returns the connected streams in no particular order.
func (h *Hub) subscribers() []*subscriber {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.proxies))
}
