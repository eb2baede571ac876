package xds

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// subscription returns the subscription for a set of names, or for the list of a short request.
func (s *session) subscription(set *xdswire.NameSet, list []string) xdswire.Subscription {
	if set == nil {
		set = s.hub.names.Of(list)
	}
	if !set.Has(xdswire.Wildcard) {
		return xdswire.Subscription{Names: set}
	}
	return xdswire.Subscription{Wildcard: true, Names: s.hub.names.Without(set, []string{xdswire.Wildcard})}
}

// allowed returns an error if a subscription is too large.
func (s *session) allowed(i int, want xdswire.Subscription) error {
	l := s.hub.cfg.Limits
	if want.Names.Len() <= l.Names && want.Names.Bytes() <= l.NameBytes {
		return nil
	}
	s.hub.cfg.Metrics.rejected.Inc()
	return status.Errorf(codes.ResourceExhausted, "%s subscription has %d names of %d bytes, at most %d names of %d bytes are accepted",
		typeName(i), want.Names.Len(), want.Names.Bytes(), l.Names, l.NameBytes)
}

// holdNames charges the peer for the subscribed names.
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

// watch starts or restarts a type: everything is sent.
func (s *session) watch(i int, want xdswire.Subscription) {
	t := &s.types[i]
	s.endQuarantine(i)
	*t = typeState{watched: true, want: want, due: true, all: true, force: t.force, named: t.named}
	s.sub.setStatus(i, func(st *typeStatus) { st.watched = true })
}

// unwatch ends the subscription to a type.
func (s *session) unwatch(i int) {
	s.endQuarantine(i)
	s.types[i] = typeState{named: s.types[i].named}
	s.sub.setStatus(i, func(st *typeStatus) { *st = typeStatus{} })
}

// afterClusters makes the answer to a request for clusters be followed by all watched
// endpoints: requested clusters wait for them, and the proxy does not request names
// again that it holds.
func (s *session) afterClusters(i int) {
	if i == cds && s.types[eds].watched {
		s.allEndpoints()
	}
}

// allEndpoints makes all endpoints due, or those that will be watched.
func (s *session) allEndpoints() {
	e := &s.types[eds]
	e.all = true
	e.due = e.due || e.want.Wildcard || e.want.Names.Len() > 0
}
