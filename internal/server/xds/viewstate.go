package xds

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"weak"

	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// viewState is the content of a view at one moment. It is immutable except for results
// that it computes once and shares. It never refers to an older state, so a state
// lives only as long as some stream refers to it.
type viewState struct {
	// id identifies the state without keeping it alive; 0 means no state.
	id        uint64
	resources *xdswire.List
	// round is the publication that made the state, nil for an overlay of a stream.
	round *history.Round
	view  units.View

	mu    sync.Mutex
	names *xdswire.NameSet
	// diffs holds the differences from earlier states, by their ids.
	diffs map[uint64]*diff
	// overlays holds the states that streams made of this one, see Hub.overlay.
	overlays map[string]weak.Pointer[viewState]
	// hosts finds virtual hosts by domain, see viewState.hostIndex.
	hosts *hostIndex
}

// diff is the difference between two states. All streams that take this step share it.
type diff struct {
	changed *xdswire.List // new or with new content
	removed []string      // sorted
	added   bool          // a changed resource is new
	once    sync.Once
	list    []string
}

// size returns the number of names that differ.
func (d *diff) size() int { return d.changed.Len() + len(d.removed) }

// names returns the names of the changed resources.
func (d *diff) names() []string {
	d.once.Do(func() { d.list = d.changed.Names() })
	return d.list
}

func compareNames(a, b *xdswire.Resource) int { return cmp.Compare(a.Name, b.Name) }

// get returns the resource with the name, or nil.
func (s *viewState) get(name string) *xdswire.Resource {
	if s == nil {
		return nil
	}
	return s.resources.Get(name)
}

// list returns the resources; s may be nil.
func (s *viewState) list() *xdswire.List {
	if s == nil {
		return nil
	}
	return s.resources
}

func (s *viewState) key() uint64 {
	if s == nil {
		return 0
	}
	return s.id
}

// nameSet returns the set of the resources' names.
func (s *viewState) nameSet(sets *xdswire.NameSets) *xdswire.NameSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names == nil {
		s.names = sets.Of(s.resources.Names())
	}
	return s.names
}

// since returns the difference from an older state to this one. Either may be nil; nil
// is empty.
func (s *viewState) since(from *viewState) *diff {
	if s == nil && from == nil {
		return noDiff
	}
	if s == nil {
		return &diff{removed: from.resources.Names()}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.diffs[from.key()]
	if d == nil {
		d = compare(from, s)
		s.diffs[from.key()] = d
	}
	return d
}

// noDiff is the difference between two absent states.
var noDiff = new(diff)

// compare computes a difference. The older state may be nil.
func compare(from, to *viewState) *diff {
	if from == nil {
		return &diff{changed: to.resources, added: to.resources.Len() > 0}
	}
	changed, added, removed := to.resources.Since(from.resources)
	return &diff{changed: xdswire.NewList(changed...), removed: removed, added: added > 0}
}

// newState returns the state after a change of an earlier one, which may be nil. The changed resources
// and the removed names are sorted.
func newState(id uint64, from *viewState, changed []*xdswire.Resource, removed []string, added bool) *viewState {
	out := &viewState{id: id, resources: from.list().Edit(changed, removed)}
	d := &diff{changed: out.resources, removed: removed, added: added}
	if from.list().Len() > 0 {
		d.changed = xdswire.NewList(changed...)
	}
	out.diffs = map[uint64]*diff{from.key(): d}
	return out
}

// next returns the state after changes, a map of names to their new resources or to
// nil. It returns s if nothing differs.
func (s *viewState) next(id uint64, changes map[string]*xdswire.Resource) *viewState {
	changed := make([]*xdswire.Resource, 0, len(changes))
	var removed []string
	added := false
	for name, r := range changes {
		old := s.get(name)
		switch {
		case old == nil && r == nil, old != nil && r != nil && old.Equal(r):
		case r == nil:
			removed = append(removed, name)
		default:
			changed, added = append(changed, r), added || old == nil
		}
	}
	if len(changed)+len(removed) == 0 && s != nil {
		return s
	}
	slices.Sort(removed)
	slices.SortFunc(changed, compareNames)
	return newState(id, s, changed, removed, added)
}

// viewSet holds what a proxy gets of one type: the states of its views, in the order of
// xdsgen.Views. Sets are compared by pointers.
type viewSet [units.NumViews]*viewState

// version returns the sum of the hashes of all resources.
func (p viewSet) version() uint64 {
	var v uint64
	for _, s := range p {
		if s != nil {
			v += s.resources.Sum()
		}
	}
	return v
}

// versionInfo formats a version for the wire.
func versionInfo(v uint64) string {
	s := strconv.FormatUint(v, 16)
	return "0000000000000000"[len(s):] + s
}

// holder returns the state that has the name, or nil.
func (p viewSet) holder(name string) *viewState {
	for _, s := range p {
		if s.get(name) != nil {
			return s
		}
	}
	return nil
}

// get returns the resource with the name, or nil.
func (p viewSet) get(name string) *xdswire.Resource { return p.holder(name).get(name) }

// all iterates over the resources of all states.
func (p viewSet) all(yield func(*xdswire.Resource) bool) {
	for _, s := range p {
		for r := range s.list().All {
			if !yield(r) {
				return
			}
		}
	}
}

// diffs holds a difference for each view.
type diffs [units.NumViews]*diff

// since returns the differences from another set, view by view. A name that moved
// between the views is removed in one difference and changed in the other, so readers
// of removed names must check get.
func (p viewSet) since(from viewSet) (out diffs) {
	for i := range p {
		out[i] = p[i].since(from[i])
	}
	return out
}

// round returns the newest publication behind the differences of two pairs, or nil.
func (p viewSet) round(from viewSet) *history.Round {
	var newest *history.Round
	for i, s := range p {
		if s == nil || s == from[i] || s.round == nil {
			continue
		}
		if newest == nil || newest.Snapshot < s.round.Snapshot {
			newest = s.round
		}
	}
	return newest
}
