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
	parts map[any]any           // weak.Pointer[V] by comparable key
	made  map[any]chan struct{} // closed when the part of the key is made
}

// Shared returns the part of a resource with the key: the one that some resource keeps, or
// a new one. It makes a part once, also if several goroutines need it at the same time. The
// key, a comparable value, must contain everything that make reads, and its type must be used
// for parts of one type only. Parts are immutable.
func Shared[V any](e *Encoder, key any, make func() (*V, error)) (*V, error) {
	s := &e.shared
	v, made := find[V](s, key)
	for ; v == nil && made != nil; v, made = find[V](s, key) {
		<-made
	}
	if v != nil {
		return v, nil
	}
	defer s.done(key)
	v, err := make()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parts[key] = weak.Make(v)
	runtime.AddCleanup(v, dropPart[V], lapsed{s, key})
	return v, nil
}

// find returns the part of a key. If there is none, it returns a channel that is closed when
// another goroutine has tried to make it, or nil if the caller must make it and call done.
func find[V any](s *sharedParts, key any) (v *V, made chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, _ := s.parts[key].(weak.Pointer[V])
	if v = p.Value(); v != nil {
		return v, nil
	}
	if made = s.made[key]; made != nil {
		return nil, made
	}
	if s.parts == nil {
		s.parts, s.made = map[any]any{}, map[any]chan struct{}{}
	}
	s.made[key] = make(chan struct{})
	return nil, nil
}

// done ends the making of a part, whether or not it succeeded.
func (s *sharedParts) done(key any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.made[key])
	delete(s.made, key)
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
