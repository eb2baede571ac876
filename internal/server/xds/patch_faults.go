package xds

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/patch"
)

// patchFaults holds the patches of EnvoyFilters that have no effect on resources, by unit.
type patchFaults struct {
	mu    sync.Mutex
	of    map[*unit]patch.Faults
	units map[patch.Fault]int // number of units with a fault
	// patches counts the faults of units by patch and reason, and filters those by EnvoyFilter.
	patches map[patch.Fault]int
	filters map[snapshot.Key]int
}

// maxFilterFaults bounds the faults of an EnvoyFilter that are kept.
const maxFilterFaults = 1000

// anyResource returns the fault without its resource.
func anyResource(f patch.Fault) patch.Fault {
	f.Resource = ""
	return f
}

// take moves the faults from a unit's error into p, and returns the first fault of each patch
// that has none in another unit.
func (p *patchFaults) take(u *unit) (fresh patch.Faults) {
	if u.err == nil {
		return nil // without an allocation
	}
	var faults patch.Faults
	if !errors.As(u.err, &faults) {
		return nil
	}
	u.err = nil
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = make(map[*unit]patch.Faults)
		p.units, p.patches = make(map[patch.Fault]int), make(map[patch.Fault]int)
		p.filters = make(map[snapshot.Key]int)
	}
	for _, f := range faults {
		if p.filters[f.Filter] == maxFilterFaults {
			continue
		}
		p.of[u] = append(p.of[u], f)
		p.filters[f.Filter]++
		p.units[f]++
		if p.patches[anyResource(f)]++; p.patches[anyResource(f)] == 1 {
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
		release(p.units, f)
		release(p.patches, anyResource(f))
		release(p.filters, f.Filter)
	}
	delete(p.of, u)
}

func release[K comparable](counts map[K]int, f K) {
	if counts[f]--; counts[f] == 0 {
		delete(counts, f)
	}
}

// list returns the faults, sorted.
func (p *patchFaults) list() []patch.Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Keys(p.units), func(a, b patch.Fault) int { return cmp.Compare(a.String(), b.String()) })
}

// PatchFaults returns the patches of EnvoyFilters that have no effect on resources of
// connected proxies, because the result would be invalid.
func (h *Hub) PatchFaults() []patch.Fault { return h.patchFaults.list() }
