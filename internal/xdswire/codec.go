package xdswire

import (
	"errors"
	"fmt"
	"hash/maphash"
	"weak"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
)

// ServerCodec is a Codec that knows long lists of names again. In the state of
// the world variant a proxy repeats all names it wants with every ACK, in its
// own order: that list is compared as bytes and not decoded anew. In the delta
// variant it tells once, when it connects, all that it holds with versions; when a
// control plane starts again, all proxies do.
type ServerCodec struct {
	Codec
	names *NameSets
	max   RequestLimits
}

// RequestLimits bound what a request is made of. It is looked at before it is
// decoded: two bytes of it may become a hundred.
type RequestLimits struct {
	// Depth is how deep messages may be nested, themselves included; 0 means the
	// 10,000 levels of the ordinary codec.
	Depth int
	// Names is how many names, versions of resources included, a request may
	// have; 0 means any number.
	Names int
	// Other is how many bytes everything else may take; 0 means any number.
	Other int
}

// ErrTooManyNames is that a request has more names than RequestLimits allow.
var ErrTooManyNames = errors.New("too many names")

var _ encoding.CodecV2 = ServerCodec{}

// NewServerCodec makes the codec of servers whose sets of names are those.
// Lists of many names in requests that it decodes are those of sets: sorted,
// each name once, and not to be changed.
func NewServerCodec(names *NameSets, most RequestLimits) ServerCodec {
	return ServerCodec{Codec: Codec{Depth: most.Depth}, names: names, max: most}
}

// longRequest is the size from which the lists of a request are looked at.
const longRequest = 4 << 10

// Received takes a message from a stream, and notes in Err that it cannot be
// decoded. Of an error of the codec gRPC would tell the peer itself, as one of
// the server.
type Received struct {
	Message protobuf.Message
	Err     error
}

// Unmarshal implements encoding.CodecV2.
func (c ServerCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(*Received); ok {
		r.Err = c.Unmarshal(data, r.Message)
		return nil
	}
	return whole(data, v, c.decode)
}

func (c ServerCodec) decode(b []byte, m protobuf.Message) error {
	if len(b) < longRequest {
		return c.unmarshal(b, m)
	}
	switch req := m.(type) {
	case *discoveryv3.DiscoveryRequest:
		if err := c.check(b, fieldResourceNames, fieldResourceNames); err != nil {
			return err
		}
		return c.sotw(b, req)
	case *discoveryv3.DeltaDiscoveryRequest:
		if err := c.check(b, fieldSubscribe, fieldHeldVersions); err != nil {
			return err
		}
		return c.delta(b, req)
	default:
		if err := c.check(b, 0, 0); err != nil {
			return err
		}
		return c.unmarshal(b, m)
	}
}

// check applies the limits to an encoded request of which the fields from first to
// last are names. What is malformed is for the decoder to refuse.
func (c ServerCodec) check(b []byte, first, last protowire.Number) error {
	names, other := 0, 0
	eachField(b, func(num protowire.Number, _ protowire.Type, from, to int) bool {
		if first <= num && num <= last {
			names++
		} else {
			other += to - from
		}
		return true
	})
	switch {
	case c.max.Names > 0 && names > c.max.Names:
		return fmt.Errorf("%w: the request has %d, at most %d are accepted", ErrTooManyNames, names, c.max.Names)
	case c.max.Other > 0 && other > c.max.Other:
		return fmt.Errorf("the request has %d bytes besides names, at most %d are accepted", other, c.max.Other)
	}
	return nil
}

func (c ServerCodec) sotw(b []byte, req *discoveryv3.DiscoveryRequest) error {
	names, rest, ok := split(b)
	if !ok {
		if err := c.unmarshal(b, req); err != nil { // which says what is wrong
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

// split cuts the names, which follow each other, out of an encoded
// DiscoveryRequest; rest is a copy of its other fields. It reports false when the
// request is malformed, or as no encoder writes it.
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
		if n < 0 || num == fieldResourceNames { // with another tag than encoders write
			return nil, nil, false
		}
		rest = append(rest, b[:n]...)
		b = b[n:]
	}
	return names, rest, true
}

const nameTag = fieldResourceNames<<3 | byte(protowire.BytesType)

// skipNames is where the names end with which b begins, -1 when one is cut. It
// sees a thousand of them with every ACK, so that a length of one byte, as most
// are, is not decoded by a call.
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
