package xds

import (
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/xdswire"
)

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
