package clusters

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

// State is how far a cluster was read, under Istio's names, and lost.
type State string

// The states.
const (
	Syncing State = "syncing" // it is being read
	Timeout State = "timeout" // that takes longer than others wait; it goes on
	Synced  State = "synced"  // everything was read and is followed
	Lost    State = "lost"    // everything was read once, it is not followed now
)

// Status is how one cluster is read.
type Status struct {
	Cluster mesh.ClusterID
	Own     bool `json:",omitempty"`
	// Origin is where the cluster comes from, OriginKind its kind.
	Origin     string
	OriginKind OriginKind
	State      State
	// Since is when the state began.
	Since time.Time
	Report
	// Credential identifies the credential in use, NextCredential the one that
	// will take its place when everything was read with it.
	Credential     string `json:",omitempty"`
	NextCredential string `json:",omitempty"`
	// TokenEnds is when the credential in use ends.
	TokenEnds *time.Time `json:",omitempty"`
	// CredentialProblem says that it ends soon or has ended, by the clock.
	CredentialProblem string `json:",omitempty"`
	CredentialExpired bool   `json:",omitempty"`
	// Setting is what is set for the cluster, OnLost and Grace what follows when
	// it is lost.
	Setting mesh.ClusterSetting `json:",omitzero"`
	// Drained and Demoted say what is in force.
	Drained bool     `json:",omitempty"`
	Demoted bool     `json:",omitempty"`
	Notes   []string `json:",omitempty"`
}

// Problem is a claim that has no effect.
type Problem struct {
	Origin  string
	Cluster mesh.ClusterID
	Reason  string
	// Refused is what a kubeconfig may not do, each with its field and what to
	// do instead. The key of the secret is the cluster.
	Refused []remotesecret.Finding `json:",omitempty"`
}

// published is what others may know of the manager's state; it does not change.
type publishedState struct {
	clusters []publishedCluster
	problems []Problem
}

type publishedCluster struct {
	Status
	reader *clusterReader
	spec   Spec // that the reading was made of
}

// publish makes the state known.
func (m *Manager) publish() {
	p := &publishedState{}
	for _, id := range slices.Sorted(maps.Keys(m.clusters)) {
		c := m.clusters[id]
		p.clusters = append(p.clusters, m.entry(c))
		for _, lost := range c.registrations[1:] {
			p.problems = append(p.problems, Problem{
				Origin: lost.origin.Name, Cluster: id,
				Reason: fmt.Sprintf("%s claims the cluster, too: that one is used until it is gone", c.registrations[0].origin.Name),
			})
		}
	}
	// The own one first.
	slices.SortStableFunc(p.clusters, func(a, b publishedCluster) int {
		switch {
		case a.Own == b.Own:
			return 0
		case a.Own:
			return -1
		}
		return 1
	})
	for o, list := range m.problems {
		for _, problem := range list {
			problem.Origin = o.Name
			p.problems = append(p.problems, problem)
		}
	}
	slices.SortFunc(p.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Reason, b.Reason))
	})
	m.published.Store(p)
}

func (m *Manager) entry(c *cluster) publishedCluster {
	claim := c.reader.registration
	e := publishedCluster{reader: c.reader, spec: claim.spec, Status: Status{
		Cluster: c.id, Own: c.id == m.cfg.Own, Origin: claim.origin.Name, OriginKind: claim.origin.Kind,
		State: Syncing, Since: c.since, Credential: claim.spec.Credential, Setting: m.setting(c.id),
		Drained: c.standing.Drained, Demoted: c.standing.Demoted, Notes: claim.access.Notes,
	}}
	if !claim.spec.TokenEnds.IsZero() {
		e.TokenEnds = &claim.spec.TokenEnds
	}
	if c.nextReader != nil {
		e.NextCredential = c.nextReader.registration.spec.Credential
	}
	switch {
	case c.synced:
		e.State = Synced
	case c.overdue:
		e.State = Timeout
	}
	return e
}

// Status is how the clusters are read, the own one first, then by name, and
// what has no effect. It may be called from any goroutine.
func (m *Manager) Status() ([]Status, []Problem) {
	p := m.published.Load()
	now, out := m.cfg.Now(), make([]Status, 0, len(p.clusters))
	for _, e := range p.clusters {
		s := e.Status
		s.Report = e.reader.report()
		if s.State == Synced && !s.LostSince.IsZero() {
			s.State, s.Since = Lost, s.LostSince
		}
		s.withCredential(e.spec.phase(now))
		out = append(out, s)
	}
	return out, p.problems
}

// Has reports whether there is such a cluster. It may be called from any
// goroutine.
func (m *Manager) Has(id mesh.ClusterID) bool {
	return slices.ContainsFunc(m.published.Load().clusters, func(e publishedCluster) bool { return e.Cluster == id })
}
