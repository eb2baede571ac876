package xdswire

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto" // registers the codec that Codec passes messages to
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
)

// Variant is one of the two forms of the protocol.
type Variant uint8

// The variants of ADS.
const (
	SotW  Variant = iota // DiscoveryResponse
	Delta                // DeltaDiscoveryResponse
)

func (v Variant) String() string {
	if v == Delta {
		return "delta"
	}
	return "sotw"
}

// Body is the resources part of responses: encoded fields that any number of
// frames share. It must not be changed.
type Body []mem.Buffer

// NewBody refers to the bytes of the resources in the form of the variant.
func NewBody(v Variant, resources ...*Resource) Body {
	b := make(Body, len(resources))
	for i, r := range resources {
		if v == Delta {
			b[i] = mem.SliceBuffer(r.Delta())
		} else {
			b[i] = mem.SliceBuffer(r.SotW())
		}
	}
	return b
}

// Header is what a response says besides its resources.
type Header struct {
	Version string // version_info or system_version_info
	TypeURL string
	Nonce   string
	Removed []string // removed_resources, of the delta variant only
}

// Field numbers of the header in a DiscoveryResponse and a
// DeltaDiscoveryResponse, which agree but for the removed names.
const (
	fieldVersion = 1
	fieldTypeURL = 4
	fieldNonce   = 5
	fieldRemoved = 6
)

// Frame is one response, encoded: a few bytes of its own and bodies that it
// shares. The fields stand in another order than encoders choose, which the
// encoding allows.
type Frame struct {
	head   mem.SliceBuffer
	bodies []Body
	count  int
	size   int
	done   func()
}

// NewFrame makes a response of the header and the bodies, which must be of
// one variant.
func NewFrame(h Header, bodies ...Body) *Frame {
	size := protowire.SizeBytes(len(h.Version)) + protowire.SizeBytes(len(h.TypeURL)) + protowire.SizeBytes(len(h.Nonce)) + 3
	for _, name := range h.Removed {
		size += 1 + protowire.SizeBytes(len(name))
	}
	head := make([]byte, 0, size)
	field := func(num protowire.Number, value string) {
		head = protowire.AppendTag(head, num, protowire.BytesType)
		head = protowire.AppendString(head, value)
	}
	field(fieldVersion, h.Version)
	field(fieldTypeURL, h.TypeURL)
	field(fieldNonce, h.Nonce)
	for _, name := range h.Removed {
		field(fieldRemoved, name)
	}
	f := &Frame{head: head, bodies: bodies, size: len(head)}
	for _, b := range bodies {
		f.count += len(b)
		f.size += mem.BufferSlice(b).Len()
	}
	return f
}

// Size is the number of bytes of the message.
func (f *Frame) Size() int { return f.size }

// Own is about how many bytes the message takes besides the resources, which
// others share.
func (f *Frame) Own() int { return len(f.head) + 64*f.count }

// Resources is the number of resources in the message.
func (f *Frame) Resources() int { return f.count }

// WhenWritten has a function called once the last byte of the message was
// handed to the connection, or the message was dropped with its stream. Sending
// itself returns long before: gRPC queues what the peer does not take yet.
// Functions of earlier calls are called too, before it.
func (f *Frame) WhenWritten(done func()) {
	if before := f.done; before != nil {
		last := done
		done = func() {
			before()
			last()
		}
	}
	f.done = done
}

// Buffers is the message as a new list of shared bytes.
func (f *Frame) Buffers() mem.BufferSlice {
	out := make(mem.BufferSlice, 0, 2+f.count)
	out = append(out, f.head)
	for _, b := range f.bodies {
		out = append(out, b...)
	}
	if f.done != nil {
		end := endMark[:0]
		out = append(out, mem.NewBuffer(&end, written(f.done)))
	}
	return out
}

// endMark lends its capacity to empty buffers: smaller ones are not given back
// to a pool. Nothing is written to it.
var endMark [1<<10 + 1]byte

// written is a pool to which the empty buffer at the end of a message is given
// back, which tells that gRPC needs none of the message any more.
type written func()

// Get implements mem.BufferPool.
func (written) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// Put implements mem.BufferPool.
func (w written) Put(*[]byte) { w() }

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

var _ encoding.CodecV2 = Codec{}

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
