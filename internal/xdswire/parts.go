package xdswire

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"sort"

	"google.golang.org/grpc/mem"
)

// Part is an encoded part of a message, such as one virtual host of a route
// configuration. It is immutable.
type Part struct {
	Name string
	Wire []byte
	sum  sum
}

// NewPart returns a part.
func NewPart(name string, wire []byte) Part { return Part{name, wire, sumOf(wire)} }

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

// chunk holds consecutive parts with their encoding.
type chunk struct {
	parts []*Part
	wire  mem.SliceBuffer
	sum   sum
}

// chunkParts is the number of parts of a new chunk. Each chunk is a buffer of responses.
const chunkParts = 16

// chunkOf returns a chunk of parts whose encoding is at the start of wire.
func chunkOf(parts []*Part, wire []byte) *chunk {
	c := &chunk{parts: parts}
	size := 0
	for _, p := range parts {
		size += len(p.Wire)
		c.sum = c.sum.plus(p.sum)
	}
	c.wire = wire[:size:size]
	return c
}

// With returns a list with the changes applied: nil removes the part with the name. p may
// be nil, which is empty.
func (p *Parts) With(changes map[string]*Part) *Parts {
	out := &Parts{}
	var old []*chunk
	if p != nil {
		old = p.chunks
	}
	names := slices.Sorted(maps.Keys(changes))
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
		out.size += len(c.wire)
		out.sum = out.sum.plus(c.sum)
	}
	return out
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
	parts, wire := c.parts, c.wire
	var fresh []*Part
	keep := func(n int) {
		if n == 0 {
			return
		}
		p.add(fresh)
		fresh = nil
		kept := chunkOf(parts[:n], wire)
		p.chunks = append(p.chunks, kept)
		parts, wire = parts[n:], wire[len(kept.wire):]
	}
	for _, name := range names {
		keep(sort.Search(len(parts), func(i int) bool { return parts[i].Name >= name }))
		if len(parts) > 0 && parts[0].Name == name {
			parts, wire = parts[1:], wire[len(parts[0].Wire):]
		}
		if changed := changes[name]; changed != nil {
			fresh = append(fresh, changed)
		}
	}
	keep(len(parts))
	p.add(fresh)
}

// add adds parts in chunks. A single part keeps its memory.
func (p *Parts) add(parts []*Part) {
	for chunk := range slices.Chunk(parts, chunkParts) {
		wire := chunk[0].Wire
		if len(chunk) > 1 {
			wire = encoded(chunk)
		}
		p.chunks = append(p.chunks, chunkOf(chunk, wire))
	}
}

// encoded returns the encoding of parts.
func encoded(parts []*Part) []byte {
	size := 0
	for _, p := range parts {
		size += len(p.Wire)
	}
	wire := make([]byte, 0, size)
	for _, p := range parts {
		wire = append(wire, p.Wire...)
	}
	return wire
}
