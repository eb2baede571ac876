package xds

import (
	"cmp"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Proxy is one connected stream, as status pages show it.
type Proxy struct {
	ID        string // <name>.<namespace>-<number of the stream>
	Node      xdsgen.Node
	Caller    mesh.Caller // zero on a server without authentication
	Variant   xdswire.Variant
	Connected time.Time
	// Types holds the types that the proxy asked for, by short name (CDS …).
	Types map[string]TypeStatus
}

// TypeStatus is how far a proxy is with one type.
type TypeStatus struct {
	Sent  string // version of the last response; empty when there was none
	Acked string // version that the proxy accepted last
	NACK  *NACK  // what it refused since; nil when its last answer was an ACK
}

// NACK is a response that a proxy refused.
type NACK struct {
	Version string
	Message string
	At      time.Time
}

// typeStatus is the part of a stream's state that others may read, under the
// subscriber's lock.
type typeStatus struct {
	watched       bool
	isSent, acked bool
	sentVersion   uint64
	ackedVersion  uint64
	nack          *NACK
}

// setStatus changes the status of one type.
func (s *subscriber) setStatus(i int, set func(*typeStatus)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set(&s.status[i])
}

// Proxies lists the connected streams, sorted by id.
func (h *Hub) Proxies() []Proxy {
	h.mu.Lock()
	subs := make([]*subscriber, 0, len(h.proxies))
	for s := range h.proxies {
		subs = append(subs, s)
	}
	h.mu.Unlock()
	out := make([]Proxy, len(subs))
	for i, s := range subs {
		out[i] = s.proxy()
	}
	slices.SortFunc(out, func(a, b Proxy) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (s *subscriber) proxy() Proxy {
	p := Proxy{
		ID: s.id, Node: s.node, Caller: s.caller, Variant: s.variant, Connected: s.connected,
		Types: make(map[string]TypeStatus),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, st := range s.status {
		if !st.watched {
			continue
		}
		t := TypeStatus{NACK: st.nack}
		if st.isSent {
			t.Sent = versionInfo(st.sentVersion)
		}
		if st.acked {
			t.Acked = versionInfo(st.ackedVersion)
		}
		p.Types[xdswire.ShortType(xdswire.PushOrder[i])] = t
	}
	return p
}
