// Package admission decides who may connect, how much one peer may have open, and
// who comes first. gRPC by itself bounds none of this.
package admission

import (
	"bytes"
	"container/list"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/bucket"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Conns bounds the connections of one server: how many there are, how long
// they may take to prove whose they are, and how long a write may take. gRPC
// by itself bounds none of these.
type Conns struct {
	cfg Config

	mu        sync.Mutex
	addresses map[netip.Prefix]int // connections that are not an identity's
	pending   list.List            // of *Conn that have still to prove something, oldest first
	stopped   bool
	holders   map[peerKey]*holder

	total   account            // of all peers: what they share counts once
	turns   [classes]list.List // of *holder: the peers with waiting requests, in order
	full    bool               // the next waiting request does not fit the budget of all peers
	granted time.Time          // when a waiting request was last let in, or full became true
}

// peerKey is whom streams, and connections that have proved whose they are,
// count for: an identity, or an address of which none is asked.
type peerKey struct {
	identity mesh.Identity
	address  netip.Prefix
}

func (k peerKey) String() string {
	if k.address.IsValid() {
		return k.address.String()
	}
	return k.identity.String()
}

// Limits bound connections and their streams.
type Limits struct {
	// FirstRequest is how long a stream may wait with its first request, and
	// a connection with proving whose it is.
	FirstRequest time.Duration
	// Write is how long a peer may take to read a response, or the network
	// to take any byte, before its connection is closed.
	Write time.Duration
	// AddressConns is how many connections one address (IPv6: one /64) may
	// have that have not proved whose they are. Without TLS none do.
	AddressConns int
	// PendingConns is how many connections all addresses together may have in
	// handshakes and, with TLS, before they prove whose they are. One more
	// closes the oldest.
	PendingConns int
	// IdentityConns is how many connections one identity may have.
	IdentityConns int
	// IdentityStreams is how many streams one identity may have, AddressStreams
	// how many one address (IPv6: one /64) of which no identity is asked.
	IdentityStreams, AddressStreams int
	// PeerBytes is how many bytes the server keeps for one identity, or for one
	// address of which none is asked: requests that are not finished or not
	// handled yet, and the names that streams subscribe to. TotalBytes bounds all
	// peers together: requests wait for room, and when none is let in for a while, or
	// names take more, the largest connection of the largest holder is closed.
	PeerBytes, TotalBytes int
	// RequestBytes is the size of the largest request, RequestTime how long one
	// may take to arrive, and may wait for room in its peer's budget.
	RequestBytes int
	RequestTime  time.Duration
}

// Stats are called, concurrently, when something is to be counted.
type Stats struct {
	Refused  func() // a connection was closed before it proved anything
	Rejected func() // a stream or connection of a known peer is one too many
	Stalled  func() // a connection was closed because its peer does not read
	Closed   func() // a connection was closed because its peer sends or holds too much
}

// Config of a Conns. All fields are needed.
type Config struct {
	Limits Limits
	Stats  Stats
	Log    *slog.Logger
	Now    func() time.Time
	// Authenticate says that the server's peers authenticate: then each
	// connection must call for Authenticated in time, and counts for its
	// identity from then on, no longer for its address.
	Authenticate bool
}

// NewConns makes the Conns of a server.
func NewConns(cfg Config) *Conns {
	return &Conns{
		cfg: cfg, addresses: make(map[netip.Prefix]int),
		holders: make(map[peerKey]*holder),
	}
}

// Listen bounds what the listener accepts.
func (c *Conns) Listen(l net.Listener) net.Listener { return boundedListener{l, c} }

// Stop closes the connections that have still to prove something, and each one
// that comes from now on. gRPC waits for handshakes before it stops.
func (c *Conns) Stop() {
	c.mu.Lock()
	c.stopped = true
	var open []*Conn
	for e := c.pending.Front(); e != nil; e = e.Next() {
		if n, ok := e.Value.(*Conn); ok {
			open = append(open, n)
		}
	}
	c.mu.Unlock()
	for _, n := range open {
		n.close()
	}
}

// Authenticated notes whose the connection of a call is. It returns an error
// with code ResourceExhausted when the identity has too many connections.
func Authenticated(ctx context.Context, id mesh.Identity) error {
	if c := ConnOf(ctx); c != nil {
		return c.own(id)
	}
	return nil
}

type boundedListener struct {
	net.Listener
	conns *Conns
}

// Accept implements net.Listener.
func (l boundedListener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if conn := l.conns.admit(raw); conn != nil {
			return conn, nil
		}
		raw.Close()
	}
}

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
	controls bucket.Bucket

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

// admit makes a conn, or returns nil when its address has too many or the
// server is stopping.
func (c *Conns) admit(raw net.Conn) *Conn {
	// A peer that acknowledges no byte for this long is gone, or holds its
	// window shut.
	if err := setUserTimeout(raw, c.cfg.Limits.Write); err != nil {
		c.cfg.Log.Debug("no limit for unacknowledged bytes", "error", err)
	}
	n := &Conn{
		Conn: raw, conns: c, address: AddressOf(raw.RemoteAddr()), gone: make(chan struct{}), known: make(chan struct{}),
		inbounds: make(map[uint32]*inbound), controls: controls.Full(c.cfg.Now()),
	}
	n.peer = peerKey{address: n.address}
	n.write = time.AfterFunc(c.cfg.Limits.Write, n.Stall)
	n.write.Stop()
	c.mu.Lock()
	if c.stopped {
		c.mu.Unlock()
		return nil
	}
	if c.addresses[n.address] >= c.cfg.Limits.AddressConns {
		c.mu.Unlock()
		c.cfg.Stats.Refused()
		c.cfg.Log.Debug("connection refused: its address has too many", "address", n.address)
		return nil
	}
	c.addresses[n.address]++
	var oldest *Conn
	if c.pending.Len() >= c.cfg.Limits.PendingConns {
		oldest, _ = c.pending.Front().Value.(*Conn)
	}
	n.pending = c.pending.PushBack(n)
	c.holder(n.peer).open[n] = struct{}{}
	n.frames, n.in = &frameWriter{conn: n, out: (*rawConn)(n)}, newFrameReader(n, (*recordConn)(n))
	n.out.Store(n.frames)
	if c.cfg.Authenticate {
		n.prove = time.AfterFunc(c.cfg.Limits.FirstRequest, func() {
			c.cfg.Stats.Refused()
			n.close()
		})
	}
	c.mu.Unlock()
	if oldest != nil {
		// Handshakes are short, so the oldest is the likeliest never to end.
		c.cfg.Stats.Refused()
		oldest.close()
	}
	return n
}

// AddressOf is what the peers of one host share.
func AddressOf(a net.Addr) netip.Prefix {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Prefix{}
	}
	ip := ap.Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits) // bits fit
	return p
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

// own makes a connection count for its identity. What is counted at first
// stays: a connection with calls of several identities counts for one.
func (c *Conn) own(id mesh.Identity) error {
	s := c.conns
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed || c.owner != nil {
		return nil
	}
	k := peerKey{identity: id}
	h := s.holder(k)
	if h.conns >= s.cfg.Limits.IdentityConns {
		s.cfg.Stats.Rejected()
		return status.Errorf(codes.ResourceExhausted, "%s has %d connections, no more are accepted", id, h.conns)
	}
	h.conns++
	c.proved()
	c.owner = &id
	close(c.known)
	s.leaveAddress(c.address)
	before := s.holder(c.peer)
	waits := s.withdraw(c.next)
	before.add(c, -c.requests)
	before.queued -= c.queued
	h.add(c, c.requests)
	h.queued += c.queued
	s.leave(c)
	c.peer = k
	h.open[c] = struct{}{}
	s.announce(before)
	if waits {
		s.enqueue(c.next, h)
	}
	s.grant()
	return nil
}

// OpenStream counts a stream until it is closed: for the identity, or for the
// connection's address when peers do not authenticate. A nil Conn has a nil
// Stream.
func (c *Conn) OpenStream(id mesh.Identity) (*Stream, error) {
	if c == nil {
		return nil, nil
	}
	s := c.conns
	k, most := peerKey{identity: id}, s.cfg.Limits.IdentityStreams
	if !s.cfg.Authenticate {
		k, most = peerKey{address: c.address}, s.cfg.Limits.AddressStreams
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.holder(k)
	if h.streams >= most {
		s.cfg.Stats.Rejected()
		return nil, status.Errorf(codes.ResourceExhausted, "%s has %d streams, no more are accepted", k, h.streams)
	}
	h.streams++
	return &Stream{conn: c, peer: k}, nil
}

// leave has a connection count no longer for its peer. The lock must be held.
func (c *Conns) leave(n *Conn) {
	delete(c.holder(n.peer).open, n)
	c.tidy(n.peer)
}

func (c *Conns) leaveAddress(a netip.Prefix) {
	if c.addresses[a]--; c.addresses[a] == 0 {
		delete(c.addresses, a)
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
