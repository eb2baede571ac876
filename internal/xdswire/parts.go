package xdswire

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"sort"
	"sync"

	"google.golang.org/grpc/mem"
)

// Part is an encoded part of a message, such as one virtual host of a route
// configuration. It is immutable.
type Part struct {
	Name  string
	start []byte
	end   *PartEnd // or nil
	sum   sum
}

// NewPart returns a part.
func NewPart(name string, wire []byte) Part { return Part{name, wire, nil, sumOf(wire)} }

// PartEnd is the end of the encoding of several parts, which share its memory.
type PartEnd struct {
	wire []byte
	sum  []byte
}

// NewPartEnd returns the end whose encoding comes in pieces.
func NewPartEnd(wire ...[]byte) *PartEnd {
	end := bytes.Join(wire, nil)
	sum := sha256.Sum256(end)
	return &PartEnd{end, sum[:]}
}

// Part returns a part whose encoding starts with some bytes. It copies and hashes only these.
func (e *PartEnd) Part(name string, start []byte) Part {
	return Part{name, bytes.Clone(start), e, sumOf(append(start, e.sum...))}
}

// Wire returns the encoding. The caller must not change it.
func (p *Part) Wire() []byte {
	if p.end == nil {
		return p.start
	}
	return encoded([]*Part{p})
}

func (p *Part) size() int {
	if p.end == nil {
		return len(p.start)
	}
	return len(p.start) + len(p.end.wire)
}

// sum is a hash of encoded parts: the sum of their hashes, so that a change costs only as
// much as it touches.
type sum [2]uint64

func sumOf(wire []byte) sum {
	h := sha256.Sum256(wire)
	return sum{binary.BigEndian.Uint64(h[:8]), binary.BigEndian.Uint64(h[8:16])}
}

func (s sum) plus(other sum) sum { return sum{s[0] + other[0], s[1] + other[1]} }

// Parts is an immutable list of parts, sorted by name. Lists that differ in few parts share
// the memory of the rest. A list that grew by many changes is in many chunks.
type Parts struct {
	chunks []*chunk
	size   int // bytes
	sum    sum
}

// chunk holds consecutive parts. They are encoded together at the first use, because resources that
// are delivered part by part need no encoding of chunks.
type chunk struct {
	parts []*Part
	size  int // bytes
	sum   sum
	// The encoding of a chunk that is a piece of a former one starts at an offset in its encoding.
	former *chunk
	offset int
	once   sync.Once
	wire   mem.SliceBuffer
}

// chunkParts is the number of parts of a new chunk. Each chunk is a buffer of responses.
const chunkParts = 16

func newChunk(parts []*Part) *chunk {
	c := &chunk{parts: parts}
	for _, p := range parts {
		c.size += p.size()
		c.sum = c.sum.plus(p.sum)
	}
	return c
}

// piece returns the chunk of n parts from an index.
func (c *chunk) piece(from, n int) *chunk {
	if n == len(c.parts) {
		return c
	}
	out := newChunk(c.parts[from : from+n])
	out.former, out.offset = c, c.offset
	if c.former != nil {
		out.former = c.former
	}
	for _, p := range c.parts[:from] {
		out.offset += p.size()
	}
	return out
}

// encoding returns the encoding.
func (c *chunk) encoding() mem.SliceBuffer {
	c.once.Do(func() {
		if c.former == nil {
			c.wire = encoded(c.parts)
			return
		}
		end := c.offset + c.size
		c.wire = c.former.encoding()[c.offset:end:end]
	})
	return c.wire
}

// With returns a list with the changes applied: nil removes the part with the name. p may
// be nil, which is empty.
func (p *Parts) With(changes map[string]*Part) *Parts {
	out := &Parts{}
	var old []*chunk
	if p != nil {
		old = p.chunks
	}
	names := slices.AppendSeq(make([]string, 0, len(changes)), maps.Keys(changes))
	slices.Sort(names)
	for i, c := range old {
		// The first chunk also takes the names before it.
		n := len(names)
		if i+1 < len(old) {
			n = sort.SearchStrings(names, old[i+1].parts[0].Name)
		}
		if n == 0 {
			out.chunks = append(out.chunks, c)
			continue
		}
		out.replace(c, names[:n], changes)
		names = names[n:]
	}
	out.replace(&chunk{}, names, changes) // only if there were no chunks
	for _, c := range out.chunks {
		out.size += c.size
		out.sum = out.sum.plus(c.sum)
	}
	return out
}

// Len returns the number of parts.
func (p *Parts) Len() (n int) {
	if p != nil {
		for _, c := range p.chunks {
			n += len(c.parts)
		}
	}
	return n
}

// All iterates over the parts, sorted by name.
func (p *Parts) All(yield func(*Part) bool) {
	if p == nil {
		return
	}
	for _, c := range p.chunks {
		for _, part := range c.parts {
			if !yield(part) {
				return
			}
		}
	}
}

// replace adds the parts of a chunk with changes applied. Parts that stay keep the memory
// of the chunk.
func (p *Parts) replace(c *chunk, names []string, changes map[string]*Part) {
	parts := c.parts
	var fresh []*Part
	keep := func(n int) {
		if n == 0 {
			return
		}
		p.add(fresh)
		fresh = nil
		p.chunks = append(p.chunks, c.piece(len(c.parts)-len(parts), n))
		parts = parts[n:]
	}
	for _, name := range names {
		keep(sort.Search(len(parts), func(i int) bool { return parts[i].Name >= name }))
		if len(parts) > 0 && parts[0].Name == name {
			parts = parts[1:]
		}
		if changed := changes[name]; changed != nil {
			fresh = append(fresh, changed)
		}
	}
	keep(len(parts))
	p.add(fresh)
}

// add adds parts in chunks.
func (p *Parts) add(parts []*Part) {
	for chunk := range slices.Chunk(parts, chunkParts) {
		p.chunks = append(p.chunks, newChunk(chunk))
	}
}

// encoded returns the encoding of at most chunkParts parts.
func encoded(parts []*Part) []byte {
	var wires [2 * chunkParts][]byte
	for i, p := range parts {
		if wires[2*i] = p.start; p.end != nil {
			wires[2*i+1] = p.end.wire
		}
	}
	return bytes.Join(wires[:2*len(parts)], nil)
}
