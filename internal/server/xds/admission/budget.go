package admission

import (
	"cmp"
	"container/list"
	"time"
)

// holder is a peer with what it has open and what the server keeps for it.
type holder struct {
	conns, streams int // as limited
	// open are the connections that count for the peer.
	open     map[*Conn]struct{}
	names    holdings
	requests int                // bytes of requests that no handler is done with
	waiting  list.List          // of *reservation: the first requests of connections, in order
	going    list.List          // likewise, of connections that had one: these come before
	queued   int                // bytes of answers, see Queue
	crowded  map[*Stream]func() // to be called when queued is within the budget
}

// reservation is the next request of a connection, which does not fit yet.
type reservation struct {
	conn    *Conn
	bytes   int
	granted chan struct{}
	holder  *holder
	among   *list.List    // where it waits
	place   *list.Element // there, nil once it was granted
}

// queueUp has a reservation wait for a peer. A connection that had a request comes
// before those that wait for their first one: others wait for it to have all of its
// configuration. The lock must be held.
func (c *Conns) queueUp(r *reservation, h *holder) {
	r.holder, r.among = h, &h.waiting
	if r.conn.begun {
		r.among = &h.going
	}
	r.place = r.among.PushBack(r)
	c.grant(h)
}

// withdraw takes a reservation back. It reports whether it still waited. The lock
// must be held.
func (c *Conns) withdraw(r *reservation) bool {
	if r.place == nil {
		return false
	}
	r.among.Remove(r.place)
	r.place = nil
	c.grant(r.holder)
	return true
}

// held is how many bytes of the peer the budgets count.
func (h *holder) held() int { return h.names.bytes + h.requests }

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

// reserve waits until the connection's peer may hold so many bytes more of
// requests, and has them held. It gives up when the stream that they are of is
// done, with the connection, or after Limits.RequestTime.
func (c *Conn) reserve(bytes int, done <-chan struct{}) (held bool) {
	s := c.conns
	defer s.relieve()
	s.mu.Lock()
	proves := s.cfg.Authenticate && c.owner == nil && bytes > unproved
	if h := s.holder(c.peer); !proves && h.going.Len() == 0 && (c.begun || h.waiting.Len() == 0) && s.fits(h, bytes) {
		c.begun = true
		c.hold(bytes)
		s.mu.Unlock()
		return true
	}
	s.mu.Unlock()

	patience := time.NewTimer(s.cfg.Limits.RequestTime)
	defer patience.Stop()
	wait := func(until <-chan struct{}) bool {
		select {
		case <-until:
			return true
		case <-done:
		case <-c.gone:
		case <-patience.C:
		}
		return false
	}
	if proves && !wait(c.known) {
		return false
	}
	r := &reservation{conn: c, bytes: bytes, granted: make(chan struct{})}
	s.mu.Lock()
	c.next = r
	s.queueUp(r, s.holder(c.peer))
	s.mu.Unlock()
	if wait(r.granted) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.withdraw(r)
}

// fits reports whether so many bytes more of requests fit the budget of a peer.
// One request at a time does in any case, so that names never keep requests out.
func (c *Conns) fits(h *holder, bytes int) bool {
	return h.requests == 0 || h.held()+bytes <= c.cfg.Limits.PeerBytes
}

// grant lets the next requests of a peer in that fit. The lock must be held.
func (c *Conns) grant(h *holder) {
	for {
		e := cmp.Or(h.going.Front(), h.waiting.Front())
		if e == nil {
			return
		}
		r, _ := e.Value.(*reservation)
		if !c.fits(h, r.bytes) {
			return
		}
		r.among.Remove(e)
		r.place = nil
		r.conn.begun = true
		r.conn.hold(r.bytes)
		close(r.granted)
	}
}

// hold counts bytes of requests, of a negative number less, unless the connection
// is closed. The lock must be held.
func (c *Conn) hold(bytes int) {
	s := c.conns
	if c.closed {
		return
	}
	h := s.holder(c.peer)
	c.requests += bytes
	h.requests += bytes
	s.held += bytes
	if bytes < 0 {
		s.grant(h)
	}
}

// release counts bytes of requests less.
func (c *Conn) release(bytes int) {
	s := c.conns
	s.mu.Lock()
	defer s.mu.Unlock()
	c.hold(-bytes)
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

// relieve closes the largest connection of the largest holder when all peers
// together hold too much.
func (c *Conns) relieve() {
	c.mu.Lock()
	over := c.held > c.cfg.Limits.TotalBytes
	c.mu.Unlock()
	if !over {
		return
	}
	if n, _ := c.Largest(); n != nil {
		n.Evict("all peers together hold too much")
	}
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
