package snapshot

import (
	"cmp"
	"maps"
	"slices"

	"github.com/tidwall/btree"
)

// Table is an immutable map of facts, sorted by key. A nil Table is empty. A new version
// shares all that did not change with the old one: a change costs the logarithm of the
// size.
type Table[K cmp.Ordered, V any] struct{ tree *tree[K] }

// tree holds facts, which are pointers, without their type: the compiler would copy its code for each.
type tree[K cmp.Ordered] = btree.Map[K, any]

// degree is the least number of children of an inner node of a tree.
const degree = 32

// Len returns the number of facts.
func (t *Table[K, V]) Len() int {
	if t == nil {
		return 0
	}
	return t.tree.Len()
}

// Get returns the fact with the key, or nil.
func (t *Table[K, V]) Get(key K) *V {
	if t == nil {
		return nil
	}
	fact, _ := t.tree.Get(key)
	return factOf[V](fact)
}

// All iterates over the facts in key order.
func (t *Table[K, V]) All() func(yield func(K, *V) bool) {
	return func(yield func(K, *V) bool) {
		if t != nil {
			t.tree.Scan(func(k K, fact any) bool { return yield(k, factOf[V](fact)) })
		}
	}
}

func factOf[V any](fact any) *V {
	v, _ := fact.(*V)
	return v
}

// With returns a table with the changes applied, or t itself if there are none. A nil
// value removes a key. Only one goroutine at a time may call it.
func (t *Table[K, V]) With(changes map[K]*V) *Table[K, V] {
	if len(changes) == 0 {
		return t
	}
	tree := btree.NewMap[K, any](degree)
	if t != nil {
		tree = t.tree.Copy()
	}
	for _, k := range slices.Sorted(maps.Keys(changes)) { // neighbours change the same nodes
		if fact := changes[k]; fact != nil {
			tree.Set(k, fact)
		} else {
			tree.Delete(k)
		}
	}
	return &Table[K, V]{tree}
}
