package xds

import (
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// maxUnwritten is the number of unwritten bytes from which nothing is added. gRPC blocks
// senders above 64 KiB, and a session must not block.
const maxUnwritten = 32 << 10

// slowest is the least rate, in bytes a second, at which a peer must read a frame that
// takes longer than the limit: with thousands of proxies that get everything at once,
// each has a small share of the network.
const slowest = 64 << 10

// streamWriter tracks the frames of a stream that gRPC holds. A peer that does not read them
// in time loses its connection: gRPC would keep both for as long as the peer answers
// pings, even after the stream has ended.
type streamWriter struct {
	limit time.Duration
	now   func() time.Time
	conn  streamConn
	sent  func() // called when gRPC holds no frame
	room  func() // called when there is room after hasRoom was false

	mu            sync.Mutex
	open          int       // frames that gRPC holds
	size          int       // their bytes
	waiting       bool      // call room
	deadline      time.Time // for the first frame
	writtenBefore int64     // conn.Written() when stall was set
	stall         *time.Timer
}

// streamConn is the connection of a stream.
type streamConn interface {
	Written() int64 // bytes so far
	Queue(int)      // adds to the bytes that wait to be written
	Stall()         // closes the connection, as its peer does not read
}

func newStreamWriter(limit time.Duration, now func() time.Time, conn streamConn, sent, room func()) *streamWriter {
	w := &streamWriter{limit: limit, now: now, conn: conn, sent: sent, room: room}
	w.stall = time.AfterFunc(limit, w.overdue)
	w.stall.Stop()
	return w
}

// hasRoom reports whether send would not block.
func (w *streamWriter) hasRoom() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = w.size >= maxUnwritten
	return !w.waiting
}

func (w *streamWriter) send(stream grpc.ServerStream, f *xdswire.Frame) error {
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

// next starts the time limit of the first frame. The lock must be held.
func (w *streamWriter) next() {
	w.deadline = w.now().Add(w.limit + time.Duration(float64(w.size)/slowest*float64(time.Second)))
	w.writtenBefore = w.conn.Written()
	w.stall.Reset(w.limit)
}

// overdue closes the connection, or gives a frame more time whose bytes still move.
func (w *streamWriter) overdue() {
	w.mu.Lock()
	written := w.conn.Written()
	moves := w.open > 0 && float64(written-w.writtenBefore) >= slowest*w.limit.Seconds() && w.now().Before(w.deadline)
	if moves {
		w.writtenBefore = written
		w.stall.Reset(w.limit)
	}
	late := w.open > 0 && !moves
	w.mu.Unlock()
	if late {
		w.conn.Stall()
	}
}

// written notes that gRPC no longer holds a frame. gRPC's writing goroutine calls it.
func (w *streamWriter) written(f *xdswire.Frame, done *bool) {
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
		w.stall.Stop()
	}
	room, all := w.waiting && w.size < maxUnwritten, w.open == 0
	if room {
		w.waiting = false
	}
	w.mu.Unlock()
	if room {
		w.room()
	}
	if all {
		w.sent()
	}
}
