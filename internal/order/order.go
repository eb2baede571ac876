// Package order sorts lists of structs in code that runs rarely: for status pages,
// commands and reports.
//
// The compiler makes a copy of slices.SortFunc for every type of struct, 20 to 40 KB of
// the binary each. These functions share one copy. They allocate, and take up to 1.6 times
// as long. Where that matters, use slices; also for pointers and strings, which share a
// copy anyway.
package order

import (
	"iter"
	"slices"
	"sort"
)

// Sort sorts a list like slices.SortFunc.
func Sort[E any](list []E, compare func(a, b E) int) {
	if len(list) < 2 {
		return // without allocations
	}
	sort.Slice(list, func(i, j int) bool { return compare(list[i], list[j]) < 0 })
}

// Stable sorts a list like slices.SortStableFunc: equal elements keep their order.
func Stable[E any](list []E, compare func(a, b E) int) {
	sort.SliceStable(list, func(i, j int) bool { return compare(list[i], list[j]) < 0 })
}

// Collect returns the sorted values of a sequence, like slices.SortedFunc.
func Collect[E any](values iter.Seq[E], compare func(a, b E) int) []E {
	out := slices.Collect(values)
	Sort(out, compare)
	return out
}
