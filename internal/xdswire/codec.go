package xdswire

import (
	"errors"
	"fmt"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto" // registers the ordinary codec
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
)

// ServerCodec is the gRPC codec of servers that send Frames. Other messages go through
// the ordinary codec, so that grpc.ForceServerCodecV2 may set it for a whole server.
//
// It also decodes long lists of names quickly, as sets. In the state-of-the-world variant
// a proxy repeats all its names in every ACK, in an order of its own: the codec compares
// the encoded list with earlier ones. In the delta variant a proxy subscribes to all its
// names and reports the versions of its resources when it connects, which all proxies do
// after a control plane restarts.
type ServerCodec struct {
	names *NameSets
	max   RequestLimits
}

// RequestLimits bound requests before they are decoded, because decoding may turn two
// bytes into a hundred.
type RequestLimits struct {
	// Depth is the nesting depth of messages, counting the request; 0 means the
	// 10,000 levels of the ordinary codec.
	Depth int
	// Names is the number of names, including names in held versions; 0 means any.
	Names int
	// Other is the number of bytes in all other fields; 0 means any.
	Other int
}

// ErrTooManyNames reports a request with more names than RequestLimits allow.
var ErrTooManyNames = errors.New("too many names")

var _ encoding.CodecV2 = ServerCodec{}

// NewServerCodec returns a codec that takes its name sets from names.
func NewServerCodec(names *NameSets, most RequestLimits) ServerCodec {
	return ServerCodec{names: names, max: most}
}

// longRequest is the size from which the codec treats the lists of a request itself.
const longRequest = 4 << 10

// Received receives a message from a stream.
type Received struct {
	Message protobuf.Message
	// Names is the set of the names to which a long request subscribes. The message lacks them.
	Names *NameSet
	// Err is set if the message cannot be decoded. gRPC would report an error of the codec to the
	// peer as a fault of the server.
	Err error
}

// requests pools the buffers of requests by powers of two. ACKs, which arrive by the
// thousand, take less than the 4 KB of gRPC's own pool; a request of 33 KB takes 64 KB,
// where gRPC would take and clear 1 MB.
var requests = mem.NewTieredBufferPool(1<<8, 1<<9, 1<<10, 1<<11, 1<<12, 1<<13, 1<<14, 1<<15, 1<<16, 1<<17, 1<<18, 1<<19, 1<<20, 1<<21, 1<<22)

// RequestBuffers returns the pool with which servers read requests.
func RequestBuffers() mem.BufferPool { return requests }

// Name implements encoding.CodecV2.
func (ServerCodec) Name() string { return proto.Name }

// Marshal implements encoding.CodecV2.
func (ServerCodec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*Frame); ok {
		return f.Buffers(), nil
	}
	return encoding.GetCodecV2(proto.Name).Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c ServerCodec) Unmarshal(data mem.BufferSlice, v any) error {
	buffer := data.MaterializeToBuffer(requests)
	defer buffer.Free()
	b := buffer.ReadOnlyData()
	switch m := v.(type) {
	case *Received:
		m.Names, m.Err = c.decode(b, m.Message)
		return nil
	case protobuf.Message:
		if len(b) >= longRequest {
			if err := c.check(b, 0, 0); err != nil {
				return err
			}
		}
		return c.unmarshal(b, m)
	default:
		return encoding.GetCodecV2(proto.Name).Unmarshal(data, v)
	}
}

// decode decodes a request. It does not keep the bytes.
func (c ServerCodec) decode(b []byte, m protobuf.Message) (*NameSet, error) {
	if len(b) < longRequest {
		return nil, c.unmarshal(b, m)
	}
	switch req := m.(type) {
	case *discoveryv3.DiscoveryRequest:
		if err := c.check(b, fieldNames, fieldNames); err != nil {
			return nil, err
		}
		set, err := c.unmarshalNames(b, req, req.GetResourceNames)
		req.ResourceNames = nil
		return set, err
	case *discoveryv3.DeltaDiscoveryRequest:
		if err := c.check(b, fieldNames, fieldHeldVersions); err != nil {
			return nil, err
		}
		return c.delta(b, req)
	default:
		return nil, fmt.Errorf("%T is no discovery request", m)
	}
}

// unmarshal decodes a message with the ordinary decoder.
func (c ServerCodec) unmarshal(b []byte, m protobuf.Message) error {
	return protobuf.UnmarshalOptions{RecursionLimit: c.max.Depth}.Unmarshal(b, m)
}

// check applies the limits to an encoded request whose fields first to last are names.
// It leaves malformed requests to the decoder.
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
