package admission

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/peer"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

const patience = 2 * time.Minute

// limited returns Conns with the limits, and large ones for the rest.
func limited(l Limits) *Conns {
	none := func() {}
	l.FirstRequest, l.Write, l.AddressConns, l.PendingConns = patience, patience, 100, 100
	return NewConns(Config{
		Limits: l, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Stats: Stats{Refused: none, Rejected: none, Stalled: none, Closed: none},
	})
}

// wire is a connection whose frames the server reads as gRPC does.
type wire struct {
	t      *testing.T
	conn   *Conn
	client net.Conn
	fr     *http2.Framer // writes to the server

	goAway chan string   // the reason in the GOAWAY
	begun  chan struct{} // closed when the preface was read

	mu      sync.Mutex
	streams map[uint32]context.CancelFunc
	calls   map[uint32]context.Context
}

// dial connects from an address.
func (c *Conns) dial(t *testing.T, address string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	client, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{
		t: t, conn: c.admit(raw), client: client, fr: http2.NewFramer(client, client), goAway: make(chan string, 1), begun: make(chan struct{}),
		streams: make(map[uint32]context.CancelFunc), calls: make(map[uint32]context.Context),
	}
	var done sync.WaitGroup
	done.Go(w.serve)
	done.Go(w.listen)
	t.Cleanup(func() {
		_ = client.Close()
		_ = w.conn.Close()
		done.Wait()
	})
	w.write([]byte(http2.ClientPreface))
	return w
}

// serve reads frames and makes each stream a call.
func (w *wire) serve() {
	ctx, cancel := context.WithCancel(peer.NewContext(w.t.Context(), &peer.Peer{Addr: w.conn.RemoteAddr()}))
	defer cancel()
	defer func() { _ = w.conn.Close() }()
	if _, err := io.ReadFull(w.conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	close(w.begun)
	fr := http2.NewFramer(io.Discard, w.conn)
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			_, _ = io.Copy(io.Discard, w.conn) // ends with the connection
			return
		}
		w.mu.Lock()
		switch f := f.(type) {
		case *http2.HeadersFrame:
			call, end := context.WithCancel(ctx)
			w.calls[f.StreamID], w.streams[f.StreamID] = countRequests(call), end
		case *http2.RSTStreamFrame:
			w.streams[f.StreamID]()
		}
		w.mu.Unlock()
	}
}

// listen waits for a GOAWAY.
func (w *wire) listen() {
	for {
		f, err := w.fr.ReadFrame()
		if err != nil {
			close(w.goAway)
			return
		}
		if g, ok := f.(*http2.GoAwayFrame); ok && g.ErrCode == http2.ErrCodeEnhanceYourCalm {
			w.goAway <- string(g.DebugData())
		}
	}
}

func (w *wire) write(b []byte) {
	w.t.Helper()
	if _, err := w.client.Write(b); err != nil {
		w.t.Fatal(err)
	}
}

// open opens a stream.
func (w *wire) open(stream uint32) {
	w.t.Helper()
	if err := w.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: []byte{0x82}, EndHeaders: true}); err != nil {
		w.t.Fatal(err)
	}
}

// send sends data in frames of a size.
func (w *wire) send(stream uint32, data []byte, frame int) {
	w.t.Helper()
	for len(data) > 0 {
		n := min(frame, len(data))
		if err := w.fr.WriteData(stream, false, data[:n]); err != nil {
			w.t.Fatal(err)
		}
		data = data[n:]
	}
}

// message returns the header and the first bytes of a request.
func message(size, sent int) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(size)), make([]byte, sent)...)
}

// next makes the handler of a stream ask for its next request.
func (w *wire) next(stream uint32) {
	w.mu.Lock()
	ctx := w.calls[stream]
	w.mu.Unlock()
	NextRequest(ctx)
}

func (c *Conns) counted() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total.held()
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("did not come: %s", what)
		}
	}
}

// TestUnfinishedRequestsCount: A request counts once its length is known, however
// little of it has arrived, until its handler asks for the next one or its stream ends.
func TestUnfinishedRequestsCount(t *testing.T) {
	t.Parallel()
	c := limited(Limits{PeerBytes: 1 << 30, TotalBytes: 1 << 30, RequestBytes: 4 << 20, RequestTime: patience})
	w := c.dial(t, "127.0.0.1")
	w.open(1)
	w.send(1, message(1<<20, 100), 1<<14)
	eventually(t, "an unfinished request", func() bool { return c.counted() >= 2<<20 })
	w.next(1)
	w.send(1, make([]byte, 1<<20-100), 1<<14)
	w.send(1, message(1<<16, 1<<16), 1<<14)
	eventually(t, "a second request", func() bool { return c.counted() >= 2<<20+2<<16 })
	w.next(1)
	eventually(t, "the end of the first", func() bool { n := c.counted(); return n >= 2<<16 && n < 1<<20 })
	w.send(1, message(1<<30, 0), 1<<14) // gRPC refuses it
	eventually(t, "one that is too large", func() bool { n := c.counted(); return n >= 8<<20 && n < 10<<20 })
	if err := w.fr.WriteRSTStream(1, http2.ErrCodeCancel); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the stream", func() bool { return c.counted() == 0 })
	// Each small frame counts.
	w.open(3)
	w.send(3, message(1000, 1000), 1)
	eventually(t, "small frames", func() bool { return c.counted() >= 1000*frameOverhead })
	w.open(5)
	if err := w.fr.WriteDataPadded(5, false, message(1<<20, 0), make([]byte, 255)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a padded frame", func() bool { n := c.counted() - 1005*frameOverhead; return n >= 2<<20 && n < 3<<20 })
	_ = w.client.Close()
	eventually(t, "the end of the connection", func() bool { return c.counted() == 0 })
	eventually(t, "nothing left", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.peers) == 0
	})
}

// TestStartedConnectionsComeFirst: A request of a connection that has started is
// admitted before requests of the same peer's other connections.
func TestStartedConnectionsComeFirst(t *testing.T) {
	t.Parallel()
	c := limited(Limits{PeerBytes: 5 << 20, TotalBytes: 1 << 30, RequestBytes: 4 << 20, RequestTime: patience})
	first, late := c.dial(t, "127.0.0.1"), c.dial(t, "127.0.0.1")
	const size = 2 << 20
	lengths := func(going, waiting int) func() bool {
		return func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			h := c.peers[first.conn.peer]
			return h != nil && h.queues[started].reservations.Len() == going && h.queues[early].reservations.Len() == waiting
		}
	}
	first.open(1)
	first.send(1, message(size, size), 1<<14)
	eventually(t, "the first request", func() bool { return c.counted() >= 2*size })
	first.next(1)
	late.open(1)
	late.send(1, message(size, 0), 1<<14)
	eventually(t, "a connection that waits for its first request", lengths(0, 1))
	first.send(1, message(size, 0), 1<<14)
	eventually(t, "the next request of the other", lengths(0, 2))
	first.conn.Start() // while its request waits
	eventually(t, "the queue of those that have started", lengths(1, 1))
	first.next(1)
	eventually(t, "it is let in", lengths(0, 1))
	_ = first.client.Close()
	eventually(t, "the other is let in", func() bool { return c.counted() >= 2*size && lengths(0, 0)() })
}

// TestHalfOfTheBudgetIsForStartedConnections: Connections that have not started do not
// fill the budget of their peer.
func TestHalfOfTheBudgetIsForStartedConnections(t *testing.T) {
	t.Parallel()
	c := limited(Limits{PeerBytes: 10 << 20, TotalBytes: 1 << 30, RequestBytes: 4 << 20, RequestTime: patience})
	const size = 1 << 20 // counts twice
	first := c.dial(t, "127.0.0.1")
	first.conn.Start()
	waiting := func(n int) func() bool {
		return func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			h := c.peers[first.conn.peer]
			return h != nil && h.queues[early].reservations.Len() == n
		}
	}
	others := make([]*wire, 4)
	for i := range others {
		others[i] = c.dial(t, "127.0.0.1")
		others[i].open(1)
		others[i].send(1, message(size, size), 1<<14)
	}
	eventually(t, "two of four that wait", waiting(2))
	first.open(1)
	first.send(1, message(size, size), 1<<14)
	first.send(1, message(size, size), 1<<14)
	eventually(t, "two requests of the one that has started", func() bool { return c.counted() >= 8*size })
	if n := c.counted(); n > 10*size {
		t.Errorf("%d bytes are held", n)
	}
	for _, w := range others {
		w.conn.Start()
	}
	_ = first.client.Close()
	eventually(t, "the requests of the others", func() bool { return c.counted() >= 8*size && waiting(0)() })
}

// TestAdmittedRequestsNeedNoMoreRoom: Admitted requests that fill the budget of
// their peer finish while another one waits, even with a small last frame.
func TestAdmittedRequestsNeedNoMoreRoom(t *testing.T) {
	t.Parallel()
	const size, frame = 1 << 20, 1 << 14
	const cost = 2*size + size/usualFrame*frameOverhead + frameOverhead + requestOverhead
	c := limited(Limits{PeerBytes: 6*cost + 1, TotalBytes: 1 << 30, RequestBytes: 4 << 20, RequestTime: patience})
	full := make([]*wire, 3)
	for i := range full {
		full[i] = c.dial(t, "127.0.0.1")
		full[i].open(1)
		full[i].send(1, message(size, 0), frame)
		eventually(t, "a request", func() bool { return c.counted() == (i+1)*cost })
	}
	last := c.dial(t, "127.0.0.1")
	last.open(1)
	last.send(1, message(size, 0), frame)
	eventually(t, "another connection that waits", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.peers[last.conn.peer].queues[early].reservations.Len() == 1
	})
	for _, w := range full {
		w.send(1, make([]byte, size-1), frame)
		w.send(1, []byte{0}, frame)
		if err := w.fr.WriteRSTStream(1, http2.ErrCodeCancel); err != nil { // read after the request
			t.Fatal(err)
		}
	}
	eventually(t, "the end of their streams", func() bool { return c.counted() == cost })
}

// TestRequestsWaitForTheBudget: A request waits until its peer's budget has room.
// Requests of other peers do not.
func TestRequestsWaitForTheBudget(t *testing.T) {
	t.Parallel()
	c := limited(Limits{PeerBytes: 5 << 20, TotalBytes: 1 << 30, RequestBytes: 4 << 20, RequestTime: patience})
	first, second, other := c.dial(t, "127.0.0.1"), c.dial(t, "127.0.0.1"), c.dial(t, "127.0.0.2")
	const size = 2 << 20
	for i, w := range []*wire{first, second, other} {
		w.open(1)
		w.send(1, message(size, 0), 1<<14)
		if i == 0 {
			eventually(t, "the first", func() bool { return c.counted() >= 2*size })
		}
	}
	eventually(t, "that of another peer", func() bool { return c.counted() >= 4*size })
	eventually(t, "the second waits", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.peers[second.conn.peer].queues[early].reservations.Len() == 1
	})
	if n := c.counted(); n >= 6*size {
		t.Errorf("%d bytes are held", n)
	}
	_ = first.client.Close()
	eventually(t, "the second", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return second.conn.requests >= 2*size && first.conn.requests == 0
	})
}

// TestRequestsWaitForTheBudgetOfAllPeers: The requests of many peers are admitted one
// after the other, and connections that have started come first.
func TestRequestsWaitForTheBudgetOfAllPeers(t *testing.T) {
	t.Parallel()
	const size, cost = 1 << 20, 2<<20 + 1<<20/usualFrame*frameOverhead + frameOverhead + requestOverhead
	c := limited(Limits{PeerBytes: 1 << 30, TotalBytes: 16 * cost, RequestBytes: 4 << 20, RequestTime: patience})
	waiting := func(ofStarted, ofEarly int) func() bool {
		return func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.turns[started].Len() == ofStarted && c.turns[early].Len() == ofEarly
		}
	}
	// A request that stays would count as a stall, which TestLargestHolderIsClosedFirst
	// tests.
	c.cfg.Now = func() time.Time { return time.Time{} }
	var peers []*wire
	for i := range 6 {
		w := c.dial(t, fmt.Sprint("127.0.0.", i+1))
		w.open(1)
		w.send(1, message(size, 0), 1<<14)
		peers = append(peers, w)
		eventually(t, "a peer", func() bool { return c.counted() == min(2, i+1)*cost })
	}
	eventually(t, "the other peers", waiting(0, 4))
	last := peers[5]
	last.conn.Start()
	eventually(t, "the last peer, which has started", func() bool { return c.counted() == 3*cost && waiting(0, 3)() })
	for done := range 5 {
		_ = peers[done].client.Close()
		eventually(t, "the next peer", waiting(0, max(0, 2-done)))
	}
	_ = last.client.Close()
	eventually(t, "the end", func() bool { return c.counted() == 0 })
}

// TestNamesOfSeveralPeersCountOnce: A set of names that peers share counts for each of
// them, and once for all peers. So do the common names of sets that differ.
func TestNamesOfSeveralPeersCountOnce(t *testing.T) {
	t.Parallel()
	c := limited(Limits{PeerBytes: 4 << 20, TotalBytes: 4 << 20, RequestBytes: 1 << 20, RequestTime: patience, AddressStreams: 1})
	sets := xdswire.NewNameSets()
	names := make([]string, 5000)
	for i := range names {
		names[i] = fmt.Sprint("name-", i)
	}
	all := sets.Of(names)
	var streams []*Stream
	for i, set := range []*xdswire.NameSet{all, all, sets.With(all, []string{"one"}), sets.With(all, []string{"another"})} {
		s, err := c.dial(t, fmt.Sprint("127.0.0.", i+1)).conn.OpenStream(mesh.Identity{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Hold([]*xdswire.NameSet{set}); err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
		got := c.counted()
		if i < 2 && got != sizeOf(all) || got < sizeOf(all) || got > sizeOf(all)*3/2 {
			t.Errorf("%d bytes are held by %d peers, a set of one takes %d", got, i+1, sizeOf(all))
		}
	}
	for _, s := range streams {
		s.Close()
	}
	if got := c.counted(); got != 0 {
		t.Errorf("%d bytes are held in the end", got)
	}
}

// TestRequestsAreFinishedInTime: A request that is not complete in time ends its
// connection.
func TestRequestsAreFinishedInTime(t *testing.T) {
	t.Parallel()
	c := limited(Limits{PeerBytes: 1 << 30, TotalBytes: 1 << 30, RequestBytes: 4 << 20, RequestTime: 50 * time.Millisecond})
	w := c.dial(t, "127.0.0.1")
	w.open(1)
	w.send(1, message(10, 10), 1<<14) // this one is complete
	w.open(3)
	w.send(3, message(10, 9), 1<<14)
	if why := <-w.goAway; why != "a request was not finished in time" {
		t.Errorf("GOAWAY says %q", why)
	}
}

// TestLargestHolderIsClosedFirst: If all peers together hold too much, the largest
// connection of the largest peer is closed, not the latest.
func TestLargestHolderIsClosedFirst(t *testing.T) {
	t.Parallel()
	c := limited(Limits{PeerBytes: 1 << 30, TotalBytes: 36 << 20, RequestBytes: 4 << 20, RequestTime: patience})
	small, large, last := c.dial(t, "127.0.0.1"), c.dial(t, "127.0.0.2"), c.dial(t, "127.0.0.3")
	for _, next := range []struct {
		*wire
		size, held int
	}{{small, 1 << 20, 2 << 20}, {large, 3 << 20, 8 << 20}, {last, 2 << 20, 6 << 20}} {
		next.conn.Start()
		next.open(1)
		next.send(1, message(next.size, 0), 1<<14)
		eventually(t, "a request", func() bool { n := c.counted(); return n >= next.held && n < 9<<20 })
	}
	if why := <-large.goAway; why != "all peers together hold too much" {
		t.Errorf("GOAWAY says %q", why)
	}
	for _, w := range []*wire{small, last} {
		select {
		case <-w.goAway:
			t.Error("another connection is closed")
		default:
		}
	}
}

// TestSlowRequestsAreNoStall: While bytes of admitted requests arrive, no connection is
// closed for the requests that wait.
func TestSlowRequestsAreNoStall(t *testing.T) {
	t.Parallel()
	c := limited(Limits{PeerBytes: 1 << 30, TotalBytes: 30 << 20, RequestBytes: 4 << 20, RequestTime: patience})
	var seconds atomic.Int64
	c.cfg.Now = func() time.Time { return time.Unix(seconds.Load(), 0) }
	slow, next := c.dial(t, "127.0.0.1"), c.dial(t, "127.0.0.2")
	for _, w := range []*wire{slow, next} {
		w.conn.Start()
		w.open(1)
		w.send(1, message(3<<20, 100), 1<<14)
		eventually(t, "the first request", func() bool { return c.counted() > 6<<20 })
	}
	eventually(t, "full", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.full })
	for range 5 {
		c.arrived.Add(1 << 20)
		seconds.Add(10)
		c.endStall()
	}
	select {
	case why := <-slow.goAway:
		t.Fatalf("closed although bytes arrive: %s", why)
	default:
	}
	seconds.Add(10)
	c.endStall()
	if why := <-slow.goAway; why != "all peers together hold too much" {
		t.Errorf("GOAWAY says %q", why)
	}
}

// TestControlFramesAreBounded: Too many frames that cost work and carry nothing end the
// connection.
func TestControlFramesAreBounded(t *testing.T) {
	t.Parallel()
	for what, send := range map[string]func(w *wire, i uint32) error{
		"resets": func(w *wire, i uint32) error {
			return errors.Join(w.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: []byte{0x82}, EndHeaders: true}),
				w.fr.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
		},
		"settings":      func(w *wire, _ uint32) error { return w.fr.WriteSettings() },
		"answers":       func(w *wire, _ uint32) error { return w.fr.WritePing(true, [8]byte{}) },
		"priorities":    func(w *wire, i uint32) error { return w.fr.WritePriority(i+1, http2.PriorityParam{}) },
		"empty data":    func(w *wire, _ uint32) error { return w.fr.WriteData(1, false, nil) },
		"unknown":       func(w *wire, _ uint32) error { return w.fr.WriteRawFrame(99, 0, 1, nil) },
		"windows":       func(w *wire, _ uint32) error { return w.fr.WriteWindowUpdate(1, 1) },
		"continuations": func(w *wire, _ uint32) error { return w.fr.WriteContinuation(1, false, nil) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := limited(Limits{PeerBytes: 1 << 30, TotalBytes: 1 << 30, RequestBytes: 4 << 20, RequestTime: patience})
			w := c.dial(t, "127.0.0.1")
			w.fr.AllowIllegalWrites = true
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				for i := range uint32(100_000) {
					if err := send(w, i); err != nil {
						return
					}
				}
			}()
			if why := <-w.goAway; why == "" {
				t.Error("no GOAWAY")
			}
			<-sent
		})
	}
}

// TestProvokedResetsAreBounded: Resets that a peer provokes count like its own.
func TestProvokedResetsAreBounded(t *testing.T) {
	t.Parallel()
	c := limited(Limits{PeerBytes: 1 << 30, TotalBytes: 1 << 30, RequestBytes: 4 << 20, RequestTime: patience})
	w := c.dial(t, "127.0.0.1")
	<-w.begun // a close with unread bytes would reset the connection and lose the GOAWAY
	out := http2.NewFramer(w.conn, nil)
	var err error
	for i := 0; err == nil && i < 100_000; i++ {
		err = out.WriteRSTStream(1, http2.ErrCodeNo) // gRPC ends each stream with one
		if i > 10_000 {
			err = out.WriteRSTStream(1, http2.ErrCodeRefusedStream)
		}
	}
	if why := <-w.goAway; why == "" || err == nil {
		t.Errorf("GOAWAY says %q, error %v", why, err)
	}
}
