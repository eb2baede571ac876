package xds

import (
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// subscriber is a stream as the hub sees it.
type subscriber struct {
	id     string
	node   xdsgen.Node
	caller mesh.Caller
	// certificate is with which the caller proved itself; nil when it was not by one.
	certificate *mesh.ClientCertificate
	address     string // of the peer
	variant     xdswire.Variant
	connected   time.Time
	session     *session
	recheck     func() error // why its caller would not be let in any more
	// assigned is set once the views are generated.
	assigned atomic.Pointer[assignment]
	// pod and namespace are what AssignReads says, set by attach.
	pod, namespace string
	// What follows belongs to the hub's goroutine: the views that the proxy may
	// have, or why none could be chosen; it is given those that it demands.
	views   [numTypes]allowedViews
	err     error
	demands [numTypes]demand
	// record is set by attach.
	record *history.Stream

	mu     sync.Mutex
	status [numTypes]typeStatus
}

// attach registers a stream. Everything that is published from then on
// reaches it: its views are chosen after it is registered.
func (h *Hub) attach(s *subscriber) {
	s.pod, s.namespace = h.cfg.Generation.AssignReads(s.node)
	s.record = h.history.Open(history.Info{
		Stream: s.id, Proxy: s.node.ID.ProxyID(), Variant: s.variant.String(), Connected: s.connected,
	})
	h.mu.Lock()
	h.proxies[s] = struct{}{}
	h.mail.attach = append(h.mail.attach, s)
	h.mu.Unlock()
	signal(h.wake)
	h.cfg.Metrics.streams.Inc()
}

func (h *Hub) detach(s *subscriber) {
	s.record.Close(h.cfg.Now())
	s.mu.Lock()
	for i := range s.status {
		h.cfg.Metrics.refused[i].Sub(float64(len(s.status[i].quarantined)))
	}
	s.mu.Unlock()
	h.mu.Lock()
	delete(h.proxies, s)
	h.mail.detach = append(h.mail.detach, s)
	h.mu.Unlock()
	signal(h.wake)
	h.cfg.Metrics.streams.Dec()
}

// setStatus changes the status of one type.
func (s *subscriber) setStatus(i int, set func(*typeStatus)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set(&s.status[i])
}

// subscribers lists the connected streams in no order.
func (h *Hub) subscribers() []*subscriber {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.proxies))
}

// streams are the attached streams, found by what their views are chosen by.
type streamIndex struct {
	all                map[*subscriber]struct{}
	byPod, byNamespace index[string, *subscriber]
}

func newStreamIndex() streamIndex {
	return streamIndex{make(map[*subscriber]struct{}), make(index[string, *subscriber]), make(index[string, *subscriber])}
}

// add notes a stream, which must say what it reads.
func (s *streamIndex) add(sub *subscriber) {
	s.all[sub] = struct{}{}
	s.byPod.add(sub.pod, sub)
	s.byNamespace.add(sub.namespace, sub)
}

func (s *streamIndex) remove(sub *subscriber) {
	delete(s.all, sub)
	s.byPod.remove(sub.pod, sub)
	s.byNamespace.remove(sub.namespace, sub)
}

// concerned yields the streams whose views may be others after the changes, all
// of them or those that read what changed. It may yield one twice.
func (s *streamIndex) concerned(c *snapshot.Changes, all bool) iter.Seq[*subscriber] {
	return func(yield func(*subscriber) bool) {
		each := func(subs map[*subscriber]struct{}) bool {
			for sub := range subs {
				if !yield(sub) {
					return false
				}
			}
			return true
		}
		if all {
			each(s.all)
			return
		}
		for pod := range c.Pods {
			if !each(s.byPod[pod]) {
				return
			}
		}
		for namespace := range c.Namespaces {
			if !each(s.byNamespace[namespace]) {
				return
			}
		}
	}
}
