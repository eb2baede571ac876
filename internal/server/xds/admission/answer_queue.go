package admission

// Queue adds to the bytes of answers that wait to be written to the peer. Resources
// that several peers share do not count. Queue may be called on a nil Conn.
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
	h := c.conns.peerState(c.peer)
	c.queued += bytes
	h.queued += bytes
	c.conns.announce(h)
}

// announce calls the streams that wait for room. The lock must be held.
func (c *Conns) announce(h *peerState) {
	if h.queued > c.cfg.Limits.PeerBytes {
		return
	}
	for _, call := range h.crowded {
		call()
	}
	clear(h.crowded)
}

// HasRoom reports whether the peer's unread answers are within its budget. If they are
// not, call is called once they are; it must not block.
func (s *Stream) HasRoom(call func()) bool {
	if s == nil {
		return true
	}
	c := s.conn.conns
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.peerState(s.peer)
	if s.closed || h.queued <= c.cfg.Limits.PeerBytes {
		return true
	}
	if h.crowded == nil {
		h.crowded = make(map[*Stream]func())
	}
	h.crowded[s] = call
	return false
}
