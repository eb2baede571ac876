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
	parts map[any]any // *sharedPart[V] by comparable key
}

// sharedPart is the part with a key. The mutex of in guards it.
type sharedPart[V any] struct {
	in     *sharedParts
	key    any
	part   weak.Pointer[V]
	making bool          // a goroutine makes the part
	made   chan struct{} // closed when that ends; nil if no other goroutine waits
}

// Shared returns the part of a resource with the key: the one that some resource keeps, or
// a new one. It makes a part once, also if several goroutines need it at the same time. The
// key, a comparable value, must contain everything that make reads, and its type must be used
// for parts of one type only. Parts are immutable.
func Shared[V any](e *Encoder, key any, make func() (*V, error)) (*V, error) {
	p, v := find[V](&e.shared, key)
	if v != nil {
		return v, nil
	}
	defer p.done()
	v, err := make()
	if err != nil {
		return nil, err
	}
	p.set(v)
	runtime.AddCleanup(v, (*sharedPart[V]).drop, p)
	return v, nil
}

// find returns the part of a key. If there is none, the caller must make it and call done. find
// waits for another goroutine that makes it.
func find[V any](s *sharedParts, key any) (*sharedPart[V], *V) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, _ := s.parts[key].(*sharedPart[V])
	for ; p != nil; p, _ = s.parts[key].(*sharedPart[V]) {
		if v := p.part.Value(); v != nil {
			return p, v
		}
		if !p.making {
			break
		}
		if p.made == nil {
			p.made = make(chan struct{})
		}
		made := p.made
		s.mu.Unlock()
		<-made
		s.mu.Lock()
	}
	if p == nil {
		if s.parts == nil {
			s.parts = map[any]any{}
		}
		p = &sharedPart[V]{in: s, key: key}
		s.parts[key] = p
	}
	p.part, p.making = weak.Pointer[V]{}, true
	return p, nil
}

func (p *sharedPart[V]) set(v *V) {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	p.part = weak.Make(v)
}

// done ends the making of a part, whether or not it succeeded.
func (p *sharedPart[V]) done() {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	if p.part == (weak.Pointer[V]{}) {
		delete(p.in.parts, p.key)
	}
	if p.making = false; p.made != nil {
		close(p.made)
		p.made = nil
	}
}

// drop forgets a part that no resource keeps, unless another one was made for its key since.
func (p *sharedPart[V]) drop() {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	if p.part != (weak.Pointer[V]{}) && p.part.Value() == nil && p.in.parts[p.key] == any(p) {
		delete(p.in.parts, p.key)
	}
}

// Keeping makes the resource keep the parts from which it was made, so that Shared finds
// them, and returns it. It must be called before the resource is shared.
func (r *Resource) Keeping(parts any) *Resource {
	r.kept = parts
	return r
}
