package xds

import (
	"github.com/meshctl/meshctl/internal/server/xdsgen"
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
	if extensions := a.types[ecds].views[0]; extensions != nil && !xdsgen.RequestsPolicies(extensions.view, s.types[ecds].want.Has) {
		return // its new filters wait for their configuration
	}
	s.movedTo = a
	s.hub.post(func(m *mail) {
		if m.moved == nil {
			m.moved = make(map[*subscriber]*assignment)
		}
		m.moved[s.sub] = a
	})
}
