package snapshot

import (
	"cmp"
	"slices"
)

// Table is an immutable list of facts in key order; a nil Table is empty. A
// lookup is a binary search; a new version copies the list of pointers, not
// the facts, so equal facts keep their address from snapshot to snapshot, and
// so does a Table that did not change.
type Table[K cmp.Ordered, V any] struct {
	keys   []K
	values []*V
}

// Len is the number of facts.
func (t *Table[K, V]) Len() int {
	if t == nil {
		return 0
	}
	return len(t.keys)
}

// Get returns the fact of the key, or nil.
func (t *Table[K, V]) Get(key K) *V {
	if t == nil {
		return nil
	}
	i, ok := slices.BinarySearch(t.keys, key)
	if !ok {
		return nil
	}
	return t.values[i]
}

// All iterates in key order.
func (t *Table[K, V]) All() func(yield func(K, *V) bool) {
	return func(yield func(K, *V) bool) {
		if t == nil {
			return
		}
		for i, k := range t.keys {
			if !yield(k, t.values[i]) {
				return
			}
		}
	}
}

// With returns the table with the changes applied; a nil value removes.
func (t *Table[K, V]) With(changes map[K]*V) *Table[K, V] {
	if len(changes) == 0 {
		return t
	}
	changed := make([]K, 0, len(changes))
	for k := range changes {
		changed = append(changed, k)
	}
	slices.Sort(changed)
	out := &Table[K, V]{
		keys:   make([]K, 0, t.Len()+len(changed)),
		values: make([]*V, 0, t.Len()+len(changed)),
	}
	var rest Table[K, V]
	if t != nil {
		rest = *t
	}
	for _, k := range changed {
		i, found := slices.BinarySearch(rest.keys, k)
		out.keys = append(out.keys, rest.keys[:i]...)
		out.values = append(out.values, rest.values[:i]...)
		if v := changes[k]; v != nil {
			out.keys = append(out.keys, k)
			out.values = append(out.values, v)
		}
		if found {
			i++
		}
		rest = Table[K, V]{rest.keys[i:], rest.values[i:]}
	}
	out.keys = append(out.keys, rest.keys...)
	out.values = append(out.values, rest.values...)
	return out
}
