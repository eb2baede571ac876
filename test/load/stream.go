package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
)

// xdsStream is a stream of encoded messages.
type xdsStream interface {
	// send sends a message in parts.
	send(parts ...[]byte) error
	// receive waits for the next message, which is valid until the next call.
	receive() ([]byte, error)
	close() error
}

// stream is a gRPC stream on its own connection that one goroutine reads and writes.
type stream struct {
	*connection
	in      []byte   // received parts of messages, with their prefixes
	used    int      // bytes of in that the last message took
	waiting [][]byte // to be sent once the server allows it
	unsent  int      // bytes of waiting
	allowed int      // bytes that the server accepts on the stream
	initial int      // its credit when the stream began
}

const (
	streamID   = 1
	maxMessage = 1 << 30
)

// openStream calls a method over the connection, which ends with ctx.
func openStream(ctx context.Context, raw net.Conn, creds credentials.TransportCredentials, method string) (xdsStream, error) {
	conn, _, err := creds.ClientHandshake(ctx, serverName, raw)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	c, err := newConnection(ctx, conn, streamID)
	if err != nil {
		return nil, err
	}
	s := &stream{connection: c, allowed: c.streamCredit, initial: c.streamCredit}
	if err := errors.Join(c.call(streamID, "http", method), c.out.Flush()); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

// send sends what the server allows of a message: the rest follows while messages are
// read. The parts are not written to, and not used once everything is sent.
func (s *stream) send(parts ...[]byte) error {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	s.waiting = append(append(s.waiting, prefix(size)), parts...)
	s.unsent += prefixBytes + size
	return s.push()
}

// push sends what it can in one write, as Envoy does, without joining the parts.
func (s *stream) push() error {
	var frames net.Buffers
	for {
		n := min(s.unsent, s.maxFrame, s.credit, s.allowed)
		if n <= 0 {
			break
		}
		s.unsent -= n
		s.credit -= n
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
	if _, ok := s.Conn.(*net.TCPConn); !ok { // each part would be a record of TLS
		frames = net.Buffers{slices.Concat(frames...)}
	}
	_, err := frames.WriteTo(s.Conn)
	return err
}

func (s *stream) receive() ([]byte, error) {
	rest := s.in[s.used:]
	if cap(s.in) > 64<<10 {
		s.in = nil // one large message does not keep its memory
	}
	s.in, s.used = append(s.in[:0], rest...), 0
	for {
		if len(s.in) >= prefixBytes {
			size := binary.BigEndian.Uint32(s.in[1:])
			if s.in[0] != 0 || size > maxMessage {
				return nil, fmt.Errorf("message of %d bytes, flag %d", size, s.in[0])
			}
			whole := prefixBytes + int(size)
			if len(s.in) >= whole {
				s.used = whole
				return s.in[prefixBytes:whole], nil
			}
			s.in = slices.Grow(s.in, whole-len(s.in))
		}
		if err := s.read(); err != nil {
			return nil, err
		}
	}
}

// read handles a frame.
func (s *stream) read() error {
	f, err := s.next()
	if err != nil {
		return err
	}
	switch f := f.(type) {
	case *http2.DataFrame:
		s.in = append(s.in, f.Data()...)
	case *http2.MetaHeadersFrame:
		if f.StreamEnded() {
			return fmt.Errorf("the server ends the stream: %v", f.Fields)
		}
	case *http2.RSTStreamFrame:
		return fmt.Errorf("the server resets the stream: %v", f.ErrCode)
	case *http2.SettingsFrame:
		s.allowed += s.streamCredit - s.initial
		s.initial = s.streamCredit
		return s.push()
	case *http2.WindowUpdateFrame:
		if f.StreamID != 0 {
			s.allowed += int(f.Increment)
		}
		return s.push()
	}
	return nil
}

func (s *stream) close() error { return s.Close() }

// libraryStream is a stream of the gRPC library, for figures that can be compared with
// figures of other control planes.
type libraryStream struct {
	conn   *grpc.ClientConn
	stream grpc.ClientStream
	last   []byte
}

// openLibraryStream calls a method over a connection that dial makes.
func openLibraryStream(ctx context.Context, addr string, dial func(context.Context, string) (net.Conn, error), creds credentials.TransportCredentials, method string) (xdsStream, error) {
	conn, err := grpc.NewClient("passthrough:"+addr, grpc.WithTransportCredentials(creds), grpc.WithAuthority(serverName),
		grpc.WithContextDialer(dial), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.ForceCodecV2(encoded{})))
	if err != nil {
		return nil, err
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &libraryStream{conn: conn, stream: s}, nil
}

func (s *libraryStream) send(parts ...[]byte) error {
	message := slices.Concat(parts...)
	return s.stream.SendMsg(&message)
}

func (s *libraryStream) receive() ([]byte, error) {
	return s.last, s.stream.RecvMsg(&s.last)
}

func (s *libraryStream) close() error { return s.conn.Close() }

// encoded is a codec for messages that are encoded already: *[]byte.
type encoded struct{}

func (encoded) Name() string { return "proto" }

func (encoded) Marshal(v any) (mem.BufferSlice, error) {
	message, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("encode %T, want *[]byte", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*message)}, nil
}

func (encoded) Unmarshal(data mem.BufferSlice, v any) error {
	message, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("decode to %T, want *[]byte", v)
	}
	*message = data.Materialize()
	return nil
}
