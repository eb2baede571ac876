package admission

import (
	"bytes"
	"container/list"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/peer"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Conn is a connection under the limits of its Conns.
type Conn struct {
	net.Conn
	conns      *Conns
	address    netip.Prefix
	writeTimer *time.Timer   // runs during a write
	authTimer  *time.Timer   // runs until the connection has an owner
	records    *recordReader // nil without TLS
	frames     *frameWriter  // nil with TLS
	in         *frameReader  // nil with TLS
	out        atomic.Pointer[frameWriter]
	written    atomic.Int64
	readDelay  atomic.Int64 // of the next read, in nanoseconds
	closeSoon  sync.Once
	closedOnce sync.Once // counts and logs the reason in goAway
	closedFor  atomic.Pointer[string]
	gone       chan struct{} // closed with the connection
	known      chan struct{} // closed when the connection has an owner

	holdNext atomic.Bool // the next write waits in held for the one after it
	held     []byte

	opening uint32 // the stream of the last headers; for the goroutine that reads

	frameMu  sync.Mutex
	inbounds map[uint32]*inboundStream
	controls *rate.Limiter

	// The lock of conns guards the fields below.
	pending  *list.Element
	owner    *mesh.Identity
	peer     peerKey // the peer that the connection counts for
	closed   bool
	names    holdings
	requests int  // bytes
	started  bool // one of its streams had its turn
	next     *reservation
	queued   int // bytes of answers, see Queue
}

// SetDeadline implements net.Conn. gRPC removes its deadline for handshakes when they are
// over.
func (c *Conn) SetDeadline(t time.Time) error {
	if t.IsZero() && !c.conns.cfg.Authenticate {
		c.conns.mu.Lock()
		c.leavePending()
		c.conns.mu.Unlock()
	}
	return c.Conn.SetDeadline(t)
}

// leavePending notes the end of the handshakes or, with TLS, of authentication. The lock
// must be held.
func (c *Conn) leavePending() {
	if c.pending != nil {
		c.conns.pending.Remove(c.pending)
		c.pending = nil
	}
	if c.authTimer != nil {
		c.authTimer.Stop()
	}
}

// maxReadDelay bounds the delay of a read.
const maxReadDelay = 100 * time.Millisecond

// SlowDown delays the next read from the connection of a call, whose peer asks for more
// than it gets and can only wait. The delay is multiplied by the number of connections
// of the identity, so that many connections gain nothing over one.
func SlowDown(ctx context.Context, by time.Duration) {
	c := ConnOf(ctx)
	if c == nil {
		return
	}
	s := c.conns
	s.mu.Lock()
	conns := 1
	if c.owner != nil {
		conns = s.peerState(peerKey{identity: *c.owner}).conns
	}
	s.mu.Unlock()
	c.readDelay.Add(int64(by) * int64(conns))
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if late := time.Duration(c.readDelay.Swap(0)); late > 0 {
		select {
		case <-time.After(min(late, maxReadDelay)):
		case <-c.gone:
		}
	}
	if c.in != nil {
		return c.in.Read(p)
	}
	return (*recordConn)(c).Read(p)
}

// recordConn reads a connection as it is; with TLS one record at a time.
type recordConn Conn

// Read implements io.Reader.
func (r *recordConn) Read(p []byte) (n int, err error) {
	c := (*Conn)(r)
	if c.records != nil {
		n, err = c.records.read(c.Conn, p)
	} else {
		n, err = c.Conn.Read(p)
	}
	if errors.Is(err, syscall.ETIMEDOUT) { // see setUserTimeout
		c.Stall()
	}
	return n, err
}

// Write implements net.Conn. It receives frames from gRPC, or records from TLS.
func (c *Conn) Write(p []byte) (int, error) {
	if c.frames != nil {
		return c.frames.Write(p)
	}
	if c.holdNext.Swap(false) {
		c.held = append(c.held, p...)
		return len(p), nil
	}
	return (*rawConn)(c).Write(p)
}

// rawConn writes to a connection at once.
type rawConn Conn

// Write implements io.Writer.
func (c *rawConn) Write(p []byte) (int, error) {
	c.writeTimer.Reset(c.conns.cfg.Limits.Write)
	defer c.writeTimer.Stop()
	if len(c.held) == 0 {
		n, err := c.Conn.Write(p)
		c.written.Add(int64(n))
		return n, err
	}
	parts := net.Buffers{c.held, p}
	n, err := parts.WriteTo(c.Conn)
	c.written.Add(n)
	held := int64(len(c.held))
	c.held = c.held[:0]
	return int(max(0, n-held)), err
}

// Written returns the number of bytes written so far. It may be called on a nil Conn.
func (c *Conn) Written() int64 {
	if c == nil {
		return 0
	}
	return c.written.Load()
}

// Stall closes a connection whose peer does not read. It may be called on a nil Conn.
func (c *Conn) Stall() {
	if c == nil {
		return
	}
	why := "the peer does not read"
	c.closedFor.CompareAndSwap(nil, &why)
	if !c.close() {
		return
	}
	c.conns.cfg.Stats.Stalled()
	c.conns.cfg.Log.Warn("the peer does not read: its connection is closed",
		"peer", c.Conn.RemoteAddr(), "after", c.conns.cfg.Limits.Write)
}

// closeDelay is the time in which the last answer must be sent.
const closeDelay = time.Second

// CloseSoon closes the connection when the peer has had time to read the last answer. It
// may be called on a nil Conn.
func (c *Conn) CloseSoon() {
	if c != nil {
		c.closeSoon.Do(func() { time.AfterFunc(closeDelay, func() { c.close() }) })
	}
}

// goAwayTime bounds the time to close a connection with a GOAWAY, maxDrain the bytes read
// meanwhile.
const (
	goAwayTime = time.Second
	maxDrain   = 16 << 20
)

// goAway sends the reason for the end of the connection, unless a write is blocked.
func (c *Conn) goAway(why string) {
	c.closedFor.CompareAndSwap(nil, &why)
	c.closedOnce.Do(func() {
		c.conns.cfg.Stats.Closed()
		c.conns.cfg.Log.Debug("connection closed", "address", c.Conn.RemoteAddr(), "reason", why)
	})
	if w := c.out.Load(); w != nil && w.mu.TryLock() {
		defer w.mu.Unlock()
		defer time.AfterFunc(goAwayTime, func() { c.Conn.Close() }).Stop()
		var frame bytes.Buffer
		_ = http2.NewFramer(&frame, nil).WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, []byte(why)) // into memory
		_, _ = w.out.Write(frame.Bytes())                                                          // the connection ends in any case
	}
}

// drain drops the bytes that arrive.
func (c *Conn) drain() {
	defer time.AfterFunc(goAwayTime, func() { c.Conn.Close() }).Stop()
	_, _ = io.CopyN(io.Discard, c.Conn, maxDrain) // the connection ends in any case
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.close()
	return nil
}

// close closes the connection and reports whether it was open.
func (c *Conn) close() bool {
	s := c.conns
	s.mu.Lock()
	if c.closed {
		s.mu.Unlock()
		return false
	}
	s.withdraw(c.next)
	c.hold(-c.requests)
	c.queue(-c.queued)
	c.closed = true
	close(c.gone)
	c.leavePending()
	if c.owner != nil {
		s.peerState(c.peer).conns--
	} else {
		s.leaveAddress(c.address)
	}
	s.leave(c)
	s.mu.Unlock()
	c.Conn.Close()
	return true
}

// Ended returns the reason for the end of the connection, empty while it is open or for a nil
// Conn.
func (c *Conn) Ended() string {
	if c == nil {
		return ""
	}
	select {
	case <-c.gone:
	default:
		return ""
	}
	if why := c.closedFor.Load(); why != nil {
		return *why
	}
	return "the connection was closed"
}

// RemoteAddr implements net.Conn. gRPC passes the address to calls; ConnOf finds the
// connection by it.
func (c *Conn) RemoteAddr() net.Addr { return connAddr{c.Conn.RemoteAddr(), c} }

type connAddr struct {
	net.Addr
	conn *Conn
}

// ConnOf returns the connection of a call, or nil if its listener is not of a Conns.
func ConnOf(ctx context.Context) *Conn {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	a, _ := p.Addr.(connAddr)
	return a.conn
}
