package xds

import "testing"

// TestPatchedUnits: the patches of a namespace cost no more than the limit together, whatever other
// namespaces have, and units that no view has cost nothing.
func TestPatchedUnits(t *testing.T) {
	t.Parallel()
	var p patchedUnits
	one, two, three, other := new(unit), new(unit), new(unit), new(unit)
	if !p.take(one, patchedCost{"tenant", maxPatched}) || !p.take(two, patchedCost{"tenant", maxPatched}) {
		t.Error("patches within the limit are refused")
	}
	if p.take(three, patchedCost{"tenant", 1}) {
		t.Error("patches beyond the limit are accepted")
	}
	if !p.take(other, patchedCost{"other", maxPatched}) {
		t.Error("the patches of another namespace are refused")
	}
	p.drop(one)
	p.drop(three) // which costs nothing
	if !p.take(three, patchedCost{"tenant", maxPatched}) {
		t.Error("patches are refused, although a unit is gone")
	}
	for _, u := range []*unit{two, three, other} {
		p.drop(u)
	}
	if len(p.costs)+len(p.of) != 0 {
		t.Errorf("after all units, %v and %v are left", p.costs, p.of)
	}
}
