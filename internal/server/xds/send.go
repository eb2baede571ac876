package xds

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// queue has sessions look at what the hub published, on as many goroutines as
// there are processors. A session waits in it once, however much is published
// meanwhile, and none keeps the others waiting: sessions never block.
type queue struct {
	mu      sync.Mutex
	waiting []*session
	workers int
}

func (q *queue) add(sessions ...*session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range sessions {
		if !s.queued {
			s.queued = true
			q.waiting = append(q.waiting, s)
		}
	}
	for range min(len(q.waiting), runtime.GOMAXPROCS(0)) - q.workers {
		q.workers++
		go q.work()
	}
}

func (q *queue) work() {
	for s := q.next(); s != nil; s = q.next() {
		s.catchUp()
		runtime.Gosched()
	}
}

// next is nil when nothing waits: the worker ends.
func (q *queue) next() *session {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		q.waiting = nil
		q.workers--
		return nil
	}
	s := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	s.queued = false
	return s
}

func newSession(ctx context.Context, sub *subscriber, log *slog.Logger, h *Hub, stream grpc.ServerStream, sent func()) *session {
	s := &session{hub: h, sub: sub, log: log, ended: make(chan error, 1)}
	s.writes = newWrites(h.cfg.Limits.Write, h.cfg.Now, admission.ConnOf(ctx), sent, func() { h.queue.add(s) })
	s.send = func(f *xdswire.Frame) error { return s.writes.send(stream, f) }
	sub.session = s
	return s
}

// take handles a request and sends what is owed. Whoever is sending what the
// hub published stops after the response in hand.
func (s *session) take(handle func() error) error {
	s.asking.Store(true)
	s.mu.Lock()
	s.asking.Store(false)
	err := s.work(func() error {
		if err := handle(); err != nil {
			return err
		}
		return s.holdNames()
	})
	if err == nil && s.news.Load() {
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
	s.news.Store(false)
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
	s.news.Store(true)
	for s.news.Load() && !s.asking.Load() && s.mu.TryLock() {
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

// maxUnwritten is how many bytes may wait to be written before nothing is
// added to them. gRPC makes those wait who exceed 64 KiB, and a session must
// not.
const maxUnwritten = 32 << 10

// slowest is how fast a peer must at least take a frame, in bytes a second,
// when it takes longer than any frame may: with thousands of proxies that are
// given everything at once, each gets a small share of the network.
const slowest = 64 << 10

// writes are the frames of a stream that gRPC holds. A peer that does not take
// one in time loses its connection: gRPC would keep both for as long as it
// answers pings, also after the stream has ended.
type writes struct {
	limit time.Duration
	now   func() time.Time
	conn  connection
	sent  func() // gRPC has nothing left
	room  func() // there is room after hasRoom was false

	mu     sync.Mutex
	open   int       // frames
	size   int       // their bytes
	wanted bool      // call room
	until  time.Time // the first of them may take no longer
	before int64     // what conn had written when late was set
	late   *time.Timer
}

// connection is what carries a stream.
type connection interface {
	Written() int64 // bytes so far
	Queue(int)      // bytes that wait to be written, or fewer
	Stall()         // its peer does not read
}

func newWrites(limit time.Duration, now func() time.Time, conn connection, sent, room func()) *writes {
	w := &writes{limit: limit, now: now, conn: conn, sent: sent, room: room}
	w.late = time.AfterFunc(limit, w.overdue)
	w.late.Stop()
	return w
}

// hasRoom reports whether send would not wait.
func (w *writes) hasRoom() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted = w.size >= maxUnwritten
	return !w.wanted
}

func (w *writes) send(stream grpc.ServerStream, f *xdswire.Frame) error {
	w.mu.Lock()
	w.size += f.Size()
	if w.open++; w.open == 1 {
		w.next()
	}
	w.mu.Unlock()
	w.conn.Queue(f.Own())
	done := false
	written := func() { w.written(f, &done) }
	f.WhenWritten(written)
	err := stream.SendMsg(f)
	if err != nil {
		written()
	}
	return err
}

// next begins the time of the first frame. The lock must be held.
func (w *writes) next() {
	w.until = w.now().Add(w.limit + time.Duration(float64(w.size)/slowest*float64(time.Second)))
	w.before = w.conn.Written()
	w.late.Reset(w.limit)
}

// overdue gives a frame that moves more time, and else has the connection
// closed.
func (w *writes) overdue() {
	w.mu.Lock()
	written := w.conn.Written()
	moves := w.open > 0 && float64(written-w.before) >= slowest*w.limit.Seconds() && w.now().Before(w.until)
	if moves {
		w.before = written
		w.late.Reset(w.limit)
	}
	late := w.open > 0 && !moves
	w.mu.Unlock()
	if late {
		w.conn.Stall()
	}
}

// written notes that gRPC has nothing left of a frame. Its writing goroutine
// calls it.
func (w *writes) written(f *xdswire.Frame, done *bool) {
	w.mu.Lock()
	if *done {
		w.mu.Unlock()
		return
	}
	*done = true
	w.conn.Queue(-f.Own())
	w.size -= f.Size()
	if w.open--; w.open > 0 {
		w.next()
	} else {
		w.late.Stop()
	}
	room, all := w.wanted && w.size < maxUnwritten, w.open == 0
	if room {
		w.wanted = false
	}
	w.mu.Unlock()
	if room {
		w.room()
	}
	if all {
		w.sent()
	}
}
