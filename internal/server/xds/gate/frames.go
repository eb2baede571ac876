package gate

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// NoWriteBuffer has gRPC write each part of a frame as it comes, to connections
// that put frames together themselves: those of Conns, and of Credentials above
// them. With a buffer, gRPC lets all that runs go first before it writes less than
// a kilobyte, in case more is to come: when something changes for all proxies, all
// their frames would lie in buffers of their own until the last is there.
func NoWriteBuffer() grpc.ServerOption { return grpc.WriteBufferSize(0) }

const (
	frameHeader = 9
	maxFrame    = frameHeader + 16<<10 // that gRPC makes
	maxRecord   = 16 << 10             // bytes of others in one record of TLS
)

// pairWait is how long a full frame waits for the next, which nearly always follows
// at once: two in one write cost a fifth less. It does not when the peer's window
// ends with the first.
const pairWait = 200 * time.Microsecond

var frameBuffers = sync.Pool{New: func() any { return new(make([]byte, 0, 2*maxFrame)) }}

// frameWriter writes each HTTP/2 frame when its last part has come, full ones in
// pairs. It has a buffer from the first part to the last.
type frameWriter struct {
	out  io.Writer
	wait time.Duration // pairWait, or 0: no pairs

	mu   sync.Mutex
	buf  *[]byte     // nil between frames
	from int         // where in buf the last frame begins
	late *time.Timer // of a full frame that waits; nil before the first
	err  error       // that the last write had; it is the last
}

// Write implements io.Writer.
func (w *frameWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for rest := p; len(rest) > 0 && w.err == nil; {
		if over := -missing(rest); w.buf == nil && over >= 0 {
			_, w.err = w.out.Write(rest[:len(rest)-over])
			rest = rest[len(rest)-over:]
			continue
		}
		if w.buf == nil {
			w.buf, _ = frameBuffers.Get().(*[]byte)
		}
		part := rest[:min(len(rest), missing((*w.buf)[w.from:]))]
		*w.buf, rest = append(*w.buf, part...), rest[len(part):]
		switch {
		case missing((*w.buf)[w.from:]) > 0:
		case w.wait > 0 && len(*w.buf) == maxFrame:
			w.from = maxFrame
			w.await()
		default:
			w.flush()
		}
	}
	if w.err != nil {
		return 0, w.err
	}
	return len(p), nil
}

// await has a full frame written that is still alone when its time is over. The
// lock must be held.
func (w *frameWriter) await() {
	if w.late != nil {
		w.late.Reset(w.wait)
		return
	}
	w.late = time.AfterFunc(w.wait, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.buf != nil && len(*w.buf) == maxFrame && w.from == maxFrame {
			w.flush()
		}
	})
}

// flush writes all there is. The lock must be held.
func (w *frameWriter) flush() {
	if w.late != nil {
		w.late.Stop()
	}
	_, w.err = w.out.Write(*w.buf)
	*w.buf = (*w.buf)[:0]
	frameBuffers.Put(w.buf)
	w.buf, w.from = nil, 0
}

// missing is how much is needed to know the length of a frame, then to have all of
// it: negative when there is more.
func missing(frame []byte) int {
	if len(frame) < frameHeader {
		return frameHeader - len(frame)
	}
	return frameHeader + int(binary.BigEndian.Uint32(frame)>>8) - len(frame)
}

// Credentials has the connections of TLS put frames together.
func Credentials(c credentials.TransportCredentials) credentials.TransportCredentials {
	return framing{c}
}

type framing struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (f framing) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	below, _ := raw.(*Conn)
	if below != nil { // it has records from now on, and frames are above it
		below.records, below.frames = new(recordReader), nil
	}
	c, info, err := f.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return &secureConn{Conn: c, frames: frameWriter{out: recordWriter{c, below}}}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (f framing) Clone() credentials.TransportCredentials {
	return framing{f.TransportCredentials.Clone()}
}

type secureConn struct {
	net.Conn
	frames frameWriter
}

// Write implements net.Conn.
func (c *secureConn) Write(p []byte) (int, error) { return c.frames.Write(p) }

// recordWriter writes a frame as one record of TLS. One that is too large for
// that, by its header, takes two, and still one write.
type recordWriter struct {
	secure io.Writer
	below  *Conn // nil: nothing is held
}

// Write implements io.Writer.
func (w recordWriter) Write(frame []byte) (int, error) {
	over := len(frame) - maxRecord
	if over <= 0 || w.below == nil {
		return w.secure.Write(frame)
	}
	w.below.holdNext.Store(true)
	if n, err := w.secure.Write(frame[:over]); err != nil {
		return n, err
	}
	n, err := w.secure.Write(frame[over:])
	return over + n, err
}
