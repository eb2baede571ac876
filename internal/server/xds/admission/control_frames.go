package admission

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
)

// NoReadBuffer makes gRPC read without a buffer. Connections of Conns, and of Credentials
// above them, have their own, so that they know which frame gRPC is handling.
func NoReadBuffer() grpc.ServerOption { return grpc.ReadBufferSize(0) }

const readBuffer = 4 << 10

// controlRate and controlBurst bound the frames that cost the server work and carry
// nothing: resets, settings, acknowledged pings, priorities, continuations and
// empty data frames of the peer, and the resets that the server answers with. A
// proxy sends a few a minute.
const (
	controlRate  = 100 // a second
	controlBurst = 2000
)

// A peer that reads responses sends at most one window update for bytesPerUpdate bytes of
// them, plus freeUpdates.
const (
	freeUpdates    = 10_000
	bytesPerUpdate = 512
)

// errClosing ends the reads from a connection that is being closed.
var errClosing = errors.New("the connection is being closed")

// frameReader reads the frames of a peer. It bounds the number of control frames and
// counts the bytes of requests.
type frameReader struct {
	conn *Conn
	from io.Reader
	in   *bufio.Reader // made by the first read

	preface int               // bytes that have not arrived
	header  [frameHeader]byte // of the frame
	have    int               // bytes of the header
	left    int               // bytes of the payload that have not arrived
	updates int64             // window updates so far

	// For a data frame: its stream, nil if gRPC drops the frame; the bytes of data that
	// have not arrived; whether the padding length is next; the bytes that the frame
	// takes besides its data, until they were counted.
	stream   *inboundStream
	data     int
	padded   bool
	overhead int
}

func newFrameReader(c *Conn, in io.Reader) *frameReader {
	return &frameReader{conn: c, from: in, preface: len(http2.ClientPreface)}
}

// Read implements io.Reader.
func (r *frameReader) Read(p []byte) (int, error) {
	if r.in == nil {
		r.in = bufio.NewReaderSize(r.from, readBuffer)
	}
	n, err := r.in.Read(p)
	if why := r.follow(p[:n]); why != "" {
		r.conn.goAway(why)
		r.conn.drain() // otherwise the peer might not see the GOAWAY
		r.conn.close()
		return 0, errClosing
	}
	return n, err
}

// follow parses the next bytes, and waits until the peer's budget has room for the requests
// that start in them. It returns the reason to close the connection, if there is one.
func (r *frameReader) follow(b []byte) (why string) {
	n := min(r.preface, len(b))
	r.preface -= n
	for b = b[n:]; len(b) > 0; {
		if r.have < frameHeader {
			n = copy(r.header[r.have:], b)
			if r.have += n; r.have == frameHeader {
				why = r.begin()
			}
		} else {
			n = min(r.left, len(b))
			r.left -= n
			why = r.payload(b[:n])
		}
		if why != "" {
			return why
		}
		if b = b[n:]; r.have == frameHeader && r.left == 0 {
			r.have = 0
		}
	}
	return ""
}

// begin handles the header of a frame.
func (r *frameReader) begin() (why string) {
	typ, flags := http2.FrameType(r.header[3]), http2.Flags(r.header[4])
	stream := binary.BigEndian.Uint32(r.header[5:]) & (1<<31 - 1)
	r.left = int(binary.BigEndian.Uint32(r.header[:]) >> 8)
	r.stream = nil
	switch {
	case typ == http2.FrameHeaders:
		r.conn.opening = stream
		return ""
	case typ == http2.FramePing && !flags.Has(http2.FlagPingAck):
		return "" // gRPC bounds them by the bytes sent to the peer: clients measure with them
	case typ == http2.FrameWindowUpdate:
		if r.updates++; r.updates > freeUpdates+r.conn.Written()/bytesPerUpdate {
			return "too many window updates"
		}
		return ""
	case typ == http2.FrameData && (r.left > 0 || flags.Has(http2.FlagDataEndStream)):
		r.stream, r.data, r.padded, r.overhead = r.conn.inboundOf(stream), r.left, flags.Has(http2.FlagDataPadded), frameOverhead
		return ""
	}
	return r.conn.control(typ)
}

// payload handles a part of the payload of a frame.
func (r *frameReader) payload(b []byte) (why string) {
	if r.stream == nil {
		return ""
	}
	if r.padded {
		r.padded = false
		r.data = max(0, r.data-1-int(b[0]))
		b = b[1:]
	}
	b = b[:min(len(b), r.data)]
	for len(b) > 0 {
		n, ok := r.stream.take(b, r.overhead)
		if !ok {
			return "its requests did not fit the budget of its identity in time"
		}
		r.overhead = 0
		r.data -= n
		b = b[n:]
	}
	return ""
}

// control counts a control frame that the peer sent or provoked.
func (c *Conn) control(typ http2.FrameType) (why string) {
	if !c.controls.AllowN(c.conns.cfg.Now(), 1) {
		return "too many " + typ.String() + " frames"
	}
	return ""
}
