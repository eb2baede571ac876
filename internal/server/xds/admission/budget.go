package admission

import (
	"container/list"
	"time"
)

// usage counts the bytes that the server keeps for a peer, or for all peers.
type usage struct {
	names    holdings
	requests int // bytes of requests that no handler has finished
	early    int // the part of requests from connections that have not started
}

// held returns the bytes that the budgets count.
func (a *usage) held() int { return a.names.bytes + a.requests }

// add counts bytes of a connection's requests. A negative number counts less.
func (a *usage) add(c *Conn, bytes int) {
	a.requests += bytes
	if !c.started {
		a.early += bytes
	}
}

// fits reports whether a request of a connection fits the budget, and what requests may
// take of it. A single request always fits, so that names never keep all requests out.
func (a *usage) fits(c *Conn, bytes, requests, budget int) bool {
	if a.requests == 0 {
		return true
	}
	if !c.started && a.early > 0 && a.early+bytes > requests/2 {
		return false
	}
	return a.requests+bytes <= requests && a.held()+bytes <= budget
}

// peerState holds a peer's open connections and streams, and counts its memory.
type peerState struct {
	usage
	conns, streams int // as limited
	// open are the connections that count for the peer.
	open    map[*Conn]struct{}
	queues  [classes]requestQueue
	queued  int                // bytes of answers, see Queue
	crowded map[*Stream]func() // called when queued is within the budget
}

// Requests that wait for room are in one of two classes. Requests of connections that
// have started come first.
const (
	started = iota
	early
	classes
)

func (c *Conn) class() int {
	if c.started {
		return started
	}
	return early
}

// requestQueue holds the waiting requests of one peer and class, in order. turn is its place
// among the queues of the class, or nil if it is empty.
type requestQueue struct {
	reservations list.List // of *reservation
	turn         *list.Element
}

// reservation is the next request of a connection while it waits for room.
type reservation struct {
	conn    *Conn
	bytes   int
	granted chan struct{}

	peer  *peerState
	class int
	place *list.Element // in its queue, nil if it does not wait
}

// enqueue adds a reservation to a queue of its peer. The lock must be held.
func (c *Conns) enqueue(r *reservation, h *peerState) {
	r.peer, r.class = h, r.conn.class()
	q := &h.queues[r.class]
	r.place = q.reservations.PushBack(r)
	if q.turn == nil {
		q.turn = c.turns[r.class].PushBack(h)
	}
	c.grant()
}

// dequeue removes a waiting reservation. The lock must be held.
func (c *Conns) dequeue(r *reservation) {
	q := &r.peer.queues[r.class]
	q.reservations.Remove(r.place)
	r.place = nil
	if q.reservations.Len() == 0 {
		c.turns[r.class].Remove(q.turn)
		q.turn = nil
	}
}

// withdraw removes the reservation of a connection and reports whether it was waiting.
// The lock must be held.
func (c *Conns) withdraw(r *reservation) bool {
	if r == nil || r.place == nil {
		return false
	}
	c.dequeue(r)
	c.grant()
	return true
}

// Start records that a stream of the connection has its turn (see Turns). From now on
// the connection's requests come before requests of connections that wait for a turn.
// The latter may hold at most half of what requests may take; otherwise they could fill it,
// and streams that have their turn would wait for them. Start may be called on a nil Conn.
func (c *Conn) Start() {
	if c == nil {
		return
	}
	s := c.conns
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.started || c.closed {
		return
	}
	h := s.peerState(c.peer)
	waits := s.withdraw(c.next)
	h.early -= c.requests
	s.total.early -= c.requests
	c.started = true
	if waits {
		s.enqueue(c.next, h)
	}
	s.grant()
}

// peerState returns the state of a peer and makes it if needed. The lock must be held.
func (c *Conns) peerState(k peerKey) *peerState {
	h := c.peers[k]
	if h == nil {
		h = &peerState{open: make(map[*Conn]struct{})}
		c.peers[k] = h
	}
	return h
}

// tidy removes the state of a peer without connections and streams. The lock must be
// held.
func (c *Conns) tidy(k peerKey) {
	if h := c.peers[k]; h != nil && h.conns == 0 && h.streams == 0 && len(h.open) == 0 {
		delete(c.peers, k)
	}
}

// maxUnauthenticated is the largest size of a request that counts for an address before its
// connection is authenticated. Larger requests wait for authentication: certificate
// requests are small, and streams are authenticated before their first request.
const maxUnauthenticated = 128 << 10

// reserve waits until the budgets of the connection's peer and of all peers have room
// for a request, and counts it. It gives up when done is closed, when the connection is
// closed, or after Limits.RequestTime.
func (c *Conn) reserve(bytes int, done <-chan struct{}) (held bool) {
	s := c.conns
	s.mu.Lock()
	proves := s.cfg.Authenticate && c.owner == nil && bytes > maxUnauthenticated
	h := s.peerState(c.peer)
	waits := s.full || h.queues[started].turn != nil || !c.started && h.queues[early].turn != nil
	if !proves && !waits && s.fits(c, h, bytes) {
		c.hold(bytes)
		s.mu.Unlock()
		return true
	}
	s.mu.Unlock()

	patience := time.NewTimer(s.cfg.Limits.RequestTime)
	defer patience.Stop()
	tick := time.NewTicker(stall)
	defer tick.Stop()
	wait := func(until <-chan struct{}) bool {
		for {
			select {
			case <-until:
				return true
			case <-tick.C:
				s.endStall()
				continue
			case <-done:
			case <-c.gone:
			case <-patience.C:
			}
			return false
		}
	}
	if proves && !wait(c.known) {
		return false
	}
	r := &reservation{conn: c, bytes: bytes, granted: make(chan struct{})}
	s.mu.Lock()
	if c.closed {
		s.mu.Unlock()
		return false
	}
	c.next = r
	s.enqueue(r, s.peerState(c.peer))
	s.mu.Unlock()
	if wait(r.granted) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.withdraw(r) {
		return false
	}
	select {
	case <-r.granted: // granted at the same moment
		return true
	default: // the connection was closed
		return false
	}
}

// fits reports whether a request of a connection fits both budgets. The lock must be
// held.
func (c *Conns) fits(n *Conn, h *peerState, bytes int) bool {
	return c.fitsTotal(n, bytes) && c.fitsPeer(n, h, bytes)
}

// fitsTotal reports whether a request fits the budget of all peers. Requests may take a
// quarter of it: the rest is for names, which stay.
func (c *Conns) fitsTotal(n *Conn, bytes int) bool {
	return c.total.fits(n, bytes, c.cfg.Limits.TotalBytes/4, c.cfg.Limits.TotalBytes)
}

// fitsPeer reports whether a request fits the budget of its peer.
func (c *Conns) fitsPeer(n *Conn, h *peerState, bytes int) bool {
	return h.fits(n, bytes, c.cfg.Limits.PeerBytes, c.cfg.Limits.PeerBytes)
}

// grant admits the waiting requests that fit. Requests of connections that have started
// come first; within a class, peers take turns. The lock must be held.
func (c *Conns) grant() {
	full := c.full
	c.full = false
	for class := range classes {
		turns := &c.turns[class]
		for left := turns.Len(); left > 0; left-- {
			e := turns.Front()
			h, _ := e.Value.(*peerState)
			r, _ := h.queues[class].reservations.Front().Value.(*reservation)
			if !c.fitsTotal(r.conn, r.bytes) {
				if c.full = true; !full {
					c.granted = c.cfg.Now()
				}
				return
			}
			turns.MoveToBack(e)
			if class == early && h.queues[started].turn != nil || !c.fitsPeer(r.conn, h, r.bytes) {
				continue
			}
			c.dequeue(r)
			r.conn.hold(r.bytes)
			c.granted = c.cfg.Now()
			close(r.granted)
			left = turns.Len() + 1
		}
	}
}

// hold adds to the bytes of requests, unless the connection is closed. The lock must be
// held.
func (c *Conn) hold(bytes int) {
	s := c.conns
	if c.closed || bytes == 0 {
		return
	}
	c.requests += bytes
	s.peerState(c.peer).add(c, bytes)
	s.total.add(c, bytes)
	if bytes < 0 {
		s.grant()
	}
}

// release subtracts from the bytes of requests.
func (c *Conn) release(bytes int) {
	s := c.conns
	s.mu.Lock()
	defer s.mu.Unlock()
	c.hold(-bytes)
}
