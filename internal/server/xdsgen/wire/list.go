package wire

import (
	"cmp"
	"maps"
	"slices"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// List is a list that is comparable by content, as views and units must be.
type List[T comparable] = snapshot.List[T]

// ListOf returns a list of values.
func ListOf[T comparable](values []T) List[T] { return snapshot.ListOf(values) }

// Entry is an entry of a map.
type Entry[K cmp.Ordered, V comparable] struct {
	Key   K
	Value V
}

// SortedEntries returns the entries of a map, sorted by key.
func SortedEntries[K cmp.Ordered, V comparable](m map[K]V) List[Entry[K, V]] {
	out := make([]Entry[K, V], 0, len(m))
	for _, k := range SortedKeys(m) {
		out = append(out, Entry[K, V]{k, m[k]})
	}
	return ListOf(out)
}

// ValueOf returns the value of a key, or a zero value.
func ValueOf[K cmp.Ordered, V comparable](entries List[Entry[K, V]], key K) (v V) {
	for e := range entries.All {
		if e.Key == key {
			return e.Value
		}
	}
	return v
}

// SortedKeys returns the keys of a map in order. It takes no memory for the many maps that are
// empty.
func SortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	if len(m) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}
