package xds

import (
	"maps"

	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// neverRemoved says that a resource that is gone is not told of: a gateway
// whose Secret was deleted goes on with what it has, and one that waits for a
// secret goes on waiting. A filter whose configuration is said to be gone
// answers each request with an error, also on connections of a listener that
// drains because it had the filter; Envoy gives up by itself what no listener
// refers to.
func neverRemoved(i int) bool { return i == sds || i == ecds }

// demand is what a stream asks for of a type. The views of a type are made for a
// stream only once it asks: a gateway wants no name table, a stream for one type
// no other, and which secrets a stream is given depends on what it asks for and
// on who it was proved to be.
type demand struct {
	asked bool
	// secrets is what the stream may have of the secrets that it asks for,
	// which names are.
	secrets xdsgen.Secrets
	names   *xdswire.NameSet
}

// demandKey is who demands what type.
type demandKey struct {
	sub *subscriber
	typ int
}

// demandBasis is what a stream's demands follow from.
type demandBasis struct {
	by      *assignment // new whenever what decides may have changed
	watched [numTypes]bool
	secrets *xdswire.NameSet
}

// demand tells the hub what the stream asks for, when that differs from what
// it was told before. Whether secrets are given is decided anew each time, by
// who the caller was proved to be.
func (s *session) demand(a *assignment) {
	basis := demandBasis{by: a, secrets: s.types[sds].want.Names}
	for i := range s.types {
		basis.watched[i] = s.types[i].watched
	}
	snap := s.hub.current.Load()
	if basis == s.demandedBy || snap == nil {
		return
	}
	if s.demandedBy.by == nil && basis.watched == [numTypes]bool{} {
		return // until the first request is handled, what is expected holds
	}
	s.demandedBy = basis
	demands := make(map[demandKey]demand)
	for i, watched := range basis.watched {
		d := demand{asked: watched}
		if i == sds && watched && s.hub.cfg.Generation.Secrets != nil {
			d.names = s.types[sds].want.Names
			mayReadKeys := s.hub.cfg.MayReadKeys != nil && xdsgen.AskForKeys(d.names) && s.hub.cfg.MayReadKeys(snap, s.sub.caller, s.sub.node) == nil
			d.secrets = s.hub.cfg.Generation.Secrets(snap, s.sub.caller, mayReadKeys, d.names)
		}
		if s.demanded[i] != d {
			s.demanded[i] = d
			demands[demandKey{s.sub, i}] = d
		}
	}
	if len(demands) == 0 {
		return
	}
	s.hub.post(func(m *mail) {
		if m.demands == nil {
			m.demands = make(map[demandKey]demand)
		}
		maps.Copy(m.demands, demands) // only the newest counts
	})
}

// expect is demand for the type that the first request is for, before the hub
// knows the stream.
func (s *session) expect(typeURL string) {
	if i := typeIndex(typeURL); i >= 0 && i != sds {
		s.demanded[i].asked, s.sub.demands[i].asked = true, true
	}
}

// heed notes what streams ask for, and returns those streams.
func (h *Hub) takeDemands(demands map[demandKey]demand) []*subscriber {
	var of []*subscriber
	for k, d := range demands {
		if _, ok := h.subs.all[k.sub]; ok {
			k.sub.demands[k.typ] = d
			of = append(of, k.sub)
		}
	}
	return of
}

// answers reports whether the views of a type are those of what the stream
// asks for and may have now. Until they are nothing is sent: a view with keys
// may show newer ones than the stream had a right to.
func (s *session) answers(i int, t typeViews) bool {
	return t.served && (i != sds || t.demand == s.demanded[sds])
}
