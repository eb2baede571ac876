package admission

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// nameOverhead is the number of bytes that a name takes besides its letters: its places in
// lists, and an empty answer if no resource has the name.
const nameOverhead = 256

// holdings are the name sets that streams hold. A set that several streams share counts
// once.
type holdings struct {
	sets  map[*xdswire.NameSet]int // number of holders
	bytes int
	// chunks holds the number of sets with a chunk, so that a chunk counts once. If it
	// is nil, sets count whole, which takes less memory.
	chunks map[*xdswire.NameChunk]int
}

func sizeOf(names interface {
	Len() int
	Bytes() int
},
) int {
	return names.Bytes() + nameOverhead*names.Len()
}

func (h *holdings) add(s *xdswire.NameSet) {
	if h.sets == nil {
		h.sets = make(map[*xdswire.NameSet]int)
	}
	if h.sets[s]++; h.sets[s] > 1 {
		return
	}
	if h.chunks == nil {
		h.bytes += sizeOf(s)
		return
	}
	for _, c := range s.Chunks() {
		if h.chunks[c]++; h.chunks[c] == 1 {
			h.bytes += sizeOf(c)
		}
	}
}

func (h *holdings) remove(s *xdswire.NameSet) {
	if h.sets[s]--; h.sets[s] > 0 {
		return
	}
	delete(h.sets, s)
	if h.chunks == nil {
		h.bytes -= sizeOf(s)
		return
	}
	for _, c := range s.Chunks() {
		if h.chunks[c]--; h.chunks[c] == 0 {
			delete(h.chunks, c)
			h.bytes -= sizeOf(c)
		}
	}
}

// Stream counts for its peer until it is closed. The methods of a nil Stream do nothing.
type Stream struct {
	conn *Conn
	peer peerKey

	// Guarded by the lock of conns; only one goroutine at a time changes them.
	closed bool
	names  []*xdswire.NameSet
}

// Hold replaces the name sets that the stream holds. If the names of the peer are too large,
// it returns an error with code ResourceExhausted, and the stream must end. Only one
// goroutine at a time may call Hold. It does not keep the list.
func (s *Stream) Hold(names []*xdswire.NameSet) error {
	if s == nil {
		return nil
	}
	c := s.conn.conns
	defer c.relieve()
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.closed {
		return nil
	}
	before := s.names
	s.names = nil
	h := c.peerState(s.peer)
	for _, n := range names {
		if n.Len() > 0 {
			s.names = append(s.names, n)
			s.conn.names.add(n)
			h.names.add(n)
			c.total.names.add(n)
		}
	}
	s.drop(before)
	if l := c.cfg.Limits.PeerBytes; h.names.bytes > l {
		c.cfg.Stats.Rejected()
		return status.Errorf(codes.ResourceExhausted, "the streams of %s subscribe to names that take %d bytes, at most %d are accepted", s.peer, h.names.bytes, l)
	}
	return nil
}

// drop removes sets from the connection and the peer. The lock must be held.
func (s *Stream) drop(names []*xdswire.NameSet) {
	c := s.conn.conns
	h := c.peerState(s.peer)
	for _, n := range names {
		s.conn.names.remove(n)
		h.names.remove(n)
		c.total.names.remove(n)
	}
	c.grant()
}

// Close ends the stream.
func (s *Stream) Close() {
	if s == nil {
		return
	}
	c := s.conn.conns
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.drop(s.names)
	h := c.peerState(s.peer)
	h.streams--
	delete(h.crowded, s)
	c.tidy(s.peer)
}
