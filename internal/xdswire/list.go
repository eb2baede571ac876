package xdswire

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
	"iter"
	"slices"
	"sort"
	"sync/atomic"

	"google.golang.org/grpc/mem"
)

// List is an immutable list of resources, sorted by name, with one resource for each name. Lists that
// SharedList and Edit return share the chunks of equal ranges. Nil is the empty list.
type List struct {
	chunks []*listChunk
	len    int
	sum    uint64
}

// listChunk holds consecutive resources of lists. A hash of the last name decides where it ends, so
// equal ranges of lists are equal chunks. It is never empty.
type listChunk struct {
	resources []*Resource
	sum       uint64 // of the hashes of the resources, in a shared list
	buffers   int    // of the resources
	sent      [2]sentChunk
}

// sentChunk is the encoding of a chunk in one variant.
type sentChunk struct {
	size   int
	uses   atomic.Int32
	joined atomic.Pointer[mem.BufferSlice] // nil before joinAfter uses
}

// NewList returns a list of sorted resources. It shares no memory with other lists and has no sum.
func NewList(resources ...*Resource) *List {
	if len(resources) == 0 {
		return nil
	}
	return &List{chunks: []*listChunk{newListChunk(resources)}, len: len(resources)}
}

// SharedList returns the list of sorted resources.
func SharedList(resources ...*Resource) *List {
	return (*List)(nil).Edit(resources, nil)
}

// Edit returns the list with resources added or replaced and with names removed. Both are sorted and
// have no names in common. The list must be shared.
func (l *List) Edit(changed []*Resource, removed []string) *List {
	out := &List{chunks: listEditor.edit(l.all(), changed, removed)}
	for _, c := range out.chunks {
		out.len += len(c.resources)
		out.sum += c.sum
	}
	return out
}

// listEditor edits shared lists.
var listEditor = chunkEditor[*listChunk, *Resource]{
	elements: func(c *listChunk) []*Resource { return c.resources },
	name:     func(r *Resource) string { return r.Name },
	ends:     func(name string) bool { return maphash.String(listSeed, name)%chunkResources == 0 },
	chunk:    sharedChunk,
}

// listSeed never leaves the process, so a user cannot choose names that make long chunks.
var listSeed = maphash.MakeSeed()

// chunkResources is the usual number of resources in a chunk.
const chunkResources = 32

// listChunks finds the chunks of shared lists by the IDs of their resources.
var listChunks = PartCache[chunkKey, listChunk]{parts: map[chunkKey]*cachedPart[listChunk]{}}

// chunkKey identifies a chunk by its resources. IDs are unique in the process.
type chunkKey struct {
	first, last uint64 // IDs
	hash        uint64 // of all IDs
	len         int
}

// sharedChunk returns the chunk of resources, which it copies for a new one.
func sharedChunk(resources []*Resource) *listChunk {
	key := chunkKey{first: resources[0].id, last: resources[len(resources)-1].id, len: len(resources)}
	for _, r := range resources {
		key.hash = maphash.Comparable(listSeed, [2]uint64{key.hash, r.id})
	}
	c, _ := listChunks.Get(key, func(chunkKey) (*listChunk, error) {
		c := newListChunk(slices.Clone(resources))
		for _, r := range resources {
			c.sum += r.hash()
		}
		return c, nil
	})
	return c
}

func newListChunk(resources []*Resource) *listChunk {
	c := &listChunk{resources: resources}
	for _, r := range resources {
		c.buffers += r.bufferCount()
		for v := range c.sent {
			c.sent[v].size += r.sizeIn(Variant(v))
		}
	}
	return c
}

// hash hashes name and content. Restarts of one build do not change the result.
func (r *Resource) hash() uint64 {
	var room [256]byte // enough for most names
	sum := sha256.Sum256(append(append(append(room[:0], r.Name...), 0), r.Version...))
	return binary.BigEndian.Uint64(sum[:])
}

// Len returns the number of resources.
func (l *List) Len() int {
	if l == nil {
		return 0
	}
	return l.len
}

// Sum returns the sum of hashes of the resources. Equal lists have equal sums in every process of a
// build.
func (l *List) Sum() uint64 {
	if l == nil {
		return 0
	}
	return l.sum
}

func (l *List) all() []*listChunk {
	if l == nil {
		return nil
	}
	return l.chunks
}

// All iterates over the resources.
func (l *List) All(yield func(*Resource) bool) {
	for _, c := range l.all() {
		for _, r := range c.resources {
			if !yield(r) {
				return
			}
		}
	}
}

// From iterates over the resources from a name on.
func (l *List) From(name string) iter.Seq[*Resource] {
	return func(yield func(*Resource) bool) {
		for i, c := range l.all()[l.chunkOf(name):] {
			resources := c.resources
			if i == 0 {
				first, _ := slices.BinarySearchFunc(resources, name, byName)
				resources = resources[first:]
			}
			for _, r := range resources {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// Get returns the resource with a name, or nil.
func (l *List) Get(name string) *Resource {
	chunks := l.all()[l.chunkOf(name):]
	if len(chunks) == 0 {
		return nil
	}
	at, ok := slices.BinarySearchFunc(chunks[0].resources, name, byName)
	if !ok {
		return nil
	}
	return chunks[0].resources[at]
}

// chunkOf returns the index of the chunk that has a name, if any has.
func (l *List) chunkOf(name string) int {
	chunks := l.all()
	return sort.Search(len(chunks), func(i int) bool {
		of := chunks[i].resources
		return of[len(of)-1].Name >= name
	})
}

func byName(r *Resource, name string) int { return cmp.Compare(r.Name, name) }

// Names returns the names of the resources.
func (l *List) Names() []string {
	names := make([]string, 0, l.Len())
	for r := range l.All {
		names = append(names, r.Name)
	}
	return names
}

// Since returns how the list differs from an older one: the changed resources, how many of them are
// new, and the removed names. It costs little for chunks that the lists share.
func (l *List) Since(old *List) (changed []*Resource, added int, removed []string) {
	was, is := listCursor{chunks: old.all()}, listCursor{chunks: l.all()}
	for {
		for was.at == 0 && is.at == 0 && len(was.chunks) > 0 && len(is.chunks) > 0 && was.chunks[0] == is.chunks[0] {
			was.chunks, is.chunks = was.chunks[1:], is.chunks[1:]
		}
		before, now := was.resource(), is.resource()
		switch {
		case before == nil && now == nil:
			return changed, added, removed
		case now == nil || before != nil && before.Name < now.Name:
			removed = append(removed, before.Name)
			was.next()
		case before == nil || now.Name < before.Name:
			changed, added = append(changed, now), added+1
			is.next()
		default:
			if !before.Equal(now) {
				changed = append(changed, now)
			}
			was.next()
			is.next()
		}
	}
}

// listCursor is a position in a list.
type listCursor struct {
	chunks []*listChunk // from the current one on
	at     int          // in the current one
}

// resource returns the resource at the position, nil at the end.
func (c *listCursor) resource() *Resource {
	if len(c.chunks) == 0 {
		return nil
	}
	return c.chunks[0].resources[c.at]
}

func (c *listCursor) next() {
	if c.at++; c.at == len(c.chunks[0].resources) {
		c.chunks, c.at = c.chunks[1:], 0
	}
}

// Body returns the resources in the encoding of a variant.
func (l *List) Body(v Variant) Body {
	b := Body{variant: v, list: l}
	for _, c := range l.all() {
		b.size += c.sent[v].size
		if joined := c.sent[v].joined.Load(); joined != nil {
			b.buffers += len(*joined)
		} else {
			b.buffers += c.buffers
		}
	}
	return b
}

// joinAfter is the number of responses with a chunk after which its small resources share buffers. A
// buffer for each resource of each response takes memory while the response is sent. A copy of the
// resources takes less memory if many responses use it.
const joinAfter = 32

// joinedSize is the size up to which resources share a buffer.
const joinedSize = 64 << 10

// appendTo appends the encoding of the chunk to a list of buffers.
func (c *listChunk) appendTo(to mem.BufferSlice, v Variant) mem.BufferSlice {
	s := &c.sent[v]
	if joined := s.joined.Load(); joined != nil {
		return append(to, *joined...)
	}
	start := len(to)
	for _, r := range c.resources {
		to = r.buffers(to, v)
	}
	if s.uses.Add(1) == joinAfter {
		joined := joinSmall(to[start:])
		s.joined.Store(&joined)
	}
	return to
}

// joinSmall returns the buffers with copies of consecutive small ones in a single one.
func joinSmall(buffers mem.BufferSlice) mem.BufferSlice {
	var out mem.BufferSlice
	for len(buffers) > 0 {
		n, size := 0, 0
		for n < len(buffers) && size+buffers[n].Len() <= joinedSize {
			size += buffers[n].Len()
			n++
		}
		if n < 2 {
			out, buffers = append(out, buffers[0]), buffers[1:]
			continue
		}
		out, buffers = append(out, mem.SliceBuffer(buffers[:n].Materialize())), buffers[n:]
	}
	return slices.Clip(out)
}
