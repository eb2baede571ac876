package registry

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// maxCauses is the number of causes that a change names.
const maxCauses = 8

// batch holds the input that arrived since the last turn.
type batch struct {
	since     time.Time // arrival of the first input
	events    map[snapshot.Key]snapshot.Event
	removed   map[mesh.ClusterID]struct{} // removed before the events
	replaced  map[mesh.ClusterID]struct{} // the events hold all objects
	expected  map[mesh.ClusterID]struct{}
	balancing map[mesh.ClusterID]snapshot.Balancing
	trust     *snapshot.TrustBundle         // nil if unchanged
	hosts     map[string][]netip.Addr       // nil if unchanged
	keySets   map[snapshot.KeySource]string // nil if unchanged
	health    map[facts.HealthReporter]snapshot.Condition
}

func newBatch() batch {
	return batch{
		events:    make(map[snapshot.Key]snapshot.Event),
		removed:   make(map[mesh.ClusterID]struct{}),
		replaced:  make(map[mesh.ClusterID]struct{}),
		expected:  make(map[mesh.ClusterID]struct{}),
		balancing: make(map[mesh.ClusterID]snapshot.Balancing),
		health:    make(map[facts.HealthReporter]snapshot.Condition),
	}
}

func (b *batch) len() int {
	n := len(b.events) + len(b.removed) + len(b.replaced) + len(b.expected) + len(b.balancing) + len(b.health)
	if b.trust != nil {
		n++
	}
	if b.hosts != nil {
		n++
	}
	if b.keySets != nil {
		n++
	}
	return n
}

func (b *batch) empty() bool { return b.len() == 0 }

func (b *batch) apply(events []snapshot.Event) {
	for _, e := range events {
		b.events[e.Key] = e
	}
}

func (b *batch) replace(c mesh.ClusterID, events []snapshot.Event) {
	b.drop(c)
	b.replaced[c] = struct{}{}
	b.apply(events)
}

func (b *batch) remove(c mesh.ClusterID) {
	b.drop(c)
	delete(b.replaced, c)
	delete(b.expected, c)
	b.removed[c] = struct{}{}
}

func (b *batch) drop(c mesh.ClusterID) {
	for k := range b.events {
		if k.Cluster == c {
			delete(b.events, k)
		}
	}
}

// into applies the batch to the state and returns a few causes, sorted.
func (b *batch) into(s *state) []snapshot.Cause {
	var causes []snapshot.Cause
	cause := func(c snapshot.Cause) {
		if len(causes) < maxCauses {
			causes = append(causes, c)
		}
	}
	cluster := func(c mesh.ClusterID, gone bool) {
		cause(snapshot.Cause{Key: snapshot.Key{Kind: snapshot.KindCluster, Cluster: c, Name: string(c)}, Gone: gone})
	}
	for c := range b.removed {
		s.Remove(c)
		cluster(c, true)
	}
	for c := range b.expected {
		s.Clusters.Set(c, struct{}{})
	}
	for c := range b.replaced {
		for _, k := range s.Keys(c) {
			if _, stays := b.events[k]; !stays {
				s.Apply(snapshot.Event{Key: k})
			}
		}
		cluster(c, false)
	}
	for c, balancing := range b.balancing {
		if s.SetBalancing(c, balancing) {
			cluster(c, false)
		}
	}
	if b.trust != nil {
		s.trust = b.trust
		cause(snapshot.Cause{Key: snapshot.Key{Kind: snapshot.KindTrustBundle, Cluster: s.cfg.Local, Name: "roots"}})
	}
	if b.hosts != nil {
		s.setHosts(b.hosts)
		cause(snapshot.Cause{Key: snapshot.Key{Kind: snapshot.KindHostName, Cluster: s.cfg.Local, Name: "gateways"}})
	}
	if b.keySets != nil {
		s.setKeySets(b.keySets)
		cause(snapshot.Cause{Key: snapshot.Key{Kind: snapshot.KindKeySet, Cluster: s.cfg.Local, Name: "fetched"}})
	}
	for by, health := range b.health {
		s.SetHealth(by, health)
		k := by.Entry
		cause(snapshot.Cause{Key: snapshot.Key{Kind: snapshot.KindWorkloadEntry, Cluster: k.Cluster, Namespace: k.Namespace, Name: k.Name}})
	}
	for k, e := range b.events {
		if k.Kind == snapshot.KindRequestAuthentication {
			s.keepKeys(e)
		}
		s.Apply(e)
		c := snapshot.Cause{Key: k, Gone: e.Object == nil}
		if e.Object != nil {
			c.Place = e.Object.ReadFrom()
		}
		cause(c)
	}
	return sortCauses(causes)
}

func sortCauses(causes []snapshot.Cause) []snapshot.Cause {
	slices.SortFunc(causes, func(a, b snapshot.Cause) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(causes)
}

// changeLog sums up the batches that led to a snapshot. The first snapshot has several,
// because it waits for clusters and host names.
type changeLog struct {
	since  time.Time // arrival of the first input
	events int
	causes []snapshot.Cause // a few, sorted
}

func (s *changeLog) add(b *batch, causes []snapshot.Cause) {
	if s.since.IsZero() {
		s.since = b.since
	}
	s.events += b.len()
	s.causes = sortCauses(append(s.causes, causes...))
	s.causes = s.causes[:min(len(s.causes), maxCauses)]
}
