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
	mu sync.Mutex
	of map[*unit]xdsgen.PatchFaults
}

// take takes the faults out of a unit's error, and returns those that were not known.
func (p *patchFaults) take(u *unit) (fresh xdsgen.PatchFaults) {
	var faults xdsgen.PatchFaults
	if !errors.As(u.err, &faults) {
		return nil
	}
	u.err = nil
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range faults {
		if !p.knows(f) {
			fresh = append(fresh, f)
		}
	}
	if p.of == nil {
		p.of = make(map[*unit]xdsgen.PatchFaults)
	}
	p.of[u] = faults
	return fresh
}

func (p *patchFaults) knows(f xdsgen.PatchFault) bool {
	for _, faults := range p.of {
		if slices.Contains(faults, f) {
			return true
		}
	}
	return false
}

// drop removes the faults of a unit that no view has.
func (p *patchFaults) drop(u *unit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, u)
}

// list returns the faults, each once, sorted.
func (p *patchFaults) list() []xdsgen.PatchFault {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := make(map[xdsgen.PatchFault]struct{})
	for _, faults := range p.of {
		for _, f := range faults {
			found[f] = struct{}{}
		}
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b xdsgen.PatchFault) int { return cmp.Compare(a.String(), b.String()) })
}

// PatchFaults returns the patches of EnvoyFilters that have no effect on resources of
// connected proxies, because the result would be invalid.
func (h *Hub) PatchFaults() []xdsgen.PatchFault { return h.patchFaults.list() }
