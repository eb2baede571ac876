package admission

import (
	"time"
)

// stall is the time after which the largest connection is closed if the budget of all
// peers admits no waiting request: the memory that it holds does not move. If many peers
// send large requests over a slow network, it moves, as bytes of admitted requests arrive:
// then the waiting ones wait.
const stall = 2 * time.Second

// moves is the part of the budget that must arrive in the time of a stall.
const moves = 1. / 64

// endStall closes the largest connection of the largest peer if the budget of all peers
// has admitted no request for a while.
func (c *Conns) endStall() {
	c.mu.Lock()
	now := c.cfg.Now()
	stalled := c.full && now.Sub(c.granted) >= stall
	if stalled {
		arrived := c.arrived.Load()
		stalled = float64(arrived-c.checked) < moves*float64(c.cfg.Limits.TotalBytes)
		c.granted, c.checked = now, arrived
	}
	c.mu.Unlock()
	if stalled {
		c.evictLargest()
	}
}

// relieve closes the largest connection of the largest peer if all peers together hold
// too much.
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

// Largest returns the largest connection of the peer that holds most, and the bytes
// that the peer holds. It returns nil if no peer holds anything.
func (c *Conns) Largest() (largest *Conn, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var most *peerState
	for _, h := range c.peers {
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

// Evict closes a connection to free memory.
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
