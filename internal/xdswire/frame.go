package xdswire

import (
	"math/bits"
	"sync"

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

// Body holds encoded resources of responses. Any number of frames may share it.
type Body struct {
	variant       Variant
	list          *List
	size, buffers int
}

// Empty reports whether there are no resources.
func (b Body) Empty() bool { return b.list.Len() == 0 }

// RawBody returns a resource that is already encoded as a field of a response.
func RawBody(field []byte) Body {
	return NewBody(SotW, &Resource{sotw: field})
}

// NewBody returns the resources in the encoding of the variant.
func NewBody(v Variant, resources ...*Resource) Body { return NewList(resources...).Body(v) }

// Header holds the fields of a response besides its resources.
type Header struct {
	Version string // version_info or system_version_info
	TypeURL string
	Nonce   string
	Removed []string // removed_resources, delta variant only
}

// Field numbers of the header. They are the same in DiscoveryResponse and
// DeltaDiscoveryResponse, but only the latter has removed names.
const (
	fieldVersion = 1
	fieldTypeURL = 4
	fieldNonce   = 5
	fieldRemoved = 6
)

// Frame is one encoded response: a few bytes of its own and shared bodies. The order of
// its fields is unusual, but valid.
type Frame struct {
	head    mem.SliceBuffer
	bodies  []Body
	count   int // of resources
	buffers int // of bodies
	size    int
	done    func()
}

// NewFrame makes a response from a header and bodies of one variant.
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
		f.count += b.list.Len()
		f.buffers += b.buffers
		f.size += b.size
	}
	return f
}

// Size returns the number of bytes of the message.
func (f *Frame) Size() int { return f.size }

// Own returns the approximate number of bytes of the message without the shared
// resources.
func (f *Frame) Own() int { return len(f.head) + 64*f.buffers }

// Resources returns the number of resources in the message.
func (f *Frame) Resources() int { return f.count }

// WhenWritten makes done be called once the last byte of the message was written to the
// connection, or the message was dropped with its stream. Sending returns long before,
// because gRPC queues what the peer does not read yet. Functions of earlier calls are
// called first.
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

// Buffers returns the message as a new list of shared buffers.
func (f *Frame) Buffers() mem.BufferSlice {
	m := newMessage(2 + f.buffers)
	list := append(m.list, f.head)
	for _, b := range f.bodies {
		for _, c := range b.list.all() {
			list = c.appendTo(list, b.variant)
		}
	}
	if f.done != nil {
		m.done, m.end = f.done, endMark[:0]
		list = append(list, mem.NewBuffer(&m.end, m))
	}
	m.list = list
	return list
}

// message is a list of buffers that gRPC holds, and the pool of the empty buffer at its end.
// gRPC returns that buffer when it no longer needs the list.
type message struct {
	list mem.BufferSlice
	end  []byte
	done func()
}

// endMark lends its capacity to empty buffers, because gRPC returns only large buffers to
// their pool. Nothing is written to it.
var endMark [1<<10 + 1]byte

// longList is the length from which lists of buffers are used again. A proxy that connects
// gets ten thousand buffers.
const longList = 64

// longMessages holds messages whose lists have a capacity of 2 to the power of the index.
var longMessages [bits.UintSize]sync.Pool // of *message

// newMessage returns a message with an empty list of at least a capacity.
func newMessage(n int) *message {
	if n < longList {
		return &message{list: make(mem.BufferSlice, 0, n)}
	}
	power := bits.Len(uint(n - 1))
	if m, ok := longMessages[power].Get().(*message); ok {
		return m
	}
	return &message{list: make(mem.BufferSlice, 0, 1<<power)}
}

// Get implements mem.BufferPool.
func (*message) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// Put implements mem.BufferPool.
func (m *message) Put(*[]byte) {
	m.done()
	if cap(m.list) < longList {
		return
	}
	clear(m.list)
	m.list, m.done = m.list[:0], nil
	longMessages[bits.Len(uint(cap(m.list)-1))].Put(m)
}
