package xdsgen

import (
	"cmp"
	"maps"
	"slices"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// list is a list that is comparable by content, as views and units must be.
type list[T comparable] = snapshot.List[T]

func listOf[T comparable](values []T) list[T] { return snapshot.ListOf(values) }

// entry is an entry of a map.
type entry[K cmp.Ordered, V comparable] struct {
	Key   K
	Value V
}

// sortedEntries returns the entries of a map, sorted by key.
func sortedEntries[K cmp.Ordered, V comparable](m map[K]V) list[entry[K, V]] {
	out := make([]entry[K, V], 0, len(m))
	for _, k := range sortedKeys(m) {
		out = append(out, entry[K, V]{k, m[k]})
	}
	return listOf(out)
}

// valueOf returns the value of a key, or a zero value.
func valueOf[K cmp.Ordered, V comparable](entries list[entry[K, V]], key K) (v V) {
	for e := range entries.All {
		if e.Key == key {
			return e.Value
		}
	}
	return v
}

// sortedKeys returns the keys of a map in order. It takes no memory for the many maps that are
// empty.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	if len(m) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}
