package xds

import (
	"time"

	"github.com/meshctl/meshctl/internal/server/xdsgen/extensionconfig"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
)

// reportMoved reports to the hub that the proxy has an assignment with the old and the new
// versions of moved policies, so that the old ones can go. If the proxy refuses something in it,
// both stay in force.
func (s *session) reportMoved(a *assignment, now [numTypes]viewSet, ok [numTypes]bool) {
	if a == s.movedTo {
		return
	}
	for _, i := range []int{lds, ecds} {
		if t := &s.types[i]; ok[i] && (t.inflight || t.acked != now[i]) {
			return
		}
	}
	if extensions := a.types[ecds].views[0]; extensions == nil || !extensionconfig.RequestsPolicies(extensions.view, s.types[ecds].want.Has) {
		return // its filters wait for their configuration
	}
	s.movedTo = a
	s.hub.postMoved(s.sub, a)
}

// draining describes the listeners of a proxy that lack a filter of policies.
type draining struct {
	gained  bool      // the proxy may not have the filter yet
	drained time.Time // when connections that lack a filter have ended
}

// movedAndDrained reports whether old versions of moved policies can go, as the proxy has an
// assignment. If not, the hub asks again later.
func (h *Hub) movedAndDrained(sub *subscriber, has *assignment) bool {
	now := h.cfg.Now()
	if sub.gained {
		sub.gained, sub.drained = false, now.Add(min(sub.node.Drain, leftAge)+drainMargin)
	}
	wait := sub.drained.Sub(now)
	if sub.moving && wait > 0 {
		time.AfterFunc(wait, func() { h.postMoved(sub, has) })
	}
	return sub.moving && wait <= 0
}

func (h *Hub) postMoved(sub *subscriber, has *assignment) {
	h.post(func(m *mail) {
		if m.moved == nil {
			m.moved = make(map[*subscriber]*assignment)
		}
		m.moved[sub] = has
	})
}

// inForce returns what the proxy of a new stream has from an earlier stream, which may not have
// ended yet. It returns nothing if none is known.
func (h *Hub) inForce(sub *subscriber) inForce {
	var newest *subscriber
	for other := range h.subs.byPod[sub.pod] {
		if other.demands[ecds].asked && proxyKeyOf(other) == proxyKeyOf(sub) && (newest == nil || newest.connected.Before(other.connected)) {
			newest = other
		}
	}
	if newest != nil {
		return newest.inForce()
	}
	return h.left.views[proxyKeyOf(sub)].inForce
}

// inForce is what a proxy enforces of AuthorizationPolicies.
type inForce struct {
	extensions units.View
	draining
}

func (s *subscriber) inForce() inForce { return inForce{s.views[ecds].Shared, s.draining} }

// leftProxies holds what proxies enforce that left: they keep what they have until
// they return. The zero value is empty.
type leftProxies struct {
	views map[proxyKey]leftView
	order []leftProxy // the first one left first; it may have left again since
}

type leftView struct {
	inForce
	at time.Time
}

type leftProxy struct {
	proxyKey
	at time.Time
}

// proxyKey names a proxy and its identity.
type proxyKey struct{ cluster, proxy, identity string }

func proxyKeyOf(sub *subscriber) proxyKey {
	return proxyKey{string(sub.node.Cluster), sub.node.ID.ProxyID(), sub.caller.Identity.String()}
}

// add adds the proxy of a stream that ended. It forgets proxies that left long ago.
func (l *leftProxies) add(sub *subscriber, now time.Time) {
	key, has := proxyKeyOf(sub), sub.inForce()
	switch {
	case !sub.demands[ecds].asked:
	case extensionconfig.HasPolicies(has.extensions):
		if l.views == nil {
			l.views = make(map[proxyKey]leftView)
		}
		l.views[key] = leftView{has, now}
		l.order = append(l.order, leftProxy{key, now})
	default:
		delete(l.views, key)
	}
	for len(l.order) > 0 && (len(l.order) > maxLeft || now.Sub(l.order[0].at) > leftAge) {
		oldest := l.order[0]
		l.order = l.order[1:]
		if l.views[oldest.proxyKey].at.Equal(oldest.at) {
			delete(l.views, oldest.proxyKey)
		}
	}
}
