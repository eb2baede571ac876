package xds

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// clusterOrder keeps clusters at a proxy for as long as its listeners and routes refer to
// them: Envoy answers requests for clusters that it lacks with errors. Listeners and routes
// wait until the proxy has accepted new clusters, which Envoy does once it has their
// endpoints. Clusters that are gone are removed after the proxy has accepted newer listeners
// and routes, unless the proxy uses the state-of-the-world variant. A proxy that returns has
// listeners and routes, too, although it requests them after its clusters. So the
// responses to its requests for them wait. A proxy that starts gets its first responses at once.
type clusterOrder struct {
	added    boundedWait // begins with a response with new clusters
	gone     []string    // clusters to remove later
	stay     boundedWait // begins with the first of gone
	returned bool        // the proxy holds clusters of an earlier stream
}

// boundedWait is a wait that ends after Limits.ClusterWait: a cluster may wait for a name
// that no resolver knows. The zero value does not wait.
type boundedWait struct{ over *atomic.Bool }

// newWait begins a wait. At its end the session flushes.
func (s *session) newWait() boundedWait {
	w := boundedWait{new(atomic.Bool)}
	time.AfterFunc(s.hub.cfg.Limits.ClusterWait, func() {
		w.over.Store(true)
		s.hub.queue.add(s)
	})
	return w
}

func (w boundedWait) waits() bool { return w.over != nil && !w.over.Load() }

// clustersWait reports whether the proxy has not accepted the newest clusters yet: a response
// is in flight, and either it has new clusters or a newer response is due.
func (s *session) clustersWait(now viewSet) bool {
	t := &s.types[cds]
	return t.inflight && (now != t.sent || s.clusters.added.waits())
}

// clustersSent begins the wait for the new clusters of a response, if it has any. A
// cluster that a returning proxy lacks may be new.
func (s *session) clustersSent(resp *response) {
	s.clusters.added = boundedWait{}
	if s.clusters.returned && len(resp.extra) > 0 || slices.ContainsFunc(resp.diffs[:], func(d *diff) bool { return d.added }) {
		s.clusters.added = s.newWait()
	}
}

// keepClusters reports whether clusters that are gone must stay for now. Otherwise it makes
// the removals due that waited.
func (s *session) keepClusters(now [numTypes]viewSet, ok [numTypes]bool) bool {
	c, t := &s.clusters, &s.types[cds]
	behind := func(i int) bool {
		switch of := &s.types[i]; {
		case !of.watched:
			return c.returned && (i != vhds || s.sub.node.DiscoversHosts && s.hosts.mode != inlineHosts)
		case !ok[i]:
			return c.returned
		default:
			return of.inflight || of.sent != now[i]
		}
	}
	keep := s.sub.variant == xdswire.Delta && (behind(lds) || behind(rds) || behind(vhds))
	if len(c.gone) == 0 || t.inflight || keep && c.stay.waits() {
		return keep
	}
	t.doubt = sortedUnique(t.doubt, c.gone)
	t.addForce(c.gone[:1])
	c.gone, c.returned = nil, false
	return false
}

// removeLater takes the removals out of a response.
func (s *session) removeLater(resp *response) {
	if len(resp.removed) == 0 {
		return
	}
	if len(s.clusters.gone) == 0 {
		s.clusters.stay = s.newWait()
	}
	s.clusters.gone = sortedUnique(s.clusters.gone, resp.removed)
	resp.removed = nil
}
