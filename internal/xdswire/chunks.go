package xdswire

import (
	"slices"
	"sort"
)

// chunkEditor edits sorted lists that consist of chunks of type C, with elements of type E. The name of
// an element decides whether a chunk ends with it, so equal ranges of lists are equal chunks.
type chunkEditor[C, E any] struct {
	elements func(C) []E // never empty
	name     func(E) string
	ends     func(name string) bool
	chunk    func([]E) C // returns the chunk of elements; it copies them for a new one
}

// edit returns the chunks of a list with elements added or replaced and with names removed. Both are
// sorted and have no names in common.
func (e *chunkEditor[C, E]) edit(chunks []C, changed []E, removed []string) []C {
	out := make([]C, 0, len(chunks)+1)
	var next []E // of the next chunk
	end := func() {
		if len(next) > 0 {
			out = append(out, e.chunk(next))
		}
		next = next[:0]
	}
	add := func(element E) {
		if next = append(next, element); e.ends(e.name(element)) {
			end()
		}
	}
	for i, c := range chunks {
		elements := e.elements(c)
		more, less := len(changed), len(removed)
		if i+1 < len(chunks) {
			last := e.name(elements[len(elements)-1])
			more = sort.Search(len(changed), func(i int) bool { return e.name(changed[i]) > last })
			less = sort.Search(len(removed), func(i int) bool { return removed[i] > last })
		}
		if len(next) == 0 && more == 0 && less == 0 {
			out = append(out, c)
			continue
		}
		e.merge(elements, changed[:more], removed[:less], add)
		changed, removed = changed[more:], removed[less:]
	}
	e.merge(nil, changed, nil, add) // only if there were no chunks
	end()
	return slices.Clip(out)
}

// merge calls add for the elements of a chunk after a change, in order.
func (e *chunkEditor[C, E]) merge(elements, changed []E, removed []string, add func(E)) {
	for _, element := range elements {
		name := e.name(element)
		for len(changed) > 0 && e.name(changed[0]) < name {
			add(changed[0])
			changed = changed[1:]
		}
		for len(removed) > 0 && removed[0] < name {
			removed = removed[1:]
		}
		switch {
		case len(changed) > 0 && e.name(changed[0]) == name: // added before the next one
		case len(removed) > 0 && removed[0] == name:
		default:
			add(element)
		}
	}
	for _, element := range changed {
		add(element)
	}
}
