package xdswire

import (
	"bytes"
	"hash/maphash"
	"slices"
	"sync"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
)

// unmarshalNames decodes a request and returns the set of its names, which it only decodes
// if it does not know their encoding. names returns the decoded names of the request.
func (c ServerCodec) unmarshalNames(b []byte, req protobuf.Message, names func() []string) (*NameSet, error) {
	encoded, rest, ok := split(b)
	var set *NameSet
	if ok {
		set, ok = c.names.encoded(encoded)
	}
	if !ok {
		if err := c.unmarshal(b, req); err != nil { // a malformed request gets its error here
			return nil, err
		}
		return c.names.Of(names()), nil
	}
	return set, c.unmarshal(rest, req)
}

// encoded returns the set of the encoded names of a request. It reports false if a name is not UTF-8.
func (t *NameSets) encoded(b []byte) (*NameSet, bool) {
	sum := maphash.Bytes(t.seed, b)
	if set := t.known(sum); set != nil {
		return set, true
	}
	list, _ := namesOfRequests.Get().(*[][]byte)
	names := (*list)[:0]
	defer func() {
		clear(names)
		*list = names
		namesOfRequests.Put(list)
	}()
	var k setKey
	for at := 0; at < len(b); {
		var start int
		start, at = nextName(b, at)
		name := b[start:at]
		if !utf8.Valid(name) {
			return nil, false
		}
		names = append(names, name)
		k = k.plus(setKey{maphash.Bytes(t.seed, name), 1, len(name)})
	}
	set, ok := t.find(k)
	if !ok {
		if !slices.IsSortedFunc(names, bytes.Compare) {
			slices.SortFunc(names, bytes.Compare)
		}
		set = t.ofSorted(slices.CompactFunc(names, bytes.Equal))
	}
	t.know(sum, set)
	return set, true
}

// namesOfRequests holds lists for the names of requests that are being decoded.
var namesOfRequests = sync.Pool{New: func() any { return new([][]byte) }}

// ofSorted returns the set of sorted names. It copies only the names of chunks that no set has.
func (t *NameSets) ofSorted(names [][]byte) *NameSet {
	out := &NameSet{}
	var k setKey // of the next chunk
	from := 0
	for i, name := range names {
		hash := maphash.Bytes(t.seed, name)
		k = k.plus(setKey{hash, 1, len(name)})
		if hash%chunkNames == 0 || i+1 == len(names) {
			out.chunks = append(out.chunks, chunkOf(t, k, names[from:i+1]))
			out.key = out.key.plus(k)
			k, from = setKey{}, i+1
		}
	}
	out.chunks = slices.Clip(out.chunks)
	return t.keep(out)
}

// nextName returns the start and the end of the name whose tag is at an index.
func nextName(encoded []byte, tag int) (start, end int) {
	size, n := protowire.ConsumeVarint(encoded[tag+1:])
	start = tag + 1 + n
	return start, start + int(size)
}

// fieldNames holds the names in requests of both variants.
const fieldNames = 3

// split cuts the names, which are consecutive, out of an encoded request; rest is a copy of
// its other fields. It reports false for a malformed request, and for an encoding that no
// encoder writes.
func split(b []byte) (names, rest []byte, ok bool) {
	for len(b) > 0 {
		if b[0] == nameTag {
			if names != nil {
				return nil, nil, false
			}
			end := skipNames(b)
			if end < 0 {
				return nil, nil, false
			}
			names, b = b[:end], b[end:]
			continue
		}
		num, _, n := protowire.ConsumeField(b)
		if n < 0 || num == fieldNames { // the tag is not encoded as usual
			return nil, nil, false
		}
		rest = append(rest, b[:n]...)
		b = b[n:]
	}
	return names, rest, true
}

const nameTag = fieldNames<<3 | byte(protowire.BytesType)

// skipNames returns the end of the names at the start of b, or -1 if one is truncated. It
// reads the usual length of one byte itself, as every ACK may have a thousand names.
func skipNames(b []byte) int {
	i := 0
	for i < len(b) && b[i] == nameTag {
		if i+1 < len(b) && b[i+1] < 0x80 {
			i += 2 + int(b[i+1])
			continue
		}
		_, n := protowire.ConsumeBytes(b[i+1:])
		if n < 0 {
			return -1
		}
		i += 1 + n
	}
	if i > len(b) {
		return -1
	}
	return i
}
