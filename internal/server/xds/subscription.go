package xds

import (
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// subscription is what a list of names asks for.
func (s *session) subscription(names []string) xdswire.Subscription {
	if slices.Contains(names, xdswire.Wildcard) {
		names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == xdswire.Wildcard })
		return xdswire.Subscription{Wildcard: true, Names: s.hub.names.Of(names)}
	}
	return xdswire.Subscription{Names: s.hub.names.Of(names)}
}

// allowed checks the size of a subscription.
func (s *session) allowed(i int, want xdswire.Subscription) error {
	l := s.hub.cfg.Limits
	if want.Names.Len() <= l.Names && want.Names.Bytes() <= l.NameBytes {
		return nil
	}
	s.hub.cfg.Metrics.rejected.Inc()
	return status.Errorf(codes.ResourceExhausted, "%s subscription has %d names of %d bytes, at most %d names of %d bytes are accepted",
		xdswire.ShortType(xdswire.PushOrder[i]), want.Names.Len(), want.Names.Bytes(), l.Names, l.NameBytes)
}

// holdNames counts the names subscribed to for the peer.
func (s *session) holdNames() error {
	var names [numTypes]*xdswire.NameSet
	for i := range s.types {
		names[i] = s.types[i].want.Names
	}
	if names == s.counts {
		return nil
	}
	s.counts = names
	return s.counted.Hold(names[:])
}

// watch starts a type anew: everything is sent, whatever was before.
func (s *session) watch(i int, want xdswire.Subscription) {
	t := &s.types[i]
	s.endQuarantine(i)
	*t = typeState{watched: true, want: want, due: true, all: true, force: t.force, named: t.named}
	s.sub.setStatus(i, func(st *typeStatus) { st.watched = true })
}

// unwatch forgets a type.
func (s *session) unwatch(i int) {
	s.endQuarantine(i)
	s.types[i] = typeState{named: s.types[i].named}
	s.sub.setStatus(i, func(st *typeStatus) { *st = typeStatus{} })
}

// afterClusters sees to it that an answered request for clusters is followed
// by all endpoints that are watched: clusters that a proxy asks for anew wait
// for them, and a proxy does not ask again for names that it holds.
func (s *session) afterClusters(i int) {
	if i == cds && s.types[eds].watched {
		s.allEndpoints()
	}
}

// allEndpoints has all endpoints sent again that are watched, or will be.
func (s *session) allEndpoints() {
	e := &s.types[eds]
	e.all = true
	e.due = e.due || e.want.Wildcard || e.want.Names.Len() > 0
}
