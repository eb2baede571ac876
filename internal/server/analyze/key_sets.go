package analyze

import (
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// keySets finds the rules of RequestAuthentications whose key set the control planes cannot fetch.
func (m *checker) keySets() {
	if m.KeySet == nil {
		return
	}
	for _, p := range until(m, list[*snapshot.RequestAuthentication](m, snapshot.KindRequestAuthentication)) {
		for i, rule := range p.Spec.GetJwtRules() {
			source, fetched := snapshot.KeySourceOf(rule)
			if !fetched || p.Cluster != m.Snapshot.Mesh.LocalCluster {
				continue
			}
			fault, kept := m.KeySet(p.Cluster, source)
			if fault == "" {
				continue
			}
			field := at("spec.jwtRules", i) + ".jwksUri"
			if source.URL == "" {
				field = at("spec.jwtRules", i) + ".issuer"
			}
			effect := "requests with its tokens get status 401"
			if kept {
				effect = "the last keys still count"
			}
			if f := m.findFix(codes.KeySetNotFetched, p, "", field, "the control plane cannot fetch the keys, %s: %s: %s", source, fault, effect); f != nil {
				f.Logged = true
				if kept {
					f.Level = codes.Warning
				}
			}
		}
	}
}
