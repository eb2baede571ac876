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
	far   List[T] // the rest after stride elements, for At
}

// stride is the number of elements of a long list that At skips at once.
const stride = 32

// ListOf returns the list of values.
func ListOf[T comparable](values []T) (l List[T]) {
	var from []List[T] // the lists that start at each of the last strides
	for i, v := range slices.Backward(values) {
		e := listElement[T]{value: v, rest: l}
		if far := i + stride; far < len(values) {
			e.far = from[len(values)-1-far]
		}
		l.head = unique.Make(e)
		if len(values) > stride {
			from = append(from, l)
		}
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
	for ; i >= stride; i -= stride {
		l = l.head.Value().far
	}
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
