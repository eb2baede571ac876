package xdswire

import (
	"errors"
	"fmt"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
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

// requests are the buffers in which requests are read and put together, by powers
// of two: ACKs, of which thousands come at once, get less than the 4 KB of gRPC's
// own pool, and the list of names in a request of 33 KB gets 64 KB, where gRPC
// would take, and clear, 1 MB.
var requests = mem.NewTieredBufferPool(1<<8, 1<<9, 1<<10, 1<<11, 1<<12, 1<<13, 1<<14, 1<<15, 1<<16, 1<<17, 1<<18, 1<<19, 1<<20, 1<<21, 1<<22)

// RequestBuffers is the pool with which servers read requests: that of Codec,
// which puts them together.
func RequestBuffers() mem.BufferPool { return requests }

// Codec is the gRPC codec of servers that send Frames. Every other message
// goes through the ordinary codec, so that it can be set for a whole server
// with grpc.ForceServerCodecV2.
type Codec struct {
	// Depth is how deep messages that are read may be nested, themselves
	// included; 0 means the 10,000 levels of the ordinary codec.
	Depth int
}

// Marshal implements encoding.CodecV2.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*Frame); ok {
		return f.Buffers(), nil
	}
	return encoding.GetCodecV2(proto.Name).Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error { return whole(data, v, c.unmarshal) }

// whole puts a message together and has it decoded, which may not keep the bytes.
func whole(data mem.BufferSlice, v any, decode func([]byte, protobuf.Message) error) error {
	m, ok := v.(protobuf.Message)
	if !ok {
		return encoding.GetCodecV2(proto.Name).Unmarshal(data, v)
	}
	b := data.MaterializeToBuffer(requests)
	defer b.Free()
	return decode(b.ReadOnlyData(), m)
}

// unmarshal decodes what a peer sent.
func (c Codec) unmarshal(b []byte, m protobuf.Message) error {
	return protobuf.UnmarshalOptions{RecursionLimit: c.Depth}.Unmarshal(b, m)
}

// Name implements encoding.CodecV2.
func (Codec) Name() string { return proto.Name }
