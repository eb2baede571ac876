package xds

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// session is the state of one stream.
type session struct {
	hub    *Hub
	sub    *subscriber
	log    *slog.Logger
	send   func(*xdswire.Frame) error
	writer *writer
	// counted counts the names that are subscribed to, as of counts.
	counted *admission.Stream
	counts  [numTypes]*xdswire.NameSet
	ended   chan error  // capacity 1: why the stream ends
	pending    atomic.Bool // the hub published something since the last flush
	requestWaiting  atomic.Bool // a request waits for mu: nothing is sent before it
	queued  bool        // under the lock of the hub's queue

	// mu is held by the goroutine that works for the session, never for long:
	// the one that receives, or one of the hub's queue.
	mu     sync.Mutex
	closed bool // nothing may be sent
	nonces xdswire.Nonces
	types  [numTypes]typeState
	lastType int // the type of the last request
	// demanded is what the hub was told that the stream asks for, by the
	// state in told.
	demanded [numTypes]demand
	demandedBy     demandBasis
	// warned is what was said of secrets, by the state in checked.
	warnedSecrets  *xdswire.NameSet
	checkedSecrets secretsBasis
	// converging is the change that is being sent.
	converging converging
	inquiries  inquiries
	// health takes what the peer says of its workload; nil when nobody does.
	health func(problem string)
}

// typeState is what a stream knows of one type. There is no map of versions:
// what the proxy holds is what the pair acked holds, but for the names in
// doubt.
type typeState struct {
	watched bool
	want    xdswire.Subscription
	// nonce is that of the last response; inflight says that neither ACK nor
	// NACK has come for it.
	nonce    string
	inflight bool
	// acked is the last pair that the proxy is known to hold, sent the last
	// one that it was sent. They differ while a response is in flight and
	// after one was refused.
	acked, sent pair
	refused     bool
	// aside says that the response in flight carries only names that were
	// asked for while sent stands refused: its ACK does not accept sent.
	namesOnly bool
	// push is the number of the response in flight in the stream's record;
	// waiting is the first publication that it keeps back.
	push    uint64
	waiting *history.Round
	// doubt are names of which the proxy may hold something else than acked
	// has, because it refused a response with them, perhaps only in part.
	doubt []string
	// due says that an answer is owed even when there is nothing to tell; all
	// that it must carry everything subscribed to.
	due, all bool
	// force are names to send, whether they changed or not.
	force []string
	// framed are the names in the response in flight besides those that
	// differ between acked and sent, asked what was subscribed to then.
	extra []string
	sentFor  xdswire.Subscription
	// held are the versions that the proxy said to hold, until the views can
	// be compared with them.
	held map[string]string
	// alwaysRespond is armed when clusters are asked for anew: the next
	// request is answered even if it looks like an ACK.
	alwaysRespond bool
	// withheld is what the proxy refused; nil when there is nothing.
	quarantine *quarantine
	// fresh says that the proxy holds nothing of an earlier stream.
	fresh bool
	// assumed says that acked is what a proxy that connected anew was found to
	// hold, besides names to send; nothing was accepted on this stream.
	assumed bool
	// named says that the stream subscribed to names once, the wildcard's
	// included: from then on a list without names asks for nothing.
	named bool
}

// fullList says that responses of the type carry everything subscribed to in
// the state of the world variant, where what is absent is removed.
func fullList(i int) bool { return i == cds || i == lds || i == nds || i == pcds }

// maxForce bounds the names kept to be sent; beyond it everything is.
const maxForce = 4096

// addForce notes names to send. The list may be shared, so it is not written.
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
	s := &session{hub: h, sub: sub, log: log, ended: make(chan error, 1)}
	s.writer = newWriter(h.cfg.Limits.Write, h.cfg.Now, admission.ConnOf(ctx), sent, func() { h.queue.add(s) })
	s.send = func(f *xdswire.Frame) error { return s.writer.send(stream, f) }
	sub.session = s
	return s
}

// take handles a request and sends what is owed. Whoever is sending what the
// hub published stops after the response in hand.
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

// errEnded is the answer to what comes after the end. It is no reason to end:
// whoever ended the stream says why.
var errEnded = errors.New("the stream has ended")

// work does one thing for the session, then sends what is owed and unlocks it,
// which the caller has locked. After an error or a panic nothing is sent any more.
func (s *session) work(thing func() error) error {
	well := false
	defer func() {
		s.closed = s.closed || !well
		s.mu.Unlock()
	}()
	s.pending.Store(false)
	err := errEnded
	if !s.closed {
		err = thing()
	}
	if err == nil {
		err = s.flush()
	}
	well = err == nil
	return err
}

// catchUp sends what is owed, unless another goroutine works for the session or
// is about to: then that one does so.
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

// end has wait return. The first end counts.
func (s *session) end(err error) {
	if errors.Is(err, errEnded) {
		return
	}
	select {
	case s.ended <- err:
	default:
	}
}

// wait returns when the stream is to end: nil when its peer or its context
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

// close has nothing sent any more, as gRPC wants it once a handler returned.
func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}
