package xdswire

import (
	"sync"
	"weak"
)

// partCaches holds the caches of an encoder, one for each pair of types of keys and parts.
type partCaches struct {
	mu     sync.Mutex
	caches map[any]any // *PartCache[K, V] by a nil pointer of this type
}

// PartCache finds parts of resources by key. It does not keep parts alive: a part lives as long
// as some resource keeps it. Parts are immutable.
type PartCache[K comparable, V any] struct {
	mu    sync.Mutex
	parts map[K]*cachedPart[V]
	fresh int // number of keys added since the last sweep
	swept int // number of keys after it
}

// cachedPart is the part with a key.
type cachedPart[V any] struct {
	part   weak.Pointer[V]
	making bool          // a goroutine makes the part
	made   chan struct{} // closed when that ends; nil if no other goroutine waits
}

// CacheOf returns the encoder's cache for types of keys and parts.
func CacheOf[K comparable, V any](e *Encoder) *PartCache[K, V] {
	s := &e.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.caches == nil {
		s.caches = map[any]any{}
	}
	kind := any((*PartCache[K, V])(nil))
	c, ok := s.caches[kind].(*PartCache[K, V])
	if !ok {
		c = &PartCache[K, V]{parts: map[K]*cachedPart[V]{}}
		s.caches[kind] = c
	}
	return c
}

// Shared returns the part with the key from the encoder's cache, as PartCache.Get does.
func Shared[K comparable, V any](e *Encoder, key K, make func() (*V, error)) (*V, error) {
	return CacheOf[K, V](e).Get(key, func(K) (*V, error) { return make() })
}

// Get returns the part with the key: the one that some resource keeps, or a new one. It makes a
// part once, also if several goroutines need it at the same time. The key must contain everything
// that make reads.
func (c *PartCache[K, V]) Get(key K, make func(K) (*V, error)) (*V, error) {
	p, v := c.find(key)
	if v != nil {
		return v, nil
	}
	defer func() { c.done(key, p, v) }()
	made, err := make(key)
	if err != nil {
		return nil, err
	}
	v = made
	return v, nil
}

// add adds a key without a part.
func (c *PartCache[K, V]) add(key K) *cachedPart[V] {
	if c.fresh++; c.fresh > c.swept+minSweep {
		c.sweep()
	}
	p := &cachedPart[V]{}
	c.parts[key] = p
	return p
}

// find returns the part of a key. If it is nil, the caller must make the part and call done.
// find waits for another goroutine that makes it.
func (c *PartCache[K, V]) find(key K) (*cachedPart[V], *V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.parts[key]
	for ; p != nil && p.making; p = c.parts[key] {
		if p.made == nil {
			p.made = make(chan struct{})
		}
		made := p.made
		c.mu.Unlock()
		<-made
		c.mu.Lock()
	}
	if p == nil {
		p = c.add(key)
	} else if v := p.part.Value(); v != nil {
		return p, v
	}
	p.making = true
	return p, nil
}

// done ends the making of a part, which is nil if that failed.
func (c *PartCache[K, V]) done(key K, p *cachedPart[V], v *V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.making = false; p.made != nil {
		close(p.made)
		p.made = nil
	}
	if p.part = weak.Make(v); v == nil {
		delete(c.parts, key)
	}
}

// minSweep is the number of keys that an empty cache adds until it sweeps. A cache with n keys adds
// n more keys.
const minSweep = 16

// sweep removes the keys of parts that no resource keeps.
func (c *PartCache[K, V]) sweep() {
	for key, p := range c.parts {
		if !p.making && p.part.Value() == nil {
			delete(c.parts, key)
		}
	}
	c.fresh, c.swept = 0, len(c.parts)
}

// Keeping makes the resource keep the parts from which it was made, so that Shared finds
// them, and returns it. It must be called before the resource is shared.
func (r *Resource) Keeping(parts any) *Resource {
	r.kept = parts
	return r
}
