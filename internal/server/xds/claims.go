package xds

import (
	"maps"
	"slices"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// first decides who gives a resource that several units of the view make, such
// as the listeners of two headless services with one pod and one port: the
// first by id, so that neither the order of changes nor chance decides. In
// changes it puts right what the view has of each name; it reports whether
// some resource is still made by several units.
func (v *liveView) first(changes map[string]*xdswire.Resource) bool {
	claimed := make(map[string]*xdswire.Resource)
	contested := false
	for _, id := range slices.Sorted(maps.Keys(v.entries)) {
		for _, r := range v.entries[id].resources {
			if claimed[r.Name] != nil {
				contested = true
				continue
			}
			claimed[r.Name] = r
		}
	}
	for name := range changes {
		changes[name] = claimed[name]
	}
	return contested
}
