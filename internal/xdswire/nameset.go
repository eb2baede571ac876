package xdswire

import (
	"hash/maphash"
	"iter"
	"runtime"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"weak"
)

// NameSet is an immutable set of resource names. A NameSets makes sets and keeps only one
// of equal content, so equal sets have equal pointers. Sets that differ in few names share
// the chunks of the rest. Nil is the empty set.
type NameSet struct {
	chunks []*NameChunk
	key    setKey
	list   atomic.Pointer[[]string] // the result of Names
}

// NameChunk holds consecutive names of sets. Their hashes decide where it ends, so equal
// ranges of sets are equal chunks. It is never empty.
type NameChunk struct {
	names []string // sorted
	key   setKey
}

// Len returns the number of names.
func (c *NameChunk) Len() int { return c.key.len }

// Bytes returns the total length of the names.
func (c *NameChunk) Bytes() int { return c.key.bytes }

// Len returns the number of names.
func (s *NameSet) Len() int {
	if s == nil {
		return 0
	}
	return s.key.len
}

// Bytes returns the total length of the names.
func (s *NameSet) Bytes() int {
	if s == nil {
		return 0
	}
	return s.key.bytes
}

// Chunks returns the chunks of the set. The list must not be modified.
func (s *NameSet) Chunks() []*NameChunk {
	if s == nil {
		return nil
	}
	return s.chunks
}

// Has reports whether the name is in the set.
func (s *NameSet) Has(name string) bool {
	chunks := s.Chunks()
	i := sort.Search(len(chunks), func(i int) bool { return chunks[i].names[0] > name })
	if i == 0 {
		return false
	}
	_, ok := slices.BinarySearch(chunks[i-1].names, name)
	return ok
}

// HasAll reports whether all names of another set are in the set. It costs little for
// chunks that the sets share.
func (s *NameSet) HasAll(other *NameSet) bool {
	chunks := s.Chunks()
	for _, c := range other.Chunks() {
		for len(chunks) > 0 && chunks[0].names[0] < c.names[0] {
			chunks = chunks[1:]
		}
		if len(chunks) > 0 && chunks[0] == c {
			continue
		}
		if slices.ContainsFunc(c.names, func(name string) bool { return !s.Has(name) }) {
			return false
		}
	}
	return true
}

// All iterates over the sorted names.
func (s *NameSet) All() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, c := range s.Chunks() {
			for _, name := range c.names {
				if !yield(name) {
					return
				}
			}
		}
	}
}

// Names returns the sorted names, always as the same list. It must not be modified. The set
// keeps the list, which All does not need.
func (s *NameSet) Names() []string {
	if s == nil {
		return nil
	}
	if len(s.chunks) == 1 {
		return s.chunks[0].names
	}
	if s.list.Load() == nil {
		names := slices.AppendSeq(make([]string, 0, s.key.len), s.All())
		s.list.CompareAndSwap(nil, &names)
	}
	return *s.list.Load()
}

// setKey identifies a set by content. The seed of the hashes never leaves the process, so
// a peer cannot search for sets with equal keys.
type setKey struct {
	sum   uint64
	len   int
	bytes int
}

func (k setKey) plus(other setKey) setKey {
	return setKey{k.sum + other.sum, k.len + other.len, k.bytes + other.bytes}
}

func (k setKey) minus(other setKey) setKey {
	return setKey{k.sum - other.sum, k.len - other.len, k.bytes - other.bytes}
}

// NameSets makes name sets and lets equal sets be one as long as it is in use. Several
// goroutines may use it.
type NameSets struct {
	seed maphash.Seed
	mu   sync.Mutex
	sets map[setKey]weak.Pointer[NameSet]
	// chunks holds the chunks of all sets.
	chunks map[setKey]weak.Pointer[NameChunk]
	// lists maps the hashes of encoded lists to their sets, see ServerCodec.
	lists map[uint64]weak.Pointer[NameSet]
}

// NewNameSets returns an empty NameSets.
func NewNameSets() *NameSets {
	return &NameSets{
		seed: maphash.MakeSeed(), sets: make(map[setKey]weak.Pointer[NameSet]),
		chunks: make(map[setKey]weak.Pointer[NameChunk]), lists: make(map[uint64]weak.Pointer[NameSet]),
	}
}

// Of returns the set of names, which may repeat and come in any order. If the set exists,
// they are not even sorted.
func (t *NameSets) Of(names []string) *NameSet {
	if s, ok := t.find(t.key(names)); ok {
		return s
	}
	return t.With(nil, names)
}

// With returns the set with the names added. The cost depends on the number of names
// only, plus the chunks that they change if the result does not exist yet.
func (t *NameSets) With(s *NameSet, names []string) *NameSet {
	added := sortedNames(names, func(n string) bool { return !s.Has(n) })
	if len(added) == 0 {
		return s
	}
	return t.edit(s, s.id().plus(t.key(added)), added, nil)
}

// Without returns the set with the names removed, at the same cost as With.
func (t *NameSets) Without(s *NameSet, names []string) *NameSet {
	gone := sortedNames(names, s.Has)
	if len(gone) == 0 {
		return s
	}
	return t.edit(s, s.id().minus(t.key(gone)), nil, gone)
}

func (s *NameSet) id() setKey {
	if s == nil {
		return setKey{}
	}
	return s.key
}

// edit returns the set with a key, which is s with some names added and others removed.
// Both lists are sorted; s has none of the first and all of the second.
func (t *NameSets) edit(s *NameSet, k setKey, added, gone []string) *NameSet {
	if found, ok := t.find(k); ok {
		return found
	}
	names := chunkEditor[*NameChunk, string]{
		elements: func(c *NameChunk) []string { return c.names },
		name:     func(name string) string { return name },
		ends:     func(name string) bool { return maphash.String(t.seed, name)%chunkNames == 0 },
		chunk:    func(names []string) *NameChunk { return chunkOf(t, t.key(names), names) },
	}
	return t.keep(&NameSet{key: k, chunks: names.edit(s.Chunks(), added, gone)})
}

// keep returns the set with the content of a new one, which is the new one if there is no other.
func (t *NameSets) keep(out *NameSet) *NameSet {
	t.mu.Lock()
	defer t.mu.Unlock()
	if found := t.sets[out.key].Value(); found != nil {
		return found
	}
	t.sets[out.key] = weak.Make(out)
	runtime.AddCleanup(out, t.drop, out.key)
	return out
}

// chunkOf returns the chunk of sorted names, by its key. A new one keeps copies of them in one piece of
// memory, as the names may be parts of a request.
func chunkOf[N string | []byte](t *NameSets, k setKey, names []N) *NameChunk {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.chunks[k].Value(); known != nil {
		return known
	}
	all := make([]byte, 0, k.bytes)
	for _, n := range names {
		all = append(all, n...)
	}
	c, text := &NameChunk{names: make([]string, len(names)), key: k}, string(all)
	for i, n := range names {
		c.names[i], text = text[:len(n)], text[len(n):]
	}
	t.chunks[k] = weak.Make(c)
	runtime.AddCleanup(c, t.dropChunk, k)
	return c
}

// chunkNames is the usual number of names in a chunk.
const chunkNames = 64

// sortedNames returns the wanted names, sorted and without repetition.
func sortedNames(names []string, wanted func(string) bool) []string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		if wanted(n) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Size returns the number of sets in use.
func (t *NameSets) Size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sets)
}

func (t *NameSets) key(names []string) setKey {
	k := setKey{len: len(names)}
	for _, n := range names {
		k.sum += maphash.String(t.seed, n)
		k.bytes += len(n)
	}
	return k
}

func (t *NameSets) find(k setKey) (*NameSet, bool) {
	if k.len == 0 {
		return nil, true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.sets[k].Value()
	return s, s != nil
}

func (t *NameSets) drop(k setKey)      { drop(t, t.sets, k) }
func (t *NameSets) dropChunk(k setKey) { drop(t, t.chunks, k) }

// drop removes a value that is not in use, unless an equal one was made since.
func drop[T any](t *NameSets, of map[setKey]weak.Pointer[T], k setKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if of[k].Value() == nil {
		delete(of, k)
	}
}

// maxKnown bounds the known lists; when it is reached, all are dropped.
const maxKnown = 1 << 16

// known returns the set of an encoded list by its hash, or nil if it is new.
func (t *NameSets) known(sum uint64) *NameSet {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lists[sum].Value()
}

func (t *NameSets) know(sum uint64, s *NameSet) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lists) >= maxKnown {
		clear(t.lists)
	}
	t.lists[sum] = weak.Make(s)
}
