package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	prefixBytes = 5 // before each gRPC message: its compression flag and its length
	// windowSize is the receive window of connections and streams. Like Envoy's, it
	// does not limit the server.
	windowSize = 1 << 28
	// initialCredit is the number of bytes that HTTP/2 lets a client send at first.
	initialCredit = 65_535
	serverName    = "istiod.istio-system.svc"
)

// connection is the client's end of an HTTP/2 connection that one goroutine reads. It
// answers settings and pings, and keeps the windows of both directions. A client of the
// gRPC library costs as much as the measured server beside it, mostly for passing messages
// from goroutine to goroutine.
type connection struct {
	net.Conn
	framer  *http2.Framer // writes to out
	out     *bufio.Writer
	encoder *hpack.Encoder // writes to block
	block   bytes.Buffer
	// only is the ID of the only stream, whose window is opened again, too. It is 0 for
	// many short streams.
	only   uint32
	unread uint32 // bytes that were received and not given back to the windows
	// credit is the number of bytes that the server accepts on the connection.
	credit int
	// The server's settings: largest frame and first credit of a stream.
	maxFrame, streamCredit int
}

// newConnection starts HTTP/2 on a connection, which ends with ctx. The caller flushes.
func newConnection(ctx context.Context, conn net.Conn, only uint32) (*connection, error) {
	c := &connection{
		Conn: conn, out: bufio.NewWriterSize(conn, 4<<10), only: only,
		credit: initialCredit, streamCredit: initialCredit, maxFrame: 16 << 10,
	}
	c.encoder = hpack.NewEncoder(&c.block)
	c.framer = http2.NewFramer(c.out, bufio.NewReaderSize(conn, 16<<10))
	c.framer.SetReuseFrames()
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	_, err := c.out.WriteString(http2.ClientPreface)
	err = errors.Join(err,
		c.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: windowSize}),
		c.framer.WriteWindowUpdate(0, windowSize))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

// call writes the headers of a gRPC call to the buffer; the caller flushes it.
func (c *connection) call(stream uint32, scheme, method string, more ...hpack.HeaderField) error {
	c.block.Reset()
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: scheme},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: serverName},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}, more...) {
		_ = c.encoder.WriteField(f) // to memory
	}
	return c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.block.Bytes(), EndHeaders: true})
}

// prefix returns the bytes before a message of that size.
func prefix(size int) []byte { return binary.BigEndian.AppendUint32([]byte{0}, uint32(size)) }

// next reads a frame, which is valid until the next call.
func (c *connection) next() (http2.Frame, error) {
	f, err := c.framer.ReadFrame()
	if err != nil {
		return nil, err
	}
	switch f := f.(type) {
	case *http2.DataFrame:
		err = c.giveBack(f.Length)
	case *http2.SettingsFrame:
		if f.IsAck() {
			break
		}
		if size, ok := f.Value(http2.SettingInitialWindowSize); ok {
			c.streamCredit = int(size)
		}
		if size, ok := f.Value(http2.SettingMaxFrameSize); ok {
			c.maxFrame = int(size)
		}
		err = errors.Join(c.framer.WriteSettingsAck(), c.out.Flush())
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			c.credit += int(f.Increment)
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			err = errors.Join(c.framer.WritePing(true, f.Data), c.out.Flush())
		}
	case *http2.GoAwayFrame:
		err = fmt.Errorf("the server ends the connection: %v", f.ErrCode)
	}
	return f, err
}

// giveBack opens the windows again, for many bytes at once.
func (c *connection) giveBack(n uint32) error {
	if c.unread += n; c.unread < windowSize/2 {
		return nil
	}
	n, c.unread = c.unread, 0
	err := c.framer.WriteWindowUpdate(0, n)
	if c.only != 0 {
		err = errors.Join(err, c.framer.WriteWindowUpdate(c.only, n))
	}
	return errors.Join(err, c.out.Flush())
}
