package admission

import (
	"container/list"
	"time"
)

// account counts what the server keeps for a peer, or for all peers.
type account struct {
	names    holdings
	requests int // bytes of requests that no handler is done with
	early    int // of these, the bytes of connections that have not started
}

// held returns the bytes that the budgets count.
func (a *account) held() int { return a.names.bytes + a.requests }

// add counts bytes of a connection's requests. A negative number counts less.
func (a *account) add(c *Conn, bytes int) {
	a.requests += bytes
	if !c.started {
		a.early += bytes
	}
}

// fits reports whether a connection's request of so many bytes fits the budget. One
// request always does, so that names never keep all requests out.
func (a *account) fits(c *Conn, bytes, budget int) bool {
	if a.requests == 0 {
		return true
	}
	if !c.started && a.early > 0 && a.early+bytes > budget/2 {
		return false
	}
	return a.held()+bytes <= budget
}

// holder is a peer, what it has open and what the server keeps for it.
type holder struct {
	account
	conns, streams int // as limited
	// open are the connections that count for the peer.
	open    map[*Conn]struct{}
	queues  [classes]queue
	queued  int                // bytes of answers, see Queue
	crowded map[*Stream]func() // to be called when queued is within the budget
}

// Requests that wait for room are in one of two classes. Those of connections that
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

// queue holds the waiting requests of one peer and class, in order. turn is its
// place among the queues of the class, nil when it is empty.
type queue struct {
	reservations list.List // of *reservation
	turn         *list.Element
}

// reservation is the next request of a connection, while it waits for room.
type reservation struct {
	conn    *Conn
	bytes   int
	granted chan struct{}

	holder *holder
	class  int
	place  *list.Element // in its queue, nil when it does not wait
}

// enqueue adds a reservation to a queue of its peer. The lock must be held.
func (c *Conns) enqueue(r *reservation, h *holder) {
	r.holder, r.class = h, r.conn.class()
	q := &h.queues[r.class]
	r.place = q.reservations.PushBack(r)
	if q.turn == nil {
		q.turn = c.turns[r.class].PushBack(h)
	}
	c.grant()
}

// dequeue removes a reservation that waits. The lock must be held.
func (c *Conns) dequeue(r *reservation) {
	q := &r.holder.queues[r.class]
	q.reservations.Remove(r.place)
	r.place = nil
	if q.reservations.Len() == 0 {
		c.turns[r.class].Remove(q.turn)
		q.turn = nil
	}
}

// withdraw removes the reservation of a connection, if it waits, and reports
// whether it did. The lock must be held.
func (c *Conns) withdraw(r *reservation) bool {
	if r == nil || r.place == nil {
		return false
	}
	c.dequeue(r)
	c.grant()
	return true
}

// Start records that a stream of the connection has its turn (see Turns). From now
// on the connection's requests come before those of connections that still wait for
// a turn. These may hold no more than half of each budget: otherwise they could fill
// it, and the streams that have the turns would wait for them. A nil Conn is
// ignored.
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
	h := s.holder(c.peer)
	waits := s.withdraw(c.next)
	h.early -= c.requests
	s.total.early -= c.requests
	c.started = true
	if waits {
		s.enqueue(c.next, h)
	}
	s.grant()
}

// holder finds or makes the holder of a peer. The lock must be held.
func (c *Conns) holder(k peerKey) *holder {
	h := c.holders[k]
	if h == nil {
		h = &holder{open: make(map[*Conn]struct{})}
		c.holders[k] = h
	}
	return h
}

// tidy forgets a peer that has nothing open. The lock must be held.
func (c *Conns) tidy(k peerKey) {
	if h := c.holders[k]; h != nil && h.conns == 0 && h.streams == 0 && len(h.open) == 0 {
		delete(c.holders, k)
	}
}

// unproved is how many bytes of a request count for an address before its
// connection proves an identity. Larger requests wait for that: certificates are
// asked for with small ones, and streams are authenticated before any request.
const unproved = 128 << 10

// stall is how long requests wait for the budget of all peers while it lets none
// in. Then the largest connection is closed: what it holds does not move.
const stall = 2 * time.Second

// reserve waits until the budgets of the connection's peer and of all peers have
// room for so many bytes of requests, and counts them. It gives up when the
// request's stream is done, with the connection, or after Limits.RequestTime.
func (c *Conn) reserve(bytes int, done <-chan struct{}) (held bool) {
	s := c.conns
	s.mu.Lock()
	proves := s.cfg.Authenticate && c.owner == nil && bytes > unproved
	h := s.holder(c.peer)
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
	s.enqueue(r, s.holder(c.peer))
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
	case <-r.granted: // at the same moment
		return true
	default: // the connection was closed
		return false
	}
}

// fits reports whether a connection's request of so many bytes fits both budgets.
// The lock must be held.
func (c *Conns) fits(n *Conn, h *holder, bytes int) bool {
	return c.total.fits(n, bytes, c.cfg.Limits.TotalBytes) && h.fits(n, bytes, c.cfg.Limits.PeerBytes)
}

// grant lets in the waiting requests that fit: the requests of connections that have
// started first, and of each class one peer's after the other's. The lock must be
// held.
func (c *Conns) grant() {
	full := c.full
	c.full = false
	for class := range classes {
		turns := &c.turns[class]
		for left := turns.Len(); left > 0; left-- {
			e := turns.Front()
			h, _ := e.Value.(*holder)
			r, _ := h.queues[class].reservations.Front().Value.(*reservation)
			if !c.total.fits(r.conn, r.bytes, c.cfg.Limits.TotalBytes) {
				if c.full = true; !full {
					c.granted = c.cfg.Now()
				}
				return
			}
			turns.MoveToBack(e)
			if class == early && h.queues[started].turn != nil || !h.fits(r.conn, r.bytes, c.cfg.Limits.PeerBytes) {
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

// hold counts bytes of requests, of a negative number less, unless the connection
// is closed. The lock must be held.
func (c *Conn) hold(bytes int) {
	s := c.conns
	if c.closed || bytes == 0 {
		return
	}
	c.requests += bytes
	s.holder(c.peer).add(c, bytes)
	s.total.add(c, bytes)
	if bytes < 0 {
		s.grant()
	}
}

// release counts bytes of requests less.
func (c *Conn) release(bytes int) {
	s := c.conns
	s.mu.Lock()
	defer s.mu.Unlock()
	c.hold(-bytes)
}

// endStall closes the largest connection of the largest holder when the budget of
// all peers has let no request in for a while.
func (c *Conns) endStall() {
	c.mu.Lock()
	now := c.cfg.Now()
	stalled := c.full && now.Sub(c.granted) >= stall
	if stalled {
		c.granted = now
	}
	c.mu.Unlock()
	if stalled {
		c.evictLargest()
	}
}

// relieve closes the largest connection of the largest holder when all peers
// together hold too much.
func (c *Conns) relieve() {
	c.mu.Lock()
	over := c.total.held() > c.cfg.Limits.TotalBytes
	c.mu.Unlock()
	if over {
		c.evictLargest()
	}
}

func (c *Conns) evictLargest() {
	if n, _ := c.Largest(); n != nil {
		n.Evict("all peers together hold too much")
	}
}

// Queue counts bytes of answers that wait to be written to the peer, or with a
// negative number such that were written. What several peers are given does not
// count. A nil Conn counts nothing.
func (c *Conn) Queue(bytes int) {
	if c == nil {
		return
	}
	s := c.conns
	s.mu.Lock()
	defer s.mu.Unlock()
	c.queue(bytes)
}

// queue is Queue with the lock held.
func (c *Conn) queue(bytes int) {
	if c.closed {
		return
	}
	h := c.conns.holder(c.peer)
	c.queued += bytes
	h.queued += bytes
	c.conns.announce(h)
}

// announce calls those who wait for room. The lock must be held.
func (c *Conns) announce(h *holder) {
	if h.queued > c.cfg.Limits.PeerBytes {
		return
	}
	for _, call := range h.crowded {
		call()
	}
	clear(h.crowded)
}

// HasRoom reports whether the answers that the peer has still to read are within
// its budget. If not, call is called once they are; it must not block.
func (s *Stream) HasRoom(call func()) bool {
	if s == nil {
		return true
	}
	c := s.conn.conns
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.holder(s.peer)
	if s.closed || h.queued <= c.cfg.Limits.PeerBytes {
		return true
	}
	if h.crowded == nil {
		h.crowded = make(map[*Stream]func())
	}
	h.crowded[s] = call
	return false
}

// Largest is the largest connection of the peer that holds most, nil when none
// holds anything, and how many bytes the peer holds.
func (c *Conns) Largest() (largest *Conn, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var most *holder
	for _, h := range c.holders {
		if n := h.held() + h.queued; n > bytes {
			most, bytes = h, n
		}
	}
	if most == nil {
		return nil, 0
	}
	size := 0
	for conn := range most.open {
		if n := conn.requests + conn.names.bytes + conn.queued; n > size {
			largest, size = conn, n
		}
	}
	return largest, bytes
}

// Evict closes a connection to make room for others.
func (c *Conn) Evict(why string) {
	c.conns.mu.Lock()
	peer, size := c.peer, c.requests+c.names.bytes+c.queued
	c.conns.mu.Unlock()
	c.conns.cfg.Log.Warn("a connection is closed to free memory", "peer", peer.String(), "address", c.Conn.RemoteAddr(), "bytes", size, "reason", why)
	c.end(why)
}

// end sends a GOAWAY with ENHANCE_YOUR_CALM and closes the connection.
func (c *Conn) end(why string) {
	c.goAway(why)
	c.close()
}
