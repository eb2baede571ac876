// Package admission decides which peers may connect, how much each of them may have open
// and which of them comes first. gRPC bounds none of this.
package admission

import (
	"container/list"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/serving"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Conns bounds the connections of one server: their number, the time until they
// authenticate, and the time that a write may take.
type Conns struct {
	cfg Config

	mu        sync.Mutex
	addresses map[netip.Prefix]int // connections without an owner, by address
	pending   list.List            // of *Conn in handshakes or not authenticated, oldest first
	stopped   bool
	peers     map[peerKey]*peerState

	total   usage              // of all peers; what they share counts once
	turns   [classes]list.List // of *peerState: the peers with waiting requests, in order
	full    bool               // the next waiting request exceeds the budget of all peers
	granted time.Time          // when a waiting request was last admitted, or full became true
	arrived atomic.Int64       // bytes of requests so far
	checked int64              // arrived at the last stall
}

// peerKey identifies the peer that streams and connections count for: an identity, or an
// address if peers do not authenticate or have not done so yet.
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
	// FirstRequest is the time in which a stream must send its first request, and a
	// connection must authenticate.
	FirstRequest time.Duration
	// Write is the time in which a peer must read a response, and in which the
	// network must take some bytes, before the connection is closed.
	Write time.Duration
	// AddressConns is the number of connections of one address (IPv6: one /64) that
	// have not authenticated. Without TLS no connection does.
	AddressConns int
	// PendingConns is the number of connections of all addresses together in
	// handshakes or, with TLS, not authenticated. One more closes the oldest.
	PendingConns int
	// IdentityConns is the number of connections of one identity.
	IdentityConns int
	// IdentityStreams is the number of streams of one identity, AddressStreams of one
	// address (IPv6: one /64) without authentication.
	IdentityStreams, AddressStreams int
	// PeerBytes is the number of bytes that the server keeps for one identity, or for
	// one address without authentication: requests that are incomplete or not
	// handled, and the names that streams subscribe to. TotalBytes bounds all peers
	// together. Requests wait for room; if none is admitted for a while, or names
	// exceed the bound, the largest connection of the largest peer is closed.
	PeerBytes, TotalBytes int
	// RequestBytes is the size of the largest request. RequestTime is the time in
	// which a request must arrive, and in which its peer's budget must have room.
	RequestBytes int
	RequestTime  time.Duration
}

// Stats are callbacks that count events. They are called concurrently.
type Stats struct {
	Refused  func() // a connection was closed before it authenticated
	Rejected func() // a known peer has too many streams or connections
	Stalled  func() // a connection was closed because its peer does not read
	Closed   func() // a connection was closed because its peer sends or holds too much
}

// Config configures a Conns. All fields are required.
type Config struct {
	Limits Limits
	Stats  Stats
	Log    *slog.Logger
	Now    func() time.Time
	// Authenticate is set if the server's peers authenticate. Authenticated must then
	// be called for each connection in time; the connection counts for its address
	// before and for its identity afterwards.
	Authenticate bool
}

// NewConns returns the Conns of a server.
func NewConns(cfg Config) *Conns {
	return &Conns{
		cfg: cfg, addresses: make(map[netip.Prefix]int),
		peers: make(map[peerKey]*peerState),
		total: usage{names: holdings{chunks: make(map[*xdswire.NameChunk]int)}},
	}
}

// Listen returns a listener under the limits of c.
func (c *Conns) Listen(l net.Listener) net.Listener { return boundedListener{l, c} }

// Stop closes the pending connections and each new one, because gRPC waits for handshakes
// before it stops.
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

// Authenticated sets the owner of the connection of a call. The error has the code
// ResourceExhausted if the identity has too many connections.
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

// admit makes a Conn. It returns nil if the address has too many connections or the
// server is stopping.
func (c *Conns) admit(raw net.Conn) *Conn {
	// A peer that acknowledges no byte for this time is gone or keeps its window
	// closed.
	if err := setUserTimeout(raw, c.cfg.Limits.Write); err != nil {
		c.cfg.Log.Debug("no limit for unacknowledged bytes", "error", err)
	}
	n := &Conn{
		Conn: raw, conns: c, address: AddressOf(raw.RemoteAddr()), gone: make(chan struct{}), known: make(chan struct{}),
		inbounds: make(map[uint32]*inboundStream), controls: rate.NewLimiter(controlRate, controlBurst),
	}
	n.peer = peerKey{address: n.address}
	n.writeTimer = time.AfterFunc(c.cfg.Limits.Write, n.Stall)
	n.writeTimer.Stop()
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
	c.peerState(n.peer).open[n] = struct{}{}
	n.frames, n.in = &frameWriter{conn: n, out: (*rawConn)(n)}, newFrameReader(n, (*recordConn)(n))
	n.out.Store(n.frames)
	if c.cfg.Authenticate {
		n.authTimer = time.AfterFunc(c.cfg.Limits.FirstRequest, func() {
			c.cfg.Stats.Refused()
			n.close()
		})
	}
	c.mu.Unlock()
	if oldest != nil {
		// Handshakes are short, so the oldest is the one most likely to be stuck.
		c.cfg.Stats.Refused()
		oldest.close()
	}
	return n
}

// AddressOf returns the address, or the /64 of IPv6, that stands for a peer's host.
func AddressOf(a net.Addr) netip.Prefix {
	return serving.SourceOf(a.String())
}

// own makes a connection count for its identity. The first identity stays the owner, even
// if later calls have others.
func (c *Conn) own(id mesh.Identity) error {
	s := c.conns
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed || c.owner != nil {
		return nil
	}
	k := peerKey{identity: id}
	h := s.peerState(k)
	if h.conns >= s.cfg.Limits.IdentityConns {
		s.cfg.Stats.Rejected()
		return status.Errorf(codes.ResourceExhausted, "%s has %d connections, no more are accepted", id, h.conns)
	}
	h.conns++
	c.leavePending()
	c.owner = &id
	close(c.known)
	s.leaveAddress(c.address)
	before := s.peerState(c.peer)
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

// OpenStream counts a stream until it is closed: for the identity, or for the address of
// the connection if peers do not authenticate. A nil Conn returns a nil Stream.
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
	h := s.peerState(k)
	if h.streams >= most {
		s.cfg.Stats.Rejected()
		return nil, status.Errorf(codes.ResourceExhausted, "%s has %d streams, no more are accepted", k, h.streams)
	}
	h.streams++
	return &Stream{conn: c, peer: k}, nil
}

// leave removes a connection from its peer. The lock must be held.
func (c *Conns) leave(n *Conn) {
	delete(c.peerState(n.peer).open, n)
	c.tidy(n.peer)
}

func (c *Conns) leaveAddress(a netip.Prefix) {
	if c.addresses[a]--; c.addresses[a] == 0 {
		delete(c.addresses, a)
	}
}
