package xds

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// rawClient speaks HTTP/2 frame by frame.
type rawClient struct {
	t      testing.TB
	conn   net.Conn
	fr     *http2.Framer
	block  bytes.Buffer
	hpack  *hpack.Encoder
	frames map[http2.FrameType]*atomic.Int64
	code   atomic.Uint32 // of the GOAWAY
	ended  chan error
}

// dialRaw connects, answers no frame and counts them.
func (b *testServer) dialRaw(settings ...http2.Setting) *rawClient {
	b.t.Helper()
	conn, err := new(net.Dialer).DialContext(b.t.Context(), "tcp", b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	c := &rawClient{
		t: b.t, conn: conn, fr: http2.NewFramer(conn, conn), ended: make(chan error, 1),
		frames: map[http2.FrameType]*atomic.Int64{http2.FrameRSTStream: {}, http2.FrameHeaders: {}, http2.FrameData: {}, http2.FrameGoAway: {}},
	}
	c.hpack = hpack.NewEncoder(&c.block)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		b.t.Fatal(err)
	}
	c.do(c.fr.WriteSettings(settings...))
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.read()
	}()
	b.t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return c
}

func (c *rawClient) read() {
	for {
		f, err := c.fr.ReadFrame()
		if err != nil {
			c.ended <- err
			return
		}
		if g, ok := f.(*http2.GoAwayFrame); ok {
			c.code.Store(uint32(g.ErrCode))
		}
		if n := c.frames[f.Header().Type]; n != nil {
			n.Add(1)
		}
	}
}

// do handles the error of a write: the peer may end the connection at any time.
func (c *rawClient) do(err error) bool {
	c.t.Helper()
	if err == nil {
		return true
	}
	if op := (*net.OpError)(nil); !errors.As(err, &op) && !errors.Is(err, io.ErrClosedPipe) {
		c.t.Fatal(err)
	}
	return false
}

func (c *rawClient) headers(extra ...hpack.HeaderField) []byte {
	c.block.Reset()
	fields := append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName},
		{Name: ":authority", Value: "test"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}, extra...)
	for _, f := range fields {
		if err := c.hpack.WriteField(f); err != nil {
			c.t.Fatal(err)
		}
	}
	return bytes.Clone(c.block.Bytes())
}

// open opens a stream.
func (c *rawClient) open(id uint32, extra ...hpack.HeaderField) bool {
	return c.do(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.headers(extra...), EndHeaders: true}))
}

// send sends a request on a stream.
func (c *rawClient) send(id uint32, r proto.Message) {
	c.t.Helper()
	b, err := proto.Marshal(r)
	if err != nil {
		c.t.Fatal(err)
	}
	head := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b)))
	c.do(c.fr.WriteData(id, false, append(head, b...)))
}

func (c *rawClient) wantEnd() {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(patience):
		c.t.Fatal("the connection was not closed")
	}
}

// floodTest attacks a server that also has a good client.
func floodTest(t *testing.T, attack func(b *testServer), opts ...serverOption) {
	b := startServer(t, small(), opts...)
	good := b.connect(xdswire.Delta, "good")
	good.subscribe("CDS")
	good.wantAck("CDS", "a=a:1 b=b:1")
	attack(b)
	good.quiet()
	b.mesh.set("CDS", "shared", "a", "a:2")
	b.push()
	good.wantAck("CDS", "a=a:2")
}

// TestRapidReset: Streams are opened and reset at once, while each handler takes time.
// The connection ends with a GOAWAY.
func TestRapidReset(t *testing.T) {
	t.Parallel()
	const most = 20
	release := make(chan struct{})
	var all, now, peak atomic.Int64
	slowly := func(c *Config, a *Access) {
		c.Limits.ConnStreams = most
		withoutTimeouts(c, a)
		a.Authenticate = func(context.Context) (mesh.Caller, error) {
			if all.Add(1) == 1 { // the good client
				return mesh.Caller{}, nil
			}
			peak.Store(max(peak.Load(), now.Add(1)))
			defer now.Add(-1)
			<-release
			return mesh.Caller{}, nil // an error would close the connection in a second
		}
	}
	floodTest(t, func(b *testServer) {
		c := b.dialRaw()
		wrote := make(chan struct{})
		go func() {
			defer close(wrote)
			for id := uint32(1); c.open(id) && c.do(c.fr.WriteRSTStream(id, http2.ErrCodeCancel)); id += 2 {
			}
		}()
		b.eventually("handlers", func() bool { return now.Load() == most })
		b.push() // the server still works
		if n := peak.Load(); n > most {
			t.Errorf("%d handlers at a time for one connection, want at most %d", n, most)
		}
		close(release)
		<-wrote
		c.wantEnd()
		if code := http2.ErrCode(c.code.Load()); code != http2.ErrCodeEnhanceYourCalm && code != http2.ErrCodeNo { // see wantCalm
			t.Errorf("GOAWAY %v, want %v", code, http2.ErrCodeEnhanceYourCalm)
		}
		b.eventually("the count", func() bool { return b.metric("meshctl_xds_closed_connections_total", "") == 1 })
	}, slowly)
	if n := peak.Load(); n > most {
		t.Errorf("%d handlers at a time for one connection, want at most %d", n, most)
	}
}

func TestPingFlood(t *testing.T) {
	t.Parallel()
	floodTest(t, func(b *testServer) {
		b.wantCalm(func(c *rawClient) {
			for i := range 10_000 {
				if !c.do(c.fr.WritePing(false, [8]byte{byte(i)})) {
					break
				}
			}
		})
	})
}

// wantCalm attacks over new connections until one ends with ENHANCE_YOUR_CALM. The GOAWAY
// may be lost: the server does not wait for a client that is slow to read it.
func (b *testServer) wantCalm(attack func(*rawClient)) {
	b.t.Helper()
	b.eventually("GOAWAY with ENHANCE_YOUR_CALM", func() bool {
		c := b.dialRaw()
		attack(c)
		c.wantEnd()
		return http2.ErrCode(c.code.Load()) == http2.ErrCodeEnhanceYourCalm
	})
}

// TestSettingsFloodRead: The peer sends settings and reads the answers.
func TestSettingsFloodRead(t *testing.T) {
	t.Parallel()
	floodTest(t, func(b *testServer) {
		b.wantCalm(func(c *rawClient) {
			for c.do(c.fr.WriteSettings()) {
			}
		})
	})
}

// TestSettingsFlood: The peer sends settings, each of which needs an answer, and reads
// none. The server stops reading, too.
func TestSettingsFlood(t *testing.T) {
	floodTest(t, func(b *testServer) {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if tcp, ok := conn.(*net.TCPConn); ok {
			if err := errors.Join(tcp.SetReadBuffer(4<<10), tcp.SetWriteBuffer(64<<10)); err != nil {
				t.Fatal(err)
			}
		}
		var frames bytes.Buffer
		fr := http2.NewFramer(&frames, nil)
		for range 10_000 {
			if err := fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 16}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		for err = error(nil); err == nil; {
			_, err = conn.Write(frames.Bytes())
		}
	}, func(c *Config, _ *Access) { c.Limits.Write = time.Second })
}

func TestContinuationFlood(t *testing.T) {
	floodTest(t, func(b *testServer) {
		c := b.dialRaw()
		block := c.headers()
		open := c.do(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block}))
		for i := 0; open && i < 100_000; i++ {
			c.block.Reset()
			if err := c.hpack.WriteField(hpack.HeaderField{Name: fmt.Sprintf("x-%d", i), Value: strings.Repeat("v", 1000), Sensitive: true}); err != nil {
				t.Fatal(err)
			}
			open = c.do(c.fr.WriteContinuation(1, false, c.block.Bytes()))
		}
		c.wantEnd()
	})
}

// TestHeaderBomb: A small header block expands to a large list.
func TestHeaderBomb(t *testing.T) {
	floodTest(t, func(b *testServer) {
		c := b.dialRaw()
		bomb := make([]hpack.HeaderField, 5_000)
		for i := range bomb {
			bomb[i] = hpack.HeaderField{Name: "x-bomb", Value: strings.Repeat("b", 3_000)}
		}
		block := c.headers(bomb...)
		if len(block) > 10_000 {
			t.Fatalf("the block has %d bytes", len(block))
		}
		c.do(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true}))
		b.eventually("refusal", func() bool {
			return c.frames[http2.FrameRSTStream].Load()+c.frames[http2.FrameHeaders].Load()+c.frames[http2.FrameGoAway].Load() > 0
		})
		if n := len(b.hub.Proxies()); n != 1 {
			t.Errorf("%d proxies, want the good one", n)
		}
	})
}

// TestClosedWindow: The peer requests everything, answers pings and reads no byte of a
// response.
func TestClosedWindow(t *testing.T) {
	t.Parallel()
	floodTest(t, func(b *testServer) {
		c := b.dialRaw(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		c.open(1)
		c.send(1, &discoveryv3.DeltaDiscoveryRequest{Node: testNode("p"), TypeUrl: xdswire.ClusterType})
		c.wantEnd()
		b.eventually("the count", func() bool { return b.metric("meshctl_xds_write_timeouts_total", "") == 1 })
		if n := c.frames[http2.FrameData].Load(); n != 0 {
			t.Errorf("%d data frames came through a closed window", n)
		}
	}, func(c *Config, _ *Access) { c.Limits.Write = time.Second })
}

// TestClosedWindowOfAnEndedStream: A response remains unread when its stream ends.
func TestClosedWindowOfAnEndedStream(t *testing.T) {
	t.Parallel()
	floodTest(t, func(b *testServer) {
		c := b.dialRaw(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		c.open(1)
		c.send(1, &discoveryv3.DeltaDiscoveryRequest{Node: testNode("p"), TypeUrl: xdswire.ClusterType})
		b.eventually("a response", func() bool {
			return len(b.hub.Proxies()) == 2 && b.metric("meshctl_xds_sent_total", "CDS") == 2
		})
		c.do(c.fr.WriteData(1, true, nil))
		b.eventually("the end of the stream", func() bool { return len(b.hub.Proxies()) == 1 })
		c.wantEnd()
	}, func(c *Config, _ *Access) { c.Limits.Write = time.Second })
}

func TestStreamsOfOneConnection(t *testing.T) {
	floodTest(t, func(b *testServer) {
		c := b.dialRaw()
		for i := range uint32(1_000) {
			if !c.open(2*i + 1) {
				t.Fatal("the connection was closed")
			}
		}
		b.eventually("refusals", func() bool { return c.frames[http2.FrameRSTStream].Load() == 1_000-7 })
	}, func(c *Config, _ *Access) { c.Limits.ConnStreams = 7 })
}

func TestConnectionsAge(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, v xdswire.Variant) {
		t.Parallel()
		b := startServer(t, small(), func(c *Config, _ *Access) { c.Limits.ConnectionAge = time.Second })
		p := b.connect(v, "p")
		p.subscribe("CDS")
		c := b.dialRaw()
		b.eventually("the sign to go", func() bool { return c.frames[http2.FrameGoAway].Load() > 0 })
		if s := p.status(); s.Code() != codes.Unavailable {
			t.Errorf("got %v, want Unavailable", s)
		}
	})
}
