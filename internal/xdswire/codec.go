package xdswire

import (
	"hash/maphash"
	"sync"
	"weak"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
)

// ServerCodec is a Codec that knows long lists of names again. In the state of
// the world variant a proxy repeats all names it wants with every ACK, in its
// own order: that list is compared as bytes and not decoded anew.
type ServerCodec struct {
	Codec
	names   *NameSets
	scratch *sync.Pool // of *[]byte
}

var _ encoding.CodecV2 = ServerCodec{}

// NewServerCodec makes the codec of servers whose sets of names are those.
// Lists of many names in requests that it decodes are those of sets: sorted,
// each name once, and not to be changed. Depth is that of a Codec.
func NewServerCodec(names *NameSets, depth int) ServerCodec {
	return ServerCodec{Codec: Codec{Depth: depth}, names: names, scratch: &sync.Pool{New: func() any { return new([]byte) }}}
}

const (
	// longRequest is the size from which a request's names are compared.
	longRequest = 4 << 10
	// maxScratch is the size of the largest request whose memory is kept.
	maxScratch = 256 << 10
)

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
	req, ok := v.(*discoveryv3.DiscoveryRequest)
	if !ok || data.Len() < longRequest {
		return c.Codec.Unmarshal(data, v)
	}
	scratch, ok := c.scratch.Get().(*[]byte)
	if !ok {
		return c.Codec.Unmarshal(data, v)
	}
	b := (*scratch)[:0]
	for _, piece := range data {
		b = append(b, piece.ReadOnlyData()...)
	}
	if cap(b) <= maxScratch {
		defer func() {
			*scratch = b
			c.scratch.Put(scratch)
		}()
	}
	sum, rest, ok := c.split(b)
	if !ok {
		return c.unmarshal(b, req) // which says what is wrong
	}
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

// split hashes the names of an encoded DiscoveryRequest and copies its other
// fields. It reports false when the request is malformed.
func (c ServerCodec) split(b []byte) (sum uint64, rest []byte, ok bool) {
	var hash maphash.Hash
	hash.SetSeed(c.names.seed)
	for len(b) > 0 {
		// Names follow each other, so they are hashed at once, with the tags
		// and lengths that keep them apart.
		names := b
		for len(b) > 0 && b[0] == fieldResourceNames<<3|byte(protowire.BytesType) {
			_, n := protowire.ConsumeBytes(b[1:])
			if n < 0 {
				return 0, nil, false
			}
			b = b[1+n:]
		}
		_, _ = hash.Write(names[:len(names)-len(b)]) // never fails
		if len(b) == 0 {
			break
		}
		num, _, n := protowire.ConsumeField(b)
		if n < 0 || num == fieldResourceNames { // with another tag than encoders write
			return 0, nil, false
		}
		rest = append(rest, b[:n]...)
		b = b[n:]
	}
	return hash.Sum64(), rest, true
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
