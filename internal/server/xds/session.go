package xds

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// session is the state of one stream. One goroutine at a time works for it: the one
// that receives requests, or a worker of the hub's queue.
type session struct {
	hub    *Hub
	sub    *subscriber
	log    *slog.Logger
	send   func(*xdswire.Frame) error
	writer *streamWriter
	// counted is charged for the subscribed names, which were counts the last time.
	counted        *admission.Stream
	counts         [numTypes]*xdswire.NameSet
	ended          chan error  // capacity 1: the reason why the stream ends
	pending        atomic.Bool // the hub published something since the last flush
	aggregated     bool        // the stream is for all types
	requestWaiting atomic.Bool // a request waits for mu; nothing is sent before it
	queued         bool        // under the lock of the hub's queue

	mu       sync.Mutex // never held for long
	closed   bool       // nothing more may be sent
	nonces   xdswire.Nonces
	types    [numTypes]typeState
	lastType int // the type of the last request
	clusters clusterOrder
	// demanded holds the demands that the hub knows; demandedBy is their basis.
	demanded   [numTypes]demand
	demandedBy demandBasis
	// warnedSecrets are the secrets of the last warning; checkedSecrets is its basis.
	warnedSecrets  *xdswire.NameSet
	checkedSecrets secretsBasis
	// warnedPlugins is the last warning about plugins without credentials; checkedPlugins is its
	// basis.
	warnedPlugins  string
	checkedPlugins viewSet
	// movedTo is the last assignment that reportMoved reported.
	movedTo *assignment
	// hosts tracks the virtual hosts that are sent one by one.
	hosts hostDiscovery
	// converging is the change that is being sent.
	converging converging
	pages      pages
	// health receives the peer's reports about its workload; it may be nil.
	health func(problem string)
}

// typeState is a stream's state for one type. It has no map of versions: the proxy
// holds the resources of acked, except for the names in doubt.
type typeState struct {
	watched bool
	want    xdswire.Subscription
	// nonce belongs to the last response; inflight is set until its ACK or NACK.
	nonce    string
	inflight bool
	// acked is the last pair that the proxy is known to hold, sent the last pair
	// sent. They differ while a response is in flight and, with refused set, after
	// a NACK.
	acked, sent viewSet
	refused     bool
	// namesOnly is set if the response in flight contains only requested names
	// while sent stays refused: its ACK does not accept sent.
	namesOnly bool
	// push is the number of the response in flight in the stream's history;
	// waiting is the first publication that has to wait for its answer.
	push    uint64
	waiting *history.Round
	// doubt are names whose resources the proxy may hold in another version than
	// acked, because it refused a response with them, perhaps only in part.
	doubt []string
	// due is set if the proxy must get an answer even if it is empty, all if the
	// answer must contain everything subscribed to.
	due, all bool
	// force are names to send whether they changed or not.
	force []string
	// extra are the names in the response in flight besides the differences between
	// acked and sent; sentFor is the subscription that it answers.
	extra   []string
	sentFor xdswire.Subscription
	// held are the versions that a reconnecting proxy reported, until the views
	// are there to compare.
	held map[string]string
	// alwaysRespond is set when the proxy subscribes to clusters again: its next
	// request gets an answer even if it looks like an ACK.
	alwaysRespond bool
	// quarantine holds the resources that the proxy refused; nil if there are none.
	quarantine *quarantine
	// fresh is set if the proxy holds nothing from an earlier stream.
	fresh bool
	// assumed is set if acked comes from held: nothing was accepted on this stream.
	assumed bool
	// named is set once the stream has subscribed to names, wildcard included.
	// Afterwards an empty list subscribes to nothing.
	named bool
}

// fullList reports whether proxies subscribe to everything of the type, and
// state-of-the-world responses carry all of it. The proxy then removes absent resources.
func fullList(i int) bool {
	return i == cds || i == lds || i == vhds || i == nds || i == pcds || i == bds
}

// maxForce bounds typeState.force; beyond it, everything is sent.
const maxForce = 4096

// addForce adds names to send. It does not modify the list, which may be shared.
func (t *typeState) addForce(names []string) {
	if len(t.force) == 0 {
		t.force = slices.Clip(names)
	} else if len(names) > 0 {
		t.force = append(t.force, names...)
	}
	if len(t.force) <= maxForce {
		return
	}
	if t.force = sortedUnique(t.force); len(t.force) > maxForce {
		t.force, t.all = nil, true
		t.due = t.due || t.watched
	}
}

func sortedUnique(names ...[]string) []string {
	out := slices.Concat(names...)
	slices.Sort(out)
	return slices.Compact(out)
}

func newSession(ctx context.Context, sub *subscriber, log *slog.Logger, h *Hub, stream grpc.ServerStream, sent func()) *session {
	s := &session{hub: h, sub: sub, log: log, aggregated: isAggregated(ctx), ended: make(chan error, 1)}
	s.writer = newStreamWriter(h.cfg.Limits.Write, h.cfg.Now, admission.ConnOf(ctx), sent, func() { h.queue.add(s) })
	s.send = func(f *xdswire.Frame) error { return s.writer.send(stream, f) }
	sub.session = s
	return s
}

// take handles a request and flushes. A worker that sends for the session
// stops after its current response.
func (s *session) take(handle func() error) error {
	s.requestWaiting.Store(true)
	s.mu.Lock()
	s.requestWaiting.Store(false)
	err := s.work(func() error {
		if err := handle(); err != nil {
			return err
		}
		return s.holdNames()
	})
	if err == nil && s.pending.Load() {
		s.catchUp()
	}
	return err
}

// errEnded reports work after the end of the session. It is never the reason of the end.
var errEnded = errors.New("the stream has ended")

// work calls f, flushes and unlocks the session, which the caller has locked.
// After an error or a panic the session sends nothing.
func (s *session) work(f func() error) error {
	well := false
	defer func() {
		s.closed = s.closed || !well
		s.mu.Unlock()
	}()
	s.pending.Store(false)
	err := errEnded
	if !s.closed {
		err = f()
	}
	if err == nil {
		err = s.flush()
	}
	well = err == nil
	return err
}

// catchUp flushes, unless another goroutine works for the session or is
// about to; then that goroutine does so.
func (s *session) catchUp() {
	defer func() {
		if p := recover(); p != nil {
			s.end(s.hub.panicked(s.log, p))
		}
	}()
	s.pending.Store(true)
	for s.pending.Load() && !s.requestWaiting.Load() && s.mu.TryLock() {
		if err := s.work(func() error { return nil }); err != nil {
			s.end(err)
			return
		}
	}
}

// end makes wait return. Only the first call counts.
func (s *session) end(err error) {
	if errors.Is(err, errEnded) {
		return
	}
	select {
	case s.ended <- err:
	default:
	}
}

// wait waits for the end of the stream. It returns nil if the peer or the context
// ended it.
func (s *session) wait(ctx context.Context) error {
	select {
	case err := <-s.ended:
		return err
	case <-s.hub.done:
		return admission.ErrShutdown()
	case <-ctx.Done():
		return nil
	}
}

// close forbids further sends, as gRPC requires after a handler has returned.
func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// begin starts to handle a request: it handles a NACK, if there is one, and returns the
// index of the type, or -1 for a type that is not served.
func (s *session) begin(typeURL, nonce string, nack *statuspb.Status) int {
	i := typeIndex(typeURL)
	if i < 0 {
		return i
	}
	s.lastType = i
	if nack != nil {
		s.hub.cfg.Metrics.push.rejected(i, nack.GetCode())
		s.refuse(i, nonce, nack.GetMessage())
	}
	return i
}
