package xdswire

import (
	// registers the codec that Codec passes messages to
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
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
