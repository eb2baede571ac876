package xdswire

import (
	"bytes"
	"hash/maphash"
	"slices"
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
func (t *NameSets) encoded(names []byte) (*NameSet, bool) {
	sum := maphash.Bytes(t.seed, names)
	if set := t.known(sum); set != nil {
		return set, true
	}
	set, ok := t.ofSorted(names)
	if !ok {
		list := listOf(names)
		if slices.ContainsFunc(list, func(name string) bool { return !utf8.ValidString(name) }) {
			return nil, false
		}
		set = t.Of(list)
	}
	t.know(sum, set)
	return set, true
}

// ofSorted returns the set of encoded names. It reports false if they are not sorted, or not UTF-8.
// It decodes only the chunks that no set has.
func (t *NameSets) ofSorted(encoded []byte) (*NameSet, bool) {
	out := &NameSet{}
	var k setKey // of the next chunk
	var last []byte
	from := 0
	for at := 0; at < len(encoded); {
		start, end := nextName(encoded, at)
		name := encoded[start:end]
		if at > 0 && bytes.Compare(last, name) >= 0 || !utf8.Valid(name) {
			return nil, false
		}
		last, at = name, end
		hash := maphash.Bytes(t.seed, name)
		k = k.plus(setKey{hash, 1, len(name)})
		if hash%chunkNames == 0 || at == len(encoded) {
			names := encoded[from:at]
			out.chunks = append(out.chunks, t.chunkWith(k, func() []string { return listOf(names) }))
			out.key = out.key.plus(k)
			k, from = setKey{}, at
		}
	}
	if found, ok := t.find(out.key); ok {
		return found, true
	}
	out.chunks = slices.Clip(out.chunks)
	return t.keep(out), true
}

// listOf decodes consecutive names, which share memory.
func listOf(encoded []byte) []string {
	count := 0
	for i := 0; i < len(encoded); count++ {
		_, i = nextName(encoded, i)
	}
	text := string(encoded)
	names := make([]string, count)
	at := 0
	for i := range names {
		var start int
		start, at = nextName(encoded, at)
		names[i] = text[start:at]
	}
	return names
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
