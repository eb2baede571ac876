package derive

import (
	"fmt"
	"iter"
	"slices"
)

// Table maps keys to values. Values must not change.
type Table[K comparable, V any] struct{ rows rows[K] }

// rows is a table without the type of its values: the compiler copies its code only for
// each type of keys.
type rows[K comparable] struct {
	graph   *Graph
	name    string
	level   int
	compare func(a, b K) int
	equal   func(a, b any) bool
	entries map[K]*entry[K]
	size    int // entries with a value

	indexes []indexer[K]
	follow  []func(K) // called with keys that got or lost a value

	period  uint64
	changed []*entry[K] // in the period

	// Only for derived tables.
	derive func(*Reads, K) any
	keys   []keySet[K]
	queue  []*entry[K]
	result any // of the current computation
	calls  uint64
}

// Keys is a set of keys, such as the keys of a table or an index. The keys of a derived
// table are in the Keys from which it was made.
type Keys[K comparable] interface{ keys() keySet[K] }

type keySet[K comparable] interface {
	has(K) bool
	each(func(K))
	// watch calls f with each key that is added or removed.
	watch(f func(K))
}

// entry is a key of a table: with a value, or only with readers.
type entry[K comparable] struct {
	node   node
	table  *rows[K]
	cell   *cell // of a derived table
	key    K
	value  any    // nil if there is none
	period uint64 // of the last change
}

// as returns a value with its type, and the zero value for nil.
func as[V any](value any) V {
	v, _ := value.(V)
	return v
}

func newTable[K comparable, V any](g *Graph, name string, compare func(a, b K) int, equal func(a, b V) bool) *Table[K, V] {
	return &Table[K, V]{rows[K]{
		graph: g, name: name, level: len(g.stages), compare: compare, entries: make(map[K]*entry[K]),
		equal: func(a, b any) bool { return equal(as[V](a), as[V](b)) },
	}}
}

// Input is a table whose values are set from outside.
type Input[K comparable, V any] struct{ *Table[K, V] }

// NewInput returns an empty input table. compare orders keys, and equal reports whether a
// new value changes nothing.
func NewInput[K comparable, V any](g *Graph, name string, compare func(a, b K) int, equal func(a, b V) bool) Input[K, V] {
	t := newTable(g, name, compare, equal)
	g.stages = append(g.stages, &t.rows)
	return Input[K, V]{t}
}

// Set sets the value of a key. It reports whether the value changed.
func (t Input[K, V]) Set(k K, v V) bool { return t.rows.set(t.rows.entry(k), v) }

// Delete removes a key. It reports whether the key had a value.
func (t Input[K, V]) Delete(k K) bool {
	e := t.rows.entries[k]
	if e == nil || e.value == nil {
		return false
	}
	t.rows.set(e, nil)
	e.drop()
	return true
}

// New returns a derived table. f returns the value of a key, or false if it has none. The
// table has the keys of all sets for which f returns a value.
func New[K comparable, V any](
	g *Graph, name string, compare func(a, b K) int, equal func(a, b V) bool, f func(*Reads, K) (V, bool), keys ...Keys[K],
) *Table[K, V] {
	t := newTable(g, name, compare, equal)
	t.rows.deriveFrom(keys, func(r *Reads, k K) any {
		if v, ok := f(r, k); ok {
			return v
		}
		return nil
	})
	return t
}

// deriveFrom makes a new table a derived one.
func (t *rows[K]) deriveFrom(keys []Keys[K], f func(*Reads, K) any) {
	t.derive = f
	for _, k := range keys {
		set := k.keys()
		t.keys = append(t.keys, set)
		set.watch(t.touch)
		set.each(t.touch)
	}
	t.graph.stages = append(t.graph.stages, t)
}

// Single returns a derived table with one value.
func Single[V any](g *Graph, name string, equal func(a, b V) bool, f func(*Reads) V) *Value[V] {
	t := New(g, name, func(_, _ struct{}) int { return 0 }, equal, func(r *Reads, _ struct{}) (V, bool) { return f(r), true }, always{})
	return &Value[V]{t}
}

// Value is a table with one value.
type Value[V any] struct{ table *Table[struct{}, V] }

// Get returns the value; it is zero before the first Commit.
func (v *Value[V]) Get(r *Reads) V {
	out, _ := v.table.Get(r, struct{}{})
	return out
}

// Changed reports whether the last Commit changed the value.
func (v *Value[V]) Changed() bool { return v.table.rows.changes() > 0 }

// always is the set of keys of a Value.
type always struct{}

func (a always) keys() keySet[struct{}] { return a }
func (always) has(struct{}) bool        { return true }
func (always) each(f func(struct{}))    { f(struct{}{}) }
func (always) watch(func(struct{}))     {}

// Get returns the value of a key.
func (t *Table[K, V]) Get(r *Reads, k K) (V, bool) {
	value := t.rows.read(r, k)
	return as[V](value), value != nil
}

// read returns the value of a key or nil, and records that it is read.
func (t *rows[K]) read(r *Reads, k K) any {
	e := t.entries[k]
	if r != nil {
		if e == nil {
			e = t.entry(k)
		}
		r.record(e, t.level)
	}
	if e == nil {
		return nil
	}
	return e.value
}

// Computed returns the number of calls of the table's function so far.
func (t *Table[K, V]) Computed() uint64 { return t.rows.calls }

// Len returns the number of keys with a value.
func (t *Table[K, V]) Len() int { return t.rows.size }

// All iterates over the keys and values in no order, for callers that are no functions of
// derived tables. Those use an index.
func (t *Table[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for k, e := range t.rows.entries {
			if e.value != nil && !yield(k, as[V](e.value)) {
				return
			}
		}
	}
}

// Changed iterates over the keys that the last Commit and the changes before it changed,
// each with its value, or false if it has none any longer. A key that was removed and added
// again has its new value.
func (t *Table[K, V]) Changed() iter.Seq2[K, Change[V]] {
	return func(yield func(K, Change[V]) bool) {
		if t.rows.changes() == 0 {
			return
		}
		for _, e := range t.rows.changed {
			if now := t.rows.entries[e.key]; now != nil && now != e && now.period == t.rows.period {
				continue // of another entry, which follows
			}
			if !yield(e.key, Change[V]{as[V](e.value), e.value != nil}) {
				return
			}
		}
	}
}

// Differs reports whether the last Commit, or a change before it, changed a value.
func (t *Table[K, V]) Differs() bool { return t.rows.changes() > 0 }

// Change is the new value of a key.
type Change[V any] struct {
	Value   V
	Present bool
}

func (t *rows[K]) changes() int {
	if t.period != t.graph.period {
		return 0
	}
	return len(t.changed)
}

func (t *rows[K]) entry(k K) *entry[K] {
	e := t.entries[k]
	if e == nil {
		e = &entry[K]{table: t, key: k}
		if t.derive != nil {
			e.cell = &cell{}
		}
		t.entries[k] = e
	}
	return e
}

// set sets a value, or removes it if v is nil. It reports whether anything changed.
func (t *rows[K]) set(e *entry[K], v any) bool {
	if e.value == nil && v == nil || e.value != nil && v != nil && t.equal(e.value, v) {
		return false
	}
	t.graph.change()
	if t.period != t.graph.period {
		t.period, t.changed = t.graph.period, nil
	}
	if e.period != t.period {
		e.period = t.period
		t.changed = append(t.changed, e)
	}
	old := e.value
	e.value = v
	for _, x := range t.indexes {
		x.move(e, old)
	}
	e.node.notify()
	if (old != nil) != (v != nil) {
		if v != nil {
			t.size++
		} else {
			t.size--
		}
		for _, f := range t.follow {
			f(e.key)
		}
	}
	return true
}

// touch queues a key that a set of keys has got or lost.
func (t *rows[K]) touch(k K) { t.entry(k).wake() }

// wanted reports whether a set has the key.
func (t *rows[K]) wanted(k K) bool {
	return slices.ContainsFunc(t.keys, func(set keySet[K]) bool { return set.has(k) })
}

// update computes the queued keys. It reports whether it is done.
func (t *rows[K]) update(proceed func() bool) bool {
	// In order, so that indexes append entries, or remove their first ones.
	slices.SortFunc(t.queue, func(a, b *entry[K]) int { return t.compare(a.key, b.key) })
	for i, e := range t.queue {
		if !proceed() {
			t.queue = t.queue[i:]
			return false
		}
		e.cell.queued = false
		if !t.wanted(e.key) {
			t.graph.forget(e.cell, e)
			t.set(e, nil)
			e.drop()
			continue
		}
		t.calls++
		if t.graph.compute(e.cell, e, t.level) {
			t.set(e, t.result)
		}
	}
	clear(t.queue)
	t.queue, t.result = t.queue[:0], nil
	return true
}

func (t *rows[K]) computed() (string, uint64) { return t.name, t.calls }

// compute implements derived.
func (e *entry[K]) compute(r *Reads) { e.table.result = e.table.derive(r, e.key) }

// fault implements derived.
func (e *entry[K]) fault() Fault { return Fault{Table: e.table.name, Key: fmt.Sprint(e.key)} }

func (e *entry[K]) at() *node { return &e.node }

// wake implements reader.
func (e *entry[K]) wake() {
	if !e.cell.queued {
		e.cell.queued = true
		e.table.queue = append(e.table.queue, e)
	}
}

// drop implements source.
func (e *entry[K]) drop() {
	if e.value != nil || e.node.read() || e.cell != nil && (e.cell.queued || e.table.wanted(e.key)) {
		return
	}
	delete(e.table.entries, e.key)
}

// The keys of a table are Keys.

func (t *Table[K, V]) keys() keySet[K] { return &t.rows }

func (t *rows[K]) has(k K) bool {
	e := t.entries[k]
	return e != nil && e.value != nil
}

func (t *rows[K]) each(f func(K)) {
	for k, e := range t.entries {
		if e.value != nil {
			f(k)
		}
	}
}

func (t *rows[K]) watch(f func(K)) { t.follow = append(t.follow, f) }
