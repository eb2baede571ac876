package snapshot

import (
	"cmp"
	"slices"
)

// Table is an immutable map of facts, sorted by key. A nil Table is empty. A lookup is
// a binary search. A new version copies pointers, not facts, so that a fact which did
// not change keeps its address.
type Table[K cmp.Ordered, V any] struct {
	keys   []K
	values []*V
}

// Len returns the number of facts.
func (t *Table[K, V]) Len() int {
	if t == nil {
		return 0
	}
	return len(t.keys)
}

// Get returns the fact with the key, or nil.
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

// All iterates over the facts in key order.
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

// With returns a table with the changes applied, or t itself if there are none. A nil
// value removes a key.
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
