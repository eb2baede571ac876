package xdsgen

import (
	"slices"
	"unique"
)

// list is a list of values. It is comparable: lists with equal values are equal. The zero
// list is empty.
type list[T comparable] struct{ head unique.Handle[element[T]] }

type element[T comparable] struct {
	value T
	rest  list[T]
}

func listOf[T comparable](values []T) (l list[T]) {
	for _, v := range slices.Backward(values) {
		l.head = unique.Make(element[T]{v, l})
	}
	return l
}

// all iterates over the values.
func (l list[T]) all(yield func(T) bool) {
	for l != (list[T]{}) {
		e := l.head.Value()
		if !yield(e.value) {
			return
		}
		l = e.rest
	}
}
