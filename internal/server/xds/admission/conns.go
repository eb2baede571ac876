// Package admission decides who may connect, how much one peer may have open, and
// who comes first. gRPC by itself bounds none of this.
package admission

import (
	"container/list"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
		inbounds: make(map[uint32]*inbound), controls: rate.NewLimiter(controlRate, controlBurst),
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
