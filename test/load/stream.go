package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/credentials"
)

// stream is a gRPC stream on a connection of its own that one goroutine reads
// and writes. A client of gRPC costs as much as the server that is measured
// beside it, mostly for handing messages from goroutine to goroutine.
type stream struct {
	conn    net.Conn
	framer  *http2.Framer
	out     *bufio.Writer
	in      []byte   // what was read of messages, with their prefixes
	used    int      // of it, by the last message
	read    uint32   // and not given back to the windows
	waiting [][]byte // to be sent once the server allows it
	unsent  int      // bytes of it
	// What the server allows to send: in one frame, on the connection, and on
	// the stream, whose first allowance can change.
	frame, connection, allowed, initial int
}

const (
	streamID    = 1
	prefixBytes = 5 // before each message: whether it is compressed, and its length
	// receive is the window for what the server sends, one that does not bound,
	// as Envoy's.
	receive = 1 << 28
	// largest is the size of the largest message.
	largest = 1 << 30
)

// openStream calls a method over the connection, which ends with ctx.
func openStream(ctx context.Context, raw net.Conn, creds credentials.TransportCredentials, authority, method string) (*stream, error) {
	conn, _, err := creds.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	s := &stream{conn: conn, out: bufio.NewWriterSize(conn, 4<<10), frame: 16 << 10, connection: 65535, allowed: 65535, initial: 65535}
	s.framer = http2.NewFramer(s.out, bufio.NewReaderSize(conn, 16<<10))
	s.framer.SetReuseFrames()
	s.framer.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	for _, h := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", method},
		{":authority", authority},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		_ = encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) // to memory
	}
	_, err = s.out.WriteString(http2.ClientPreface)
	err = errors.Join(err,
		s.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: receive}),
		s.framer.WriteWindowUpdate(0, receive),
		s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: streamID, BlockFragment: headers.Bytes(), EndHeaders: true}),
		s.out.Flush())
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

// send sends a message in parts, or what the server allows of it: the rest follows
// while messages are read. The parts are not written to, and not used once all is sent.
func (s *stream) send(message ...[]byte) error {
	size := 0
	for _, part := range message {
		size += len(part)
	}
	s.waiting = append(s.waiting, binary.BigEndian.AppendUint32([]byte{0}, uint32(size)))
	s.waiting = append(s.waiting, message...)
	s.unsent += prefixBytes + size
	return s.push()
}

// push sends what it can in one write, as Envoy does, without putting it together.
func (s *stream) push() error {
	if err := s.out.Flush(); err != nil {
		return err
	}
	var frames net.Buffers
	for {
		n := min(s.unsent, s.frame, s.connection, s.allowed)
		if n <= 0 {
			break
		}
		s.unsent -= n
		s.connection -= n
		s.allowed -= n
		header := binary.BigEndian.AppendUint32(nil, uint32(n)<<8|uint32(http2.FrameData))
		frames = append(frames, binary.BigEndian.AppendUint32(append(header, 0), streamID))
		for n > 0 {
			part := s.waiting[0]
			if len(part) > n {
				part, s.waiting[0] = part[:n], part[n:]
			} else {
				s.waiting = s.waiting[1:]
			}
			frames = append(frames, part)
			n -= len(part)
		}
	}
	if len(frames) == 0 {
		return nil
	}
	if _, ok := s.conn.(*net.TCPConn); !ok { // each part would be a record of TLS
		frames = net.Buffers{slices.Concat(frames...)}
	}
	_, err := frames.WriteTo(s.conn)
	return err
}

// receive waits for the next message, which is valid until the next call.
func (s *stream) receive() ([]byte, error) {
	rest := s.in[s.used:]
	if cap(s.in) > 64<<10 {
		s.in = nil // one large message does not keep its memory
	}
	s.in, s.used = append(s.in[:0], rest...), 0
	for {
		if len(s.in) >= prefixBytes {
			size := binary.BigEndian.Uint32(s.in[1:])
			if s.in[0] != 0 || size > largest {
				return nil, fmt.Errorf("message of %d bytes, flag %d", size, s.in[0])
			}
			whole := prefixBytes + int(size)
			if len(s.in) >= whole {
				s.used = whole
				return s.in[prefixBytes:whole], nil
			}
			s.in = slices.Grow(s.in, whole-len(s.in))
		}
		if err := s.next(); err != nil {
			return nil, err
		}
	}
}

// next reads a frame.
func (s *stream) next() error {
	f, err := s.framer.ReadFrame()
	if err != nil {
		return err
	}
	switch f := f.(type) {
	case *http2.DataFrame:
		s.in = append(s.in, f.Data()...)
		return s.give(f.Length)
	case *http2.MetaHeadersFrame:
		if f.StreamEnded() {
			return fmt.Errorf("the server ends the stream: %v", f.Fields)
		}
	case *http2.RSTStreamFrame:
		return fmt.Errorf("the server resets the stream: %v", f.ErrCode)
	case *http2.SettingsFrame:
		return s.settings(f)
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			s.connection += int(f.Increment)
		} else {
			s.allowed += int(f.Increment)
		}
		return s.push()
	case *http2.PingFrame:
		if !f.IsAck() {
			return errors.Join(s.framer.WritePing(true, f.Data), s.out.Flush())
		}
	}
	return nil
}

func (s *stream) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if size, ok := f.Value(http2.SettingInitialWindowSize); ok {
		s.allowed += int(size) - s.initial
		s.initial = int(size)
	}
	if size, ok := f.Value(http2.SettingMaxFrameSize); ok {
		s.frame = int(size)
	}
	return errors.Join(s.framer.WriteSettingsAck(), s.push())
}

// give opens the windows again for that many bytes, many at once.
func (s *stream) give(n uint32) error {
	s.read += n
	if s.read < receive/2 {
		return nil
	}
	n, s.read = s.read, 0
	return errors.Join(s.framer.WriteWindowUpdate(0, n), s.framer.WriteWindowUpdate(streamID, n), s.out.Flush())
}

func (s *stream) close() error { return s.conn.Close() }
