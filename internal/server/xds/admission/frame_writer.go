package admission

import (
	"encoding/binary"
	"io"
	"net"
	"sync"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// NoWriteBuffer makes gRPC write without a buffer. Connections of Conns, and of Credentials
// above them, assemble frames themselves. With a buffer, gRPC yields before it writes less than a kilobyte, in
// case more follows: after a change for all proxies, the frames for all of them would be
// in buffers until the last one is made.
func NoWriteBuffer() grpc.ServerOption { return grpc.WriteBufferSize(0) }

const (
	frameHeader = 9
	maxFrame    = frameHeader + 16<<10 // the largest that gRPC makes
	maxRecord   = 16 << 10             // bytes of content in one TLS record
)

var frameBuffers = sync.Pool{New: func() any { return new(make([]byte, 0, maxFrame)) }}

// frameWriter writes each HTTP/2 frame with one write. It has a buffer only while parts of
// a frame are missing.
type frameWriter struct {
	conn *Conn // nil: control frames are not counted
	mu   sync.Mutex
	out  io.Writer // used with the lock held
	buf  *[]byte   // nil between frames
}

// write writes a frame.
func (w *frameWriter) write(frame []byte) error {
	if w.conn != nil && http2.FrameType(frame[3]) == http2.FrameRSTStream && binary.BigEndian.Uint32(frame[frameHeader:]) != uint32(http2.ErrCodeNo) {
		if why := w.conn.control(http2.FrameRSTStream); why != "" {
			w.conn.end(why)
			return errClosing
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.out.Write(frame)
	return err
}

// Write implements io.Writer.
func (w *frameWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		if w.buf == nil {
			if over := -missing(rest); over >= 0 {
				if err := w.write(rest[:len(rest)-over]); err != nil {
					return 0, err
				}
				rest = rest[len(rest)-over:]
				continue
			}
			w.buf, _ = frameBuffers.Get().(*[]byte)
		}
		part := rest[:min(len(rest), missing(*w.buf))]
		*w.buf, rest = append(*w.buf, part...), rest[len(part):]
		if missing(*w.buf) > 0 {
			continue
		}
		err := w.write(*w.buf)
		*w.buf = (*w.buf)[:0]
		frameBuffers.Put(w.buf)
		w.buf = nil
		if err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// missing returns the number of bytes needed to know the length of a frame, or else to
// complete it. It is negative if there are more.
func missing(frame []byte) int {
	if len(frame) < frameHeader {
		return frameHeader - len(frame)
	}
	return frameHeader + int(binary.BigEndian.Uint32(frame)>>8) - len(frame)
}

// Credentials makes TLS connections assemble frames.
func Credentials(c credentials.TransportCredentials) credentials.TransportCredentials {
	return framing{c}
}

type framing struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (f framing) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	below, _ := raw.(*Conn)
	if below != nil { // from now on it carries records; frames are above TLS
		below.records, below.frames, below.in = new(recordReader), nil, nil
		below.out.Store(nil)
	}
	c, info, err := f.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	s := &secureConn{Conn: c, in: c, out: &frameWriter{conn: below, out: recordWriter{c, below}}}
	if below != nil {
		s.in = newFrameReader(below, c)
		below.out.Store(s.out)
	}
	return s, info, nil
}

// Clone implements credentials.TransportCredentials.
func (f framing) Clone() credentials.TransportCredentials {
	return framing{f.TransportCredentials.Clone()}
}

type secureConn struct {
	net.Conn
	in  io.Reader
	out *frameWriter
}

// Read implements net.Conn.
func (c *secureConn) Read(p []byte) (int, error) { return c.in.Read(p) }

// Write implements net.Conn.
func (c *secureConn) Write(p []byte) (int, error) { return c.out.Write(p) }

// recordWriter writes a frame as one TLS record. A frame that its header makes too large
// for one takes two records, but still one write.
type recordWriter struct {
	secure io.Writer
	below  *Conn // nil: two writes
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
