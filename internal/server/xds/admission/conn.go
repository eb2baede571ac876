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
	conns   *Conns
	address netip.Prefix
	write   *time.Timer   // runs while a write does
	prove   *time.Timer   // runs until the connection has an owner
	records *recordReader // nil without TLS
	frames  *frameWriter  // nil with TLS
	in      *frameReader  // nil with TLS
	out     atomic.Pointer[frameWriter]
	written atomic.Int64
	late    atomic.Int64  // nanoseconds that the next read waits
	soon    sync.Once     // of CloseSoon
	told    sync.Once     // of goAway
	gone    chan struct{} // closed with the connection
	known   chan struct{} // closed when it has an owner

	holdNext atomic.Bool // the next write goes out with the one after it
	held     []byte

	opening uint32 // the stream of the last headers; used by the goroutine that reads

	frameMu  sync.Mutex
	inbounds map[uint32]*inbound
	controls *rate.Limiter

	// Under the lock of conns.
	pending  *list.Element
	owner    *mesh.Identity
	peer     peerKey // whom the connection counts for
	closed   bool
	names    holdings
	requests int  // bytes
	started  bool // a stream of it has had its turn
	next     *reservation
	queued   int // bytes, see Queue
}

// SetDeadline implements net.Conn. gRPC takes its deadline for handshakes away
// when they are over.
func (c *Conn) SetDeadline(t time.Time) error {
	if t.IsZero() && !c.conns.cfg.Authenticate {
		c.conns.mu.Lock()
		c.proved()
		c.conns.mu.Unlock()
	}
	return c.Conn.SetDeadline(t)
}

// proved takes a connection from those that have something to prove. The lock
// must be held.
func (c *Conn) proved() {
	if c.pending != nil {
		c.conns.pending.Remove(c.pending)
		c.pending = nil
	}
	if c.prove != nil {
		c.prove.Stop()
	}
}

// maxLate bounds how long a read waits.
const maxLate = 100 * time.Millisecond

// SlowDown has the connection of a call be read on later: its peer asks for more
// than it is given, and can do nothing but wait. Others do not. It is later by the
// given time for each connection of its identity, so that who asks over many comes
// no further than over one.
func SlowDown(ctx context.Context, by time.Duration) {
	if c := ConnOf(ctx); c != nil {
		c.late.Add(int64(by) * int64(c.siblings()))
	}
}

// siblings is how many connections the owner has, this one counted.
func (c *Conn) siblings() int {
	c.conns.mu.Lock()
	defer c.conns.mu.Unlock()
	if c.owner == nil {
		return 1
	}
	return c.conns.holder(peerKey{identity: *c.owner}).conns
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if late := time.Duration(c.late.Swap(0)); late > 0 {
		select {
		case <-time.After(min(late, maxLate)):
		case <-c.gone:
		}
	}
	if c.in != nil {
		return c.in.Read(p)
	}
	return (*recordConn)(c).Read(p)
}

// recordConn is a Conn that reads what comes: records with TLS.
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

// Write implements net.Conn. It takes the frames of gRPC, or the records of TLS.
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

// rawConn is a Conn that writes what it is given.
type rawConn Conn

// Write implements io.Writer.
func (c *rawConn) Write(p []byte) (int, error) {
	c.write.Reset(c.conns.cfg.Limits.Write)
	defer c.write.Stop()
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

// Written is how many bytes were written so far; none for a nil Conn.
func (c *Conn) Written() int64 {
	if c == nil {
		return 0
	}
	return c.written.Load()
}

// Stall closes a connection whose peer does not read. A nil Conn has none.
func (c *Conn) Stall() {
	if c == nil || !c.close() {
		return
	}
	c.conns.cfg.Stats.Stalled()
	c.conns.cfg.Log.Warn("the peer does not read: its connection is closed",
		"peer", c.Conn.RemoteAddr(), "after", c.conns.cfg.Limits.Write)
}

// closeDelay is how long what was answered last may take to be sent.
const closeDelay = time.Second

// CloseSoon closes the connection when its peer has had time to read the last
// answer. A nil Conn has none.
func (c *Conn) CloseSoon() {
	if c != nil {
		c.soon.Do(func() { time.AfterFunc(closeDelay, func() { c.close() }) })
	}
}

// goAwayTime bounds how long a connection takes to end with a GOAWAY, maxDrain
// what is read of it meanwhile.
const (
	goAwayTime = time.Second
	maxDrain   = 16 << 20
)

// goAway tells the peer why its connection is to end, unless a write is stuck.
func (c *Conn) goAway(why string) {
	c.told.Do(func() {
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

// drain drops what comes next.
func (c *Conn) drain() {
	defer time.AfterFunc(goAwayTime, func() { c.Conn.Close() }).Stop()
	_, _ = io.CopyN(io.Discard, c.Conn, maxDrain) // the connection ends in any case
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.close()
	return nil
}

// close reports whether the connection was open.
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
	c.proved()
	if c.owner != nil {
		s.holder(c.peer).conns--
	} else {
		s.leaveAddress(c.address)
	}
	s.leave(c)
	s.mu.Unlock()
	c.Conn.Close()
	return true
}

// RemoteAddr implements net.Conn. gRPC hands it to calls, which find their
// connection by it.
func (c *Conn) RemoteAddr() net.Addr { return connAddr{c.Conn.RemoteAddr(), c} }

type connAddr struct {
	net.Addr
	conn *Conn
}

// ConnOf is the connection of a call, nil without Conns.
func ConnOf(ctx context.Context) *Conn {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	a, _ := p.Addr.(connAddr)
	return a.conn
}
