package xds

import (
	"maps"

	"github.com/meshctl/meshctl/internal/server/xdsgen/plugins"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// neverRemoved reports whether the removal of resources of the type is kept from the
// proxy. Without its Secret a gateway keeps the certificate that it has, or keeps
// waiting. Without its configuration a filter would answer every request with an
// error, even on connections of a listener that drains because it had the filter;
// Envoy drops by itself what no listener refers to.
func neverRemoved(i int) bool { return i == sds || i == ecds }

// demand is the request of a stream for a type. The hub makes views of a type for a
// stream only on demand: a gateway needs no name table, a stream for one type no
// other type, and the secrets for a stream depend on their names and on the
// caller's proved identity.
type demand struct {
	asked   bool
	names   *xdswire.NameSet  // of the secrets
	secrets units.Secrets     // the named secrets that the stream may have
	pull    plugins.PullRight // of the extensions
	hosts   hostMode          // of route configurations and virtual hosts
}

type demandKey struct {
	sub *subscriber
	typ int
}

// demandBasis is the state that determines a stream's demands.
type demandBasis struct {
	by      *assignment // a new one whenever its reasons may have changed
	watched [numTypes]bool
	secrets *xdswire.NameSet
}

// demand sends the stream's demands to the hub if they have changed. Each time it
// decides again which secrets the caller may have.
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
		return // until the first request is handled, the demand of expect is valid
	}
	s.demandedBy = basis
	demands := make(map[demandKey]demand)
	for i, watched := range basis.watched {
		d := demand{asked: watched}
		if i == sds && watched && s.hub.cfg.Generator.Secrets != nil {
			d.names = s.types[sds].want.Names
			mayReadKeys := s.hub.cfg.MayReadKeys != nil && units.AskForKeys(d.names) && s.hub.cfg.MayReadKeys(snap, s.sub.caller, s.sub.node) == nil
			d.secrets = s.hub.cfg.Generator.Secrets(snap, s.sub.caller, mayReadKeys, d.names)
		}
		if i == ecds && watched && a.pulledPlugins() != nil {
			d.pull = s.pullRight(snap)
		}
		if i == rds || i == vhds {
			d.hosts = s.hosts.mode
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
		maps.Copy(m.demands, demands) // only the newest demand counts
	})
}

// expect demands the type of the first request before the hub knows the stream.
func (s *session) expect(typeURL string) {
	if i := typeIndex(typeURL); i >= 0 && i != sds {
		s.demanded[i].asked, s.sub.demands[i].asked = true, true
	}
}

// takeDemands stores the demands and returns the streams that have new ones.
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

// answers reports whether the views of a type belong to the stream's present demand.
// Otherwise nothing may be sent: a view with private keys or credentials may already show newer
// ones than the stream may have, and route configurations may lack their virtual hosts.
func (s *session) answers(i int, t typeViews) bool {
	return t.served && (i != sds && i != ecds && i != rds && i != vhds || t.demand == s.demanded[i])
}
