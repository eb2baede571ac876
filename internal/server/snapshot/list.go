package snapshot

import (
	"slices"
	"unique"
)

// List is an immutable list of values. It is comparable: lists with equal values are equal.
// The zero List is empty.
type List[T comparable] struct{ head unique.Handle[listElement[T]] }

type listElement[T comparable] struct {
	value T
	rest  List[T]
}

// ListOf returns the list of values.
func ListOf[T comparable](values []T) (l List[T]) {
	for _, v := range slices.Backward(values) {
		l.head = unique.Make(listElement[T]{v, l})
	}
	return l
}

// Empty reports whether the list has no values.
func (l List[T]) Empty() bool { return l == List[T]{} }

// All iterates over the values.
func (l List[T]) All(yield func(T) bool) {
	for !l.Empty() {
		e := l.head.Value()
		if !yield(e.value) {
			return
		}
		l = e.rest
	}
}

// At returns the value with an index, which must exist.
func (l List[T]) At(i int) T {
	for ; i > 0; i-- {
		l = l.head.Value().rest
	}
	return l.head.Value().value
}

// Len returns the number of values.
func (l List[T]) Len() (n int) {
	for range l.All {
		n++
	}
	return n
}

// Slice returns the values.
func (l List[T]) Slice() []T { return slices.Collect(l.All) }
