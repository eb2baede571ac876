package snapshot

import (
	"cmp"
	"slices"

	"k8s.io/utils/third_party/forked/golang/btree"
)

// Table is an immutable map of facts, sorted by key. A nil Table is empty. A new version
// shares all that did not change with the old one: a change costs the logarithm of the
// size.
type Table[K cmp.Ordered, V any] struct{ tree *btree.BTree[row[K]] }

// row is a fact with its key. A search has no fact. It leaves out the type of the fact, as
// the compiler would copy the tree for each.
type row[K cmp.Ordered] struct {
	key  K
	fact any
}

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
	if found, ok := t.tree.Get(row[K]{key: key}); ok {
		return factOf[V](found.fact)
	}
	return nil
}

// All iterates over the facts in key order.
func (t *Table[K, V]) All() func(yield func(K, *V) bool) {
	return func(yield func(K, *V) bool) {
		if t != nil {
			t.tree.Ascend(func(r row[K]) bool { return yield(r.key, factOf[V](r.fact)) })
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
	keys := make([]K, 0, len(changes))
	for k := range changes {
		keys = append(keys, k)
	}
	var tree *btree.BTree[row[K]]
	if t != nil {
		tree = t.tree
	}
	return &Table[K, V]{changed(tree, keys, func(k K) any {
		if fact := changes[k]; fact != nil {
			return fact
		}
		return nil
	})}
}

// changed returns a tree, which may be nil, with the facts of the keys.
func changed[K cmp.Ordered](tree *btree.BTree[row[K]], keys []K, fact func(K) any) *btree.BTree[row[K]] {
	if tree == nil {
		tree = btree.New(degree, func(a, b row[K]) bool { return a.key < b.key })
	} else {
		tree = tree.Clone()
	}
	slices.Sort(keys) // neighbours change the same nodes
	for _, k := range keys {
		if f := fact(k); f != nil {
			tree.ReplaceOrInsert(row[K]{k, f})
		} else {
			tree.Delete(row[K]{key: k})
		}
	}
	return tree
}
