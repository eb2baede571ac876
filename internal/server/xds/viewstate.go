package xds

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strconv"
	"sync"
	"weak"

	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// viewState is the content of a view at one moment. It is immutable except for results
// that it computes once and shares. It never refers to an older state, so a state
// lives only as long as some stream refers to it.
type viewState struct {
	// id identifies the state without keeping it alive; 0 means no state.
	id        uint64
	resources []*xdswire.Resource // sorted by name
	// sum is the sum of the resources' hashes: equal sets have equal sums in every
	// process, and a change costs only as much as it touches.
	sum uint64
	// round is the publication that made the state, nil for an overlay of a stream.
	round *history.Round
	view  xdsgen.View

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
	changed []*xdswire.Resource // new or with new content, sorted by name
	removed []string            // sorted
	added   bool                // a changed resource is new
	bodies  [2]lazyBody
	once    sync.Once
	list    []string
}

type lazyBody struct {
	once sync.Once
	body xdswire.Body
}

// body returns the encoded changed resources.
func (d *diff) body(v xdswire.Variant) xdswire.Body {
	l := &d.bodies[v]
	l.once.Do(func() { l.body = xdswire.NewBody(v, d.changed...) })
	return l.body
}

// names returns the names of the changed resources.
func (d *diff) names() []string {
	d.once.Do(func() { d.list = namesOf(d.changed) })
	return d.list
}

func namesOf(resources []*xdswire.Resource) []string {
	names := make([]string, len(resources))
	for i, r := range resources {
		names[i] = r.Name
	}
	return names
}

func byName(r *xdswire.Resource, name string) int { return cmp.Compare(r.Name, name) }

func compareNames(a, b *xdswire.Resource) int { return cmp.Compare(a.Name, b.Name) }

// get returns the resource with the name, or nil.
func (s *viewState) get(name string) *xdswire.Resource {
	if s == nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(s.resources, name, byName)
	if !ok {
		return nil
	}
	return s.resources[i]
}

// list returns the resources; s may be nil.
func (s *viewState) list() []*xdswire.Resource {
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
		s.names = sets.Of(namesOf(s.resources))
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
		d := &diff{}
		for _, r := range from.list() {
			d.removed = append(d.removed, r.Name)
		}
		return d
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

// compare computes a difference by walking both sorted lists.
func compare(from, to *viewState) *diff {
	if from == to {
		return &diff{}
	}
	if from == nil {
		return &diff{changed: to.resources, added: len(to.resources) > 0}
	}
	d := &diff{}
	old := from.resources
	for _, r := range to.resources {
		for len(old) > 0 && old[0].Name < r.Name {
			d.removed = append(d.removed, old[0].Name)
			old = old[1:]
		}
		if len(old) > 0 && old[0].Name == r.Name {
			if !old[0].Equal(r) {
				d.changed = append(d.changed, r)
			}
			old = old[1:]
			continue
		}
		d.changed, d.added = append(d.changed, r), true
	}
	for _, r := range old {
		d.removed = append(d.removed, r.Name)
	}
	return d
}

// next returns the state after changes, a map of names to their new resources or to
// nil. It returns s if nothing differs.
func (s *viewState) next(id uint64, changes map[string]*xdswire.Resource) *viewState {
	d := &diff{changed: make([]*xdswire.Resource, 0, len(changes))}
	sum := uint64(0)
	if s != nil {
		sum = s.sum
	}
	names := make([]string, 0, len(changes))
	for name, r := range changes {
		old := s.get(name)
		switch {
		case old == nil && r == nil, old != nil && r != nil && old.Equal(r):
			continue
		case r == nil:
			d.removed = append(d.removed, name)
		default:
			d.changed, d.added = append(d.changed, r), d.added || old == nil
			sum += hash(r)
		}
		if old != nil {
			sum -= hash(old)
		}
		names = append(names, name)
	}
	if len(names) == 0 && s != nil {
		return s
	}
	slices.Sort(names)
	slices.Sort(d.removed)
	slices.SortFunc(d.changed, compareNames)
	out := &viewState{id: id, sum: sum, diffs: map[uint64]*diff{s.key(): d}}
	if len(s.list()) == 0 {
		out.resources = d.changed
		return out
	}
	out.resources = make([]*xdswire.Resource, 0, len(s.list())+len(d.changed))
	rest := s.list()
	for _, name := range names {
		i, found := slices.BinarySearchFunc(rest, name, byName)
		out.resources = append(out.resources, rest[:i]...)
		if r := changes[name]; r != nil {
			out.resources = append(out.resources, r)
		}
		if found {
			i++
		}
		rest = rest[i:]
	}
	out.resources = append(out.resources, rest...)
	return out
}

// hash hashes name and content; restarts of one build do not change the result.
func hash(r *xdswire.Resource) uint64 {
	var room [256]byte // enough for most names
	sum := sha256.Sum256(append(append(append(room[:0], r.Name...), 0), r.Version...))
	return binary.BigEndian.Uint64(sum[:])
}

// viewSet holds what a proxy gets of one type: the states of its views, in the order of
// xdsgen.Views. Sets are compared by pointers.
type viewSet [xdsgen.NumViews]*viewState

// version returns the sum of the hashes of all resources.
func (p viewSet) version() uint64 {
	var v uint64
	for _, s := range p {
		if s != nil {
			v += s.sum
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

// all returns the resources of all states.
func (p viewSet) all() []*xdswire.Resource {
	var out []*xdswire.Resource
	for _, s := range p {
		out = append(out, s.list()...)
	}
	return out
}

// diffs holds a difference for each view.
type diffs [xdsgen.NumViews]*diff

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
