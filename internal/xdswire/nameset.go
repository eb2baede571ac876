package xdswire

import (
	"hash/maphash"
	"runtime"
	"slices"
	"sync"
	"weak"
)

// NameSet is an immutable set of resource names. Sets come from a NameSets,
// where equal sets are one, so comparing pointers compares content. The nil
// set is the empty one.
type NameSet struct {
	names []string // sorted
	key   setKey
}

// Len is the number of names.
func (s *NameSet) Len() int {
	if s == nil {
		return 0
	}
	return len(s.names)
}

// Bytes is the length of all names together.
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

// Names lists the set in order. The list must not be changed.
func (s *NameSet) Names() []string {
	if s == nil {
		return nil
	}
	return s.names
}

// Is reports whether the list is the one that Names returns. Another list of
// the same names is not, so the answer costs nothing.
func (s *NameSet) Is(names []string) bool {
	return len(names) > 0 && len(names) == s.Len() && &names[0] == &s.names[0]
}

// setKey finds a set by content. The sum is of keyed hashes whose key never
// leaves the process, so sets that differ have different keys in practice
// and a peer cannot look for names that collide.
type setKey struct {
	sum   uint64
	len   int
	bytes int
}

// NameSets makes name sets and lets equal ones be the same for as long as
// somebody holds them. It is safe for use by several goroutines.
type NameSets struct {
	seed maphash.Seed
	mu   sync.Mutex
	sets map[setKey]weak.Pointer[NameSet]
	// lists are sets by the hash of an encoded list, see ServerCodec.
	lists map[uint64]weak.Pointer[NameSet]
}

// NewNameSets returns an empty NameSets.
func NewNameSets() *NameSets {
	return &NameSets{
		seed: maphash.MakeSeed(), sets: make(map[setKey]weak.Pointer[NameSet]),
		lists: make(map[uint64]weak.Pointer[NameSet]),
	}
}

// Of is the set of the names, in any order and perhaps repeated. When the set
// exists already, the names are not even sorted.
func (t *NameSets) Of(names []string) *NameSet {
	if s, ok := t.find(t.key(names)); ok {
		return s
	}
	sorted := slices.Clone(names)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	return t.intern(t.key(sorted), sorted)
}

// With is the set with the names added. It costs as much as the names do, and
// a copy of the set when there is no such set yet.
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

// Without is the set with the names removed, at the same cost.
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

// sortedNames are those of the names that are wanted, each once.
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

// Size is the number of sets that are in use.
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

// intern returns the set of the names, which are sorted and belong to it.
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

// drop forgets a set that nobody holds, unless an equal one was made since.
func (t *NameSets) drop(k setKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sets[k].Value() == nil {
		delete(t.sets, k)
	}
}

// maxKnown bounds how many lists are known; beyond it all are forgotten.
const maxKnown = 1 << 16

// known is the set of a list that was seen before, by its hash, or nil.
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
