package xdswire

import (
	"hash/maphash"
	"runtime"
	"slices"
	"sync"
	"weak"
)

// NameSet is an immutable set of resource names. A NameSets makes sets and keeps only one
// of equal content, so equal sets have equal pointers. Nil is the empty set.
type NameSet struct {
	names []string // sorted
	key   setKey
}

// Len returns the number of names.
func (s *NameSet) Len() int {
	if s == nil {
		return 0
	}
	return len(s.names)
}

// Bytes returns the total length of the names.
func (s *NameSet) Bytes() int {
	if s == nil {
		return 0
	}
	return s.key.bytes
}

// Has reports whether the name is in the set.
func (s *NameSet) Has(name string) bool {
	if s == nil {
		return false
	}
	_, ok := slices.BinarySearch(s.names, name)
	return ok
}

// Names returns the sorted names. The list must not be modified.
func (s *NameSet) Names() []string {
	if s == nil {
		return nil
	}
	return s.names
}

// Is reports whether the list is the very list that Names returns. The check costs
// nothing; it is false for a copy of the list.
func (s *NameSet) Is(names []string) bool {
	return len(names) > 0 && len(names) == s.Len() && &names[0] == &s.names[0]
}

// setKey identifies a set by content. The seed of the hashes never leaves the process, so
// a peer cannot search for sets with equal keys.
type setKey struct {
	sum   uint64
	len   int
	bytes int
}

// NameSets makes name sets and lets equal sets be one as long as it is in use. Several
// goroutines may use it.
type NameSets struct {
	seed maphash.Seed
	mu   sync.Mutex
	sets map[setKey]weak.Pointer[NameSet]
	// lists maps the hashes of encoded lists to their sets, see ServerCodec.
	lists map[uint64]weak.Pointer[NameSet]
}

// NewNameSets returns an empty NameSets.
func NewNameSets() *NameSets {
	return &NameSets{
		seed: maphash.MakeSeed(), sets: make(map[setKey]weak.Pointer[NameSet]),
		lists: make(map[uint64]weak.Pointer[NameSet]),
	}
}

// Of returns the set of names, which may repeat and come in any order. If the set exists,
// they are not even sorted.
func (t *NameSets) Of(names []string) *NameSet {
	if s, ok := t.find(t.key(names)); ok {
		return s
	}
	sorted := slices.Clone(names)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	return t.intern(t.key(sorted), sorted)
}

// With returns the set with the names added. The cost depends on the number of names
// only, plus a copy of the set if the result does not exist yet.
func (t *NameSets) With(s *NameSet, names []string) *NameSet {
	added := sortedNames(names, func(n string) bool { return !s.Has(n) })
	if len(added) == 0 {
		return s
	}
	if s == nil {
		return t.intern(t.key(added), added)
	}
	k := t.key(added)
	k.sum, k.len, k.bytes = s.key.sum+k.sum, s.key.len+k.len, s.key.bytes+k.bytes
	if found, ok := t.find(k); ok {
		return found
	}
	all, rest := make([]string, 0, k.len), s.names
	for _, n := range added {
		i, _ := slices.BinarySearch(rest, n)
		all, rest = append(append(all, rest[:i]...), n), rest[i:]
	}
	return t.intern(k, append(all, rest...))
}

// Without returns the set with the names removed, at the same cost as With.
func (t *NameSets) Without(s *NameSet, names []string) *NameSet {
	gone := sortedNames(names, s.Has)
	if len(gone) == 0 {
		return s
	}
	k := t.key(gone)
	k.sum, k.len, k.bytes = s.key.sum-k.sum, s.key.len-k.len, s.key.bytes-k.bytes
	if found, ok := t.find(k); ok {
		return found
	}
	left, rest := make([]string, 0, k.len), s.names
	for _, n := range gone {
		i, _ := slices.BinarySearch(rest, n)
		left, rest = append(left, rest[:i]...), rest[i+1:]
	}
	return t.intern(k, append(left, rest...))
}

// sortedNames returns the wanted names, sorted and without repetition.
func sortedNames(names []string, wanted func(string) bool) []string {
	var out []string
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

// intern returns the set of sorted names, and takes over the list.
func (t *NameSets) intern(k setKey, names []string) *NameSet {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.sets[k].Value(); s != nil {
		return s
	}
	s := &NameSet{names: names, key: k}
	t.sets[k] = weak.Make(s)
	runtime.AddCleanup(s, t.drop, k)
	return s
}

// drop removes a set that is not in use, unless an equal one was made since.
func (t *NameSets) drop(k setKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sets[k].Value() == nil {
		delete(t.sets, k)
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
