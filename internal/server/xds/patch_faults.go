package xds

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/meshctl/meshctl/internal/server/xdsgen"
)

// patchFaults holds the patches of EnvoyFilters that have no effect on resources, by unit.
type patchFaults struct {
	mu    sync.Mutex
	of    map[*unit]xdsgen.PatchFaults
	units map[xdsgen.PatchFault]int // number of units with a fault
}

// take moves the faults from a unit's error into p, and returns the faults that no other unit
// has.
func (p *patchFaults) take(u *unit) (fresh xdsgen.PatchFaults) {
	if u.err == nil {
		return nil // without an allocation
	}
	var faults xdsgen.PatchFaults
	if !errors.As(u.err, &faults) {
		return nil
	}
	u.err = nil
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of, p.units = make(map[*unit]xdsgen.PatchFaults), make(map[xdsgen.PatchFault]int)
	}
	p.of[u] = faults
	for _, f := range faults {
		if p.units[f]++; p.units[f] == 1 {
			fresh = append(fresh, f)
		}
	}
	return fresh
}

// drop removes the faults of a unit that no view has.
func (p *patchFaults) drop(u *unit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.of[u] {
		if p.units[f]--; p.units[f] == 0 {
			delete(p.units, f)
		}
	}
	delete(p.of, u)
}

// list returns the faults, sorted.
func (p *patchFaults) list() []xdsgen.PatchFault {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Keys(p.units), func(a, b xdsgen.PatchFault) int { return cmp.Compare(a.String(), b.String()) })
}

// PatchFaults returns the patches of EnvoyFilters that have no effect on resources of
// connected proxies, because the result would be invalid.
func (h *Hub) PatchFaults() []xdsgen.PatchFault { return h.patchFaults.list() }
