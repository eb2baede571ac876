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

// State is the state of a cluster. All but Lost have Istio's names.
type State string

// The states.
const (
	Syncing State = "syncing" // it is being read
	Timeout State = "timeout" // it is still being read, but the first snapshot no longer waits
	Synced  State = "synced"  // it was read completely and is followed
	Lost    State = "lost"    // it was read completely and cannot be followed now
)

// Status is the status of one cluster.
type Status struct {
	Cluster mesh.ClusterID
	Own     bool `json:",omitempty"`
	// Origin is the name of the cluster's origin, OriginKind its kind.
	Origin     string
	OriginKind OriginKind
	State      State
	// Since is the start of the state.
	Since time.Time
	Report
	// Credential identifies the credential in use. NextCredential replaces it when
	// everything was read with it.
	Credential     string `json:",omitempty"`
	NextCredential string `json:",omitempty"`
	// TokenEnds is the time at which the credential in use expires.
	TokenEnds *time.Time `json:",omitempty"`
	// CredentialProblem reports that it ends soon or has expired, by the clock.
	CredentialProblem string `json:",omitempty"`
	CredentialExpired bool   `json:",omitempty"`
	// Setting has the settings of the cluster.
	Setting mesh.ClusterSetting `json:",omitzero"`
	// Drained and Demoted are in force now.
	Drained bool     `json:",omitempty"`
	Demoted bool     `json:",omitempty"`
	Notes   []string `json:",omitempty"`
}

// Problem is a spec or registration without effect.
type Problem struct {
	Origin  string
	Cluster mesh.ClusterID
	Reason  string
	// Refused has the forbidden fields of a kubeconfig, each with its fix. The key of
	// the secret is the cluster.
	Refused []remotesecret.Finding `json:",omitempty"`
}

// publishedState is the state of the manager for other goroutines. It is immutable.
type publishedState struct {
	clusters []publishedCluster
	problems []Problem
}

type publishedCluster struct {
	Status
	reader *clusterReader
	next   *clusterReader // nil if none
	spec   Spec           // of the reader
}

// publish publishes the current state.
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
	// The own cluster comes first.
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
	reg := c.reader.registration
	e := publishedCluster{reader: c.reader, next: c.nextReader, spec: reg.spec, Status: Status{
		Cluster: c.id, Own: c.id == m.cfg.Own, Origin: reg.origin.Name, OriginKind: reg.origin.Kind,
		State: Syncing, Since: c.since, Credential: reg.spec.Credential, Setting: m.Setting(c.id),
		Drained: c.balancing.Drained, Demoted: c.balancing.Demoted, Notes: reg.access.Notes,
	}}
	if !reg.spec.TokenEnds.IsZero() {
		e.TokenEnds = &reg.spec.TokenEnds
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

// Status returns the status of all clusters, the own one first, then by name, and the
// problems. It may be called concurrently.
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
		s.addFaults(m.cfg.Own, &e.spec, e.next)
		out = append(out, s)
	}
	return out, p.problems
}

// Has reports whether a cluster exists. It may be called concurrently.
func (m *Manager) Has(id mesh.ClusterID) bool {
	return slices.ContainsFunc(m.published.Load().clusters, func(e publishedCluster) bool { return e.Cluster == id })
}
