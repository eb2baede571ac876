package derive

import (
	"iter"
	"slices"
)

// Index finds the entries of a table by other keys.
type Index[I, K comparable, V any] struct {
	table  *Table[K, V]
	keys   func(into []I, k K, v V) []I
	groups map[I]*group[I, K, V]
	follow []func(I)
	before []I // reused
	after  []I
}

// indexer is an index of a table, whatever its keys.
type indexer[K comparable, V any] interface {
	// move brings the index up to date after a change of an entry, which had a value
	// before if had is true.
	move(e *entry[K, V], old V, had bool)
}

// group holds the entries of a key of an index, sorted by their keys.
type group[I, K comparable, V any] struct {
	node
	index   *Index[I, K, V]
	key     I
	entries []*entry[K, V]
}

// NewIndex returns an index of a table. keys appends the keys of the index under which an
// entry is found.
func NewIndex[I, K comparable, V any](t *Table[K, V], keys func(into []I, k K, v V) []I) *Index[I, K, V] {
	x := &Index[I, K, V]{table: t, keys: keys, groups: make(map[I]*group[I, K, V])}
	for _, e := range t.entries {
		if e.present {
			var none V
			x.move(e, none, false)
		}
	}
	t.indexes = append(t.indexes, x)
	return x
}

// Lookup iterates over the entries of a key, sorted by their keys. A change of any of them
// is a change of the lookup.
func (x *Index[I, K, V]) Lookup(r *Reads, i I) iter.Seq2[K, V] {
	g := x.read(r, i)
	return func(yield func(K, V) bool) {
		if g == nil {
			return
		}
		for _, e := range g.entries {
			if !yield(e.key, e.value) {
				return
			}
		}
	}
}

// Len returns the number of entries of a key.
func (x *Index[I, K, V]) Len(r *Reads, i I) int {
	if g := x.read(r, i); g != nil {
		return len(g.entries)
	}
	return 0
}

// read returns the group of a key and records that it is read. Without reads, the group of
// an absent key is nil.
func (x *Index[I, K, V]) read(r *Reads, i I) *group[I, K, V] {
	if r == nil {
		return x.groups[i]
	}
	g := x.group(i)
	r.record(g, x.table.level)
	return g
}

func (x *Index[I, K, V]) group(i I) *group[I, K, V] {
	g := x.groups[i]
	if g == nil {
		g = &group[I, K, V]{index: x, key: i}
		x.groups[i] = g
	}
	return g
}

func (x *Index[I, K, V]) move(e *entry[K, V], old V, had bool) {
	x.before, x.after = x.before[:0], x.after[:0]
	if had {
		x.before = x.keys(x.before, e.key, old)
	}
	if e.present {
		x.after = x.keys(x.after, e.key, e.value)
	}
	for _, i := range x.before {
		g := x.groups[i]
		if !slices.Contains(x.after, i) {
			g.remove(e)
		}
		g.notify()
		g.drop()
	}
	for _, i := range x.after {
		if !slices.Contains(x.before, i) {
			g := x.group(i)
			g.insert(e)
			g.notify()
		}
	}
}

func (g *group[I, K, V]) find(e *entry[K, V]) (int, bool) {
	return slices.BinarySearchFunc(g.entries, e, func(a, b *entry[K, V]) int { return g.index.table.compare(a.key, b.key) })
}

func (g *group[I, K, V]) insert(e *entry[K, V]) {
	at, found := g.find(e)
	if found {
		return // keys appended the key twice
	}
	g.entries = slices.Insert(g.entries, at, e)
	if len(g.entries) == 1 {
		g.index.announce(g.key)
	}
}

func (g *group[I, K, V]) remove(e *entry[K, V]) {
	at, found := g.find(e)
	if !found {
		return
	}
	g.entries = slices.Delete(g.entries, at, at+1)
	if len(g.entries) == 0 {
		g.index.announce(g.key)
	}
}

func (g *group[I, K, V]) at() *node { return &g.node }

// drop implements source.
func (g *group[I, K, V]) drop() {
	if len(g.entries) == 0 && !g.read() {
		delete(g.index.groups, g.key)
	}
}

// announce reports that a key of the index has got or lost its entries.
func (x *Index[I, K, V]) announce(i I) {
	for _, f := range x.follow {
		f(i)
	}
}

// The keys of an index are Keys.

func (x *Index[I, K, V]) has(i I) bool {
	g := x.groups[i]
	return g != nil && len(g.entries) > 0
}

func (x *Index[I, K, V]) each(f func(I)) {
	for i := range x.groups {
		if x.has(i) {
			f(i)
		}
	}
}

func (x *Index[I, K, V]) watch(f func(I)) { x.follow = append(x.follow, f) }
