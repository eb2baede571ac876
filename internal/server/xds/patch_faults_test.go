package xds

import (
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/patch"
)

// TestOneWarningForAPatch: of the faults of a patch in many resources, one is new, and again
// one after all units with the fault are gone. All are listed.
func TestOneWarningForAPatch(t *testing.T) {
	fault := func(resource, reason string) patch.Fault {
		return patch.Fault{Filter: snapshot.Key{Name: "f"}, Patch: 1, Resource: resource, Reason: reason}
	}
	var p patchFaults
	one, two := new(unit), new(unit)
	for _, step := range []struct {
		of     *unit
		faults patch.Faults
		fresh  int
	}{
		{one, patch.Faults{fault("a", "invalid"), fault("b", "invalid")}, 1},
		{two, patch.Faults{fault("c", "invalid"), fault("c", "empty")}, 1},
	} {
		step.of.err = step.faults
		if fresh := p.take(step.of); len(fresh) != step.fresh || step.of.err != nil {
			t.Errorf("of %v, %v are new, want %d; the error left is %v", step.faults, fresh, step.fresh, step.of.err)
		}
	}
	if all := p.list(); len(all) != 4 {
		t.Errorf("listed are %v", all)
	}
	p.drop(one)
	p.drop(two)
	one.err = patch.Faults{fault("a", "invalid")}
	if fresh := p.take(one); len(fresh) != 1 || len(p.list()) != 1 {
		t.Errorf("after all units are gone, %v is new, and listed are %v", fresh, p.list())
	}
}
