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

// viewState is what a view held at one moment: immutable but for what it
// computes once for all who ask. It never refers to an older state, so a
// state lives as long as a stream has it as its last one.
type viewState struct {
	// id tells states apart without holding them; 0 is no state.
	id        uint64
	resources []*xdswire.Resource // sorted by name
	// sum is the sum of the resources' hashes: the same set of resources has
	// the same sum in every process, and a change costs only what changed.
	sum uint64
	// round is the publication that made the state; nil when a stream did.
	round *history.Round
	// view is what the state is of.
	view xdsgen.View

	mu    sync.Mutex
	names *xdswire.NameSet
	// diffs is what changed to this state, by the id of the state before.
	diffs map[uint64]*diff
	// overlays are the states that streams made of this one.
	overlays map[string]weak.Pointer[viewState]
}

// diff is what leads from one state to another. It is shared by all streams
// that take the step.
type diff struct {
	changed []*xdswire.Resource // new or with other content, sorted by name
	removed []string            // sorted
	bodies  [2]lazyBody
	once    sync.Once
	list    []string
}

type lazyBody struct {
	once sync.Once
	body xdswire.Body
}

// body is the changed resources as they go on the wire.
func (d *diff) body(v xdswire.Variant) xdswire.Body {
	l := &d.bodies[v]
	l.once.Do(func() { l.body = xdswire.NewBody(v, d.changed...) })
	return l.body
}

// names is the names of the changed resources.
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

// get returns the resource of the name, or nil.
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

// list returns the resources; none for no state.
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

// nameSet is the set of the names of the resources.
func (s *viewState) nameSet(sets *xdswire.NameSets) *xdswire.NameSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names == nil {
		s.names = sets.Of(namesOf(s.resources))
	}
	return s.names
}

// since is what leads from the state to this one, either of which may be nil.
// From nothing it is the full state.
func (s *viewState) since(from *viewState) *diff {
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

// compare walks both sorted lists.
func compare(from, to *viewState) *diff {
	if from == to {
		return &diff{}
	}
	if from == nil {
		return &diff{changed: to.resources}
	}
	d := &diff{}
	old := from.resources
	for _, r := range to.resources {
		for len(old) > 0 && old[0].Name < r.Name {
			d.removed = append(d.removed, old[0].Name)
			old = old[1:]
		}
		if len(old) > 0 && old[0].Name == r.Name {
			if old[0].Version != r.Version {
				d.changed = append(d.changed, r)
			}
			old = old[1:]
			continue
		}
		d.changed = append(d.changed, r)
	}
	for _, r := range old {
		d.removed = append(d.removed, r.Name)
	}
	return d
}

// next makes the state that follows: changes maps names to their resources,
// nil for those that are gone. When nothing differs it is the same state.
func (s *viewState) next(id uint64, changes map[string]*xdswire.Resource) *viewState {
	d := &diff{}
	sum := uint64(0)
	if s != nil {
		sum = s.sum
	}
	names := make([]string, 0, len(changes))
	for name, r := range changes {
		old := s.get(name)
		switch {
		case old == nil && r == nil, old != nil && r != nil && old.Version == r.Version:
			continue
		case r == nil:
			d.removed = append(d.removed, name)
		default:
			d.changed = append(d.changed, r)
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
	slices.SortFunc(d.changed, func(a, b *xdswire.Resource) int { return cmp.Compare(a.Name, b.Name) })
	out := &viewState{id: id, sum: sum, diffs: map[uint64]*diff{s.key(): d}}
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

// hash is of name and content, stable over restarts of one build.
func hash(r *xdswire.Resource) uint64 {
	h := sha256.New()
	h.Write([]byte(r.Name))
	h.Write([]byte{0})
	h.Write([]byte(r.Version))
	return binary.BigEndian.Uint64(h.Sum(nil))
}

// pair is what one proxy is given of one type at one moment: the states of
// the view it shares and of its own. Pairs are compared by address of states.
type pair struct{ shared, own *viewState }

// version is the hash of the resources of both.
func (p pair) version() uint64 {
	var v uint64
	if p.shared != nil {
		v += p.shared.sum
	}
	if p.own != nil {
		v += p.own.sum
	}
	return v
}

// versionInfo is a pair's version as it goes on the wire.
func versionInfo(v uint64) string {
	s := strconv.FormatUint(v, 16)
	return "0000000000000000"[len(s):] + s
}

// holder returns the state of the pair that has the name, nil when none has.
func (p pair) holder(name string) *viewState {
	if p.shared.get(name) != nil {
		return p.shared
	}
	if p.own.get(name) != nil {
		return p.own
	}
	return nil
}

// get returns the resource of the name, or nil.
func (p pair) get(name string) *xdswire.Resource {
	if r := p.shared.get(name); r != nil {
		return r
	}
	return p.own.get(name)
}

// since is what leads from one pair to another, view by view. A name that
// moved from one view to the other stands among the removed of one and the
// changed of the other: readers of the removed names ask get.
func (p pair) since(from pair) [2]*diff {
	return [2]*diff{p.shared.since(from.shared), p.own.since(from.own)}
}

// round is the newest publication behind what differs between two pairs, nil
// when none is known.
func (p pair) round(from pair) *history.Round {
	var newest *history.Round
	for _, s := range [][2]*viewState{{p.shared, from.shared}, {p.own, from.own}} {
		if s[0] == nil || s[0] == s[1] || s[0].round == nil {
			continue
		}
		if newest == nil || newest.Snapshot < s[0].round.Snapshot {
			newest = s[0].round
		}
	}
	return newest
}
