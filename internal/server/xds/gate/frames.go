package gate

import (
	"encoding/binary"
	"io"
	"net"
	"sync"

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

var frameBuffers = sync.Pool{New: func() any { return new(make([]byte, 0, maxFrame)) }}

// frameWriter writes each HTTP/2 frame at once, when its last part has come. It
// has a buffer from the first part to the last.
type frameWriter struct {
	out io.Writer
	buf *[]byte // nil between frames
}

// Write implements io.Writer.
func (w *frameWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		if w.buf == nil {
			if over := -missing(rest); over >= 0 {
				if _, err := w.out.Write(rest[:len(rest)-over]); err != nil {
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
		_, err := w.out.Write(*w.buf)
		*w.buf = (*w.buf)[:0]
		frameBuffers.Put(w.buf)
		w.buf = nil
		if err != nil {
			return 0, err
		}
	}
	return len(p), nil
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
	return &secureConn{c, frameWriter{out: recordWriter{c, below}}}, info, nil
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
