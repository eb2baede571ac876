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
// the memory of the rest.
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

// chunkParts is the number of parts of a new chunk. Lists share whole chunks, and each
// chunk is a buffer of responses.
const chunkParts = 16

func newChunk(parts []*Part) *chunk {
	c := &chunk{parts: parts}
	size := 0
	for _, p := range parts {
		size += len(p.Wire)
	}
	c.wire = make([]byte, 0, size)
	for _, p := range parts {
		c.wire = append(c.wire, p.Wire...)
		c.sum = c.sum.plus(p.sum)
	}
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
		out.add(merge(c.parts, names[:n], changes))
		names = names[n:]
	}
	out.add(merge(nil, names, changes)) // only if there were no chunks
	for _, c := range out.chunks {
		out.size += len(c.wire)
		out.sum = out.sum.plus(c.sum)
	}
	return out
}

// merge applies changes to sorted parts.
func merge(parts []*Part, names []string, changes map[string]*Part) []*Part {
	out := make([]*Part, 0, len(parts)+len(names))
	for _, name := range names {
		for len(parts) > 0 && parts[0].Name < name {
			out, parts = append(out, parts[0]), parts[1:]
		}
		if len(parts) > 0 && parts[0].Name == name {
			parts = parts[1:]
		}
		if changed := changes[name]; changed != nil {
			out = append(out, changed)
		}
	}
	return append(out, parts...)
}

// add adds parts in chunks.
func (p *Parts) add(parts []*Part) {
	if len(parts) <= 2*chunkParts && len(parts) > 0 {
		p.chunks = append(p.chunks, newChunk(parts))
		return
	}
	for part := range slices.Chunk(parts, chunkParts) {
		p.chunks = append(p.chunks, newChunk(part))
	}
}
