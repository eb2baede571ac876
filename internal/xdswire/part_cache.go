package xdswire

import (
	"runtime"
	"sync"
	"weak"
)

// sharedParts finds parts of resources by key. It does not keep parts alive: a part lives
// as long as some resource keeps it.
type sharedParts struct {
	mu    sync.Mutex
	parts map[any]any // weak.Pointer[V] by comparable key
}

// Shared returns the part of a resource with the key: the one that some resource keeps, or
// a new one. The key, a comparable value, must contain everything that make reads, and
// its type must be used for parts of one type only. Parts are immutable.
func Shared[V any](e *Encoder, key any, make func() (*V, error)) (*V, error) {
	if v := find[V](&e.shared, key); v != nil {
		return v, nil
	}
	v, err := make()
	if err != nil {
		return nil, err
	}
	e.shared.mu.Lock()
	defer e.shared.mu.Unlock()
	if e.shared.parts == nil {
		e.shared.parts = map[any]any{}
	}
	e.shared.parts[key] = weak.Make(v)
	runtime.AddCleanup(v, dropPart[V], lapsed{&e.shared, key})
	return v, nil
}

func find[V any](s *sharedParts, key any) *V {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, _ := s.parts[key].(weak.Pointer[V])
	return p.Value()
}

// lapsed identifies a part that no resource keeps.
type lapsed struct {
	in  *sharedParts
	key any
}

// dropPart removes a part, unless another one was made for its key since.
func dropPart[V any](l lapsed) {
	l.in.mu.Lock()
	defer l.in.mu.Unlock()
	if p, ok := l.in.parts[l.key].(weak.Pointer[V]); ok && p.Value() == nil {
		delete(l.in.parts, l.key)
	}
}

// Keeping makes the resource keep the parts from which it was made, so that Shared finds
// them, and returns it. It must be called before the resource is shared.
func (r *Resource) Keeping(parts any) *Resource {
	r.kept = parts
	return r
}
