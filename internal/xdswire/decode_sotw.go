package xdswire

import (
	"hash/maphash"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
)

func (c ServerCodec) sotw(b []byte, req *discoveryv3.DiscoveryRequest) error {
	names, rest, ok := split(b)
	if !ok {
		if err := c.unmarshal(b, req); err != nil { // a malformed request gets its error here
			return err
		}
		req.ResourceNames = c.names.Of(req.GetResourceNames()).Names()
		return nil
	}
	sum := maphash.Bytes(c.names.seed, names)
	set := c.names.known(sum)
	if set == nil {
		if err := c.unmarshal(b, req); err != nil {
			return err
		}
		set = c.names.Of(req.GetResourceNames())
		c.names.know(sum, set)
	} else if err := c.unmarshal(rest, req); err != nil {
		return err
	}
	req.ResourceNames = set.Names()
	return nil
}

const fieldResourceNames = 3 // of DiscoveryRequest

// split cuts the names, which are consecutive, out of an encoded DiscoveryRequest; rest is
// a copy of its other fields. It reports false for a malformed request, and for an
// encoding that no encoder writes.
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
		if n < 0 || num == fieldResourceNames { // the tag is not encoded as usual
			return nil, nil, false
		}
		rest = append(rest, b[:n]...)
		b = b[n:]
	}
	return names, rest, true
}

const nameTag = fieldResourceNames<<3 | byte(protowire.BytesType)

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
