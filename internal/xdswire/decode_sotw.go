package xdswire

import (
	"hash/maphash"
	"unicode/utf8"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
)

func (c ServerCodec) sotw(b []byte, req *discoveryv3.DiscoveryRequest) error {
	set, err := c.unmarshalNames(b, req, req.GetResourceNames)
	if err != nil {
		return err
	}
	req.ResourceNames = set.Names()
	return nil
}

// unmarshalNames decodes a request and returns the set of its names, which it only decodes
// if it does not know their encoding. names returns the decoded names of the request.
func (c ServerCodec) unmarshalNames(b []byte, req protobuf.Message, names func() []string) (*NameSet, error) {
	encoded, rest, ok := split(b)
	sum := maphash.Bytes(c.names.seed, encoded)
	var list []string
	if ok {
		if set := c.names.known(sum); set != nil {
			return set, c.unmarshal(rest, req)
		}
		list, ok = listOf(encoded)
	}
	if !ok {
		if err := c.unmarshal(b, req); err != nil { // a malformed request gets its error here
			return nil, err
		}
		return c.names.Of(names()), nil
	}
	if err := c.unmarshal(rest, req); err != nil {
		return nil, err
	}
	set := c.names.Of(list)
	c.names.know(sum, set)
	return set, nil
}

// listOf decodes consecutive names, which share memory. It reports false if a name is not
// UTF-8.
func listOf(encoded []byte) (names []string, ok bool) {
	count := 0
	for i := 0; i < len(encoded); count++ {
		_, i = nextName(encoded, i)
	}
	text := string(encoded)
	names = make([]string, count)
	at := 0
	for i := range names {
		var start int
		start, at = nextName(encoded, at)
		if names[i] = text[start:at]; !utf8.ValidString(names[i]) {
			return nil, false
		}
	}
	return names, true
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
