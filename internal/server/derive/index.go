package derive

import (
	"iter"
	"slices"
)

// Index finds the entries of a table by other keys.
type Index[I, K comparable, V any] struct{ index index[I, K] }

// index is an index without the type of the values, like rows.
type index[I, K comparable] struct {
	table  *rows[K]
	keys   func(into []I, k K, value any) []I
	groups map[I]*group[I, K]
	follow []func(I)
	before []I // reused
	after  []I
}

// indexer is an index of a table, whatever its keys.
type indexer[K comparable] interface {
	// move brings the index up to date after a change of an entry from an old value,
	// or from nil.
	move(e *entry[K], old any)
}

// group holds the entries of a key of an index, sorted by their keys.
type group[I, K comparable] struct {
	node    node
	index   *index[I, K]
	key     I
	entries []*entry[K]
}

// NewIndex returns an index of a table. keys appends the keys of the index under which an
// entry is found.
func NewIndex[I, K comparable, V any](t *Table[K, V], keys func(into []I, k K, v V) []I) *Index[I, K, V] {
	x := &Index[I, K, V]{index[I, K]{table: &t.rows, groups: make(map[I]*group[I, K])}}
	x.index.keys = func(into []I, k K, value any) []I { return keys(into, k, as[V](value)) }
	x.index.fill()
	return x
}

// fill adds the entries of the table, and follows its changes.
func (x *index[I, K]) fill() {
	for _, e := range x.table.entries {
		if e.value != nil {
			x.move(e, nil)
		}
	}
	x.table.indexes = append(x.table.indexes, x)
}

// Lookup iterates over the entries of a key, sorted by their keys. A change of any of them
// is a change of the lookup.
func (x *Index[I, K, V]) Lookup(r *Reads, i I) iter.Seq2[K, V] {
	g := x.index.read(r, i)
	return func(yield func(K, V) bool) {
		if g == nil {
			return
		}
		for _, e := range g.entries {
			if !yield(e.key, as[V](e.value)) {
				return
			}
		}
	}
}

// Len returns the number of entries of a key.
func (x *Index[I, K, V]) Len(r *Reads, i I) int {
	if g := x.index.read(r, i); g != nil {
		return len(g.entries)
	}
	return 0
}

// read returns the group of a key and records that it is read. Without reads, the group of
// an absent key is nil.
func (x *index[I, K]) read(r *Reads, i I) *group[I, K] {
	if r == nil {
		return x.groups[i]
	}
	g := x.group(i)
	r.record(g, x.table.level)
	return g
}

func (x *index[I, K]) group(i I) *group[I, K] {
	g := x.groups[i]
	if g == nil {
		g = &group[I, K]{index: x, key: i}
		x.groups[i] = g
	}
	return g
}

func (x *index[I, K]) move(e *entry[K], old any) {
	x.before, x.after = x.before[:0], x.after[:0]
	if old != nil {
		x.before = x.keys(x.before, e.key, old)
	}
	if e.value != nil {
		x.after = x.keys(x.after, e.key, e.value)
	}
	inBefore, inAfter := contains(x.before), contains(x.after)
	for _, i := range x.before {
		g := x.groups[i]
		if g == nil {
			continue // keys appended the key twice, and the group is dropped
		}
		if !inAfter(i) {
			g.remove(e)
		}
		g.node.notify()
		g.drop()
	}
	for _, i := range x.after {
		if !inBefore(i) {
			g := x.group(i)
			g.insert(e)
			g.node.notify()
		}
	}
}

// contains returns a function that reports whether a list has an item.
func contains[I comparable](list []I) func(I) bool {
	const short = 16
	if len(list) <= short {
		return func(i I) bool { return slices.Contains(list, i) }
	}
	set := make(map[I]struct{}, len(list))
	for _, i := range list {
		set[i] = struct{}{}
	}
	return func(i I) bool { _, is := set[i]; return is }
}

func (g *group[I, K]) find(e *entry[K]) (int, bool) {
	return slices.BinarySearchFunc(g.entries, e, func(a, b *entry[K]) int { return g.index.table.compare(a.key, b.key) })
}

func (g *group[I, K]) insert(e *entry[K]) {
	at, found := g.find(e)
	if found {
		return // keys appended the key twice
	}
	g.entries = slices.Insert(g.entries, at, e)
	if len(g.entries) == 1 {
		g.index.announce(g.key)
	}
}

func (g *group[I, K]) remove(e *entry[K]) {
	at, found := g.find(e)
	if !found {
		return
	}
	if at == 0 {
		g.entries[0], g.entries = nil, g.entries[1:]
	} else {
		g.entries = slices.Delete(g.entries, at, at+1)
	}
	if len(g.entries) == 0 {
		g.index.announce(g.key)
	}
}

func (g *group[I, K]) at() *node { return &g.node }

// drop implements source.
func (g *group[I, K]) drop() {
	if len(g.entries) == 0 && !g.node.read() {
		delete(g.index.groups, g.key)
	}
}

// announce reports that a key of the index has got or lost its entries.
func (x *index[I, K]) announce(i I) {
	for _, f := range x.follow {
		f(i)
	}
}

// The keys of an index are Keys.

func (x *Index[I, K, V]) keys() keySet[I] { return &x.index }

func (x *index[I, K]) has(i I) bool {
	g := x.groups[i]
	return g != nil && len(g.entries) > 0
}

func (x *index[I, K]) each(f func(I)) {
	for i := range x.groups {
		if x.has(i) {
			f(i)
		}
	}
}

func (x *index[I, K]) watch(f func(I)) { x.follow = append(x.follow, f) }
