// Package xdswire holds the parts of an xDS stream that both of its ends use: type URLs,
// encoded resources, frames, name sets and nonces. A resource is encoded once; the
// frames of any number of streams share its bytes.
package xdswire

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// Resource is one encoded resource. It is immutable; all views and streams that hold it
// share it.
type Resource struct {
	Name string
	// Version is a hash of the content. It stays equal over restarts of the same build.
	Version string
	// wire is field 2 of a DeltaDiscoveryResponse: tag, length and a Resource message
	// whose last field is the packed message. That field has number 2, too, so the
	// tail sotw is also field 2 of a DiscoveryResponse.
	wire mem.SliceBuffer
	sotw mem.SliceBuffer
	body int // start of the encoded message in wire
	// parted follows wire in a resource made of parts. The lengths in wire include it.
	parted *parted
	// kept keeps the shared parts alive from which the resource was made.
	kept any
	id   uint64 // another one for each resource
}

// parted is the end of a resource made of parts.
type parted struct {
	parts *Parts
	tail  mem.SliceBuffer
}

// lastID is the last ID of a resource.
var lastID atomic.Uint64

// Field numbers of the discovery messages.
const (
	fieldResources       = 2 // DiscoveryResponse and DeltaDiscoveryResponse
	fieldResourceVersion = 1 // of Resource
	fieldResourceBody    = 2
	fieldResourceName    = 3
	fieldResourceAliases = 4
)

// Delta returns the resource as a field of a DeltaDiscoveryResponse.
func (r *Resource) Delta() []byte { return r.whole(r.wire) }

// SotW returns the resource as a field of a DiscoveryResponse.
func (r *Resource) SotW() []byte { return r.whole(r.sotw) }

// Message returns the encoded message without its type. It must not be modified.
func (r *Resource) Message() []byte { return r.whole(r.wire[r.body:]) }

// Parted returns what Encoder.Parted made the resource from; ok is false for others. The
// caller must not change it.
func (r *Resource) Parted() (head []byte, parts *Parts, tail []byte, ok bool) {
	if r.parted == nil {
		return nil, nil, nil, false
	}
	return r.wire[r.body:], r.parted.parts, r.parted.tail, true
}

// whole returns the end of wire with what follows it. It copies the bytes of a resource of parts.
func (r *Resource) whole(start mem.SliceBuffer) []byte {
	if r.parted == nil {
		return start
	}
	return r.parted.buffers(mem.BufferSlice{start}).Materialize()
}

// buffers appends the encoding of a variant to a list, without copying it.
func (r *Resource) buffers(to mem.BufferSlice, v Variant) mem.BufferSlice {
	// A pointer to the field is a buffer without an allocation.
	if to = append(to, &r.wire); v == SotW {
		to[len(to)-1] = &r.sotw
	}
	if r.parted == nil {
		return to
	}
	return r.parted.buffers(to)
}

func (p *parted) buffers(to mem.BufferSlice) mem.BufferSlice {
	for _, c := range p.parts.chunks {
		to = append(to, c.encoding())
	}
	return append(to, &p.tail)
}

// bufferCount returns the number of buffers that buffers appends.
func (r *Resource) bufferCount() int {
	if r.parted == nil {
		return 1
	}
	return 1 + len(r.parted.parts.chunks) + 1
}

// Size returns the number of bytes of the resource.
func (r *Resource) Size() int { return r.sizeIn(Delta) }

// sizeIn returns the number of bytes of the resource in a variant.
func (r *Resource) sizeIn(v Variant) int {
	size := len(r.wire)
	if v == SotW {
		size = len(r.sotw)
	}
	if r.parted == nil {
		return size
	}
	return size + r.parted.parts.size + len(r.parted.tail)
}

// Any decodes the resource, for status pages and tests.
func (r *Resource) Any() (*anypb.Any, error) {
	_, _, n := protowire.ConsumeTag(r.SotW())
	body, m := protowire.ConsumeBytes(r.SotW()[n:])
	if m < 0 {
		return nil, fmt.Errorf("resource %s: %w", r.Name, protowire.ParseError(m))
	}
	a := new(anypb.Any)
	if err := proto.Unmarshal(body, a); err != nil {
		return nil, fmt.Errorf("resource %s: %w", r.Name, err)
	}
	return a, nil
}

// WithAliases returns the resource with aliases, which only the delta variant has.
func (r *Resource) WithAliases(aliases []string) *Resource {
	var names []byte
	for _, name := range aliases {
		names = protowire.AppendString(protowire.AppendTag(names, fieldResourceAliases, protowire.BytesType), name)
	}
	_, _, tag := protowire.ConsumeTag(r.wire)
	size, length := protowire.ConsumeVarint(r.wire[tag:])
	out := *r
	out.id = lastID.Add(1)
	out.wire = protowire.AppendVarint(slices.Clone(r.wire[:tag]), size+uint64(len(names)))
	out.wire = append(out.wire, names...)
	out.body = r.body + len(out.wire) - tag - length
	out.wire = append(out.wire, r.wire[tag+length:]...)
	out.sotw = out.wire[len(out.wire)-len(r.sotw):]
	return &out
}

// Encoder turns messages into resources. The zero value is ready to use. Several
// goroutines may use it if Encoded permits that.
type Encoder struct {
	// Encoded, which may be nil, is called for every encoded resource.
	Encoded func(typeURL string)
	// AccessLogs keeps the access logs that were made last.
	AccessLogs Memo[[]*accesslogv3.AccessLog]
	shared     partCaches
}

// Memo keeps the last result of a function whose arguments are mostly those of the call before.
// Several goroutines may use it.
type Memo[V any] struct{ last atomic.Pointer[memoized[V]] }

type memoized[V any] struct {
	key   any
	value V
}

// Do returns the result of make for the key, which must be comparable. It does not keep a result with
// an error. The caller must not change the result.
func (m *Memo[V]) Do(key any, make func() (V, error)) (V, error) {
	if last := m.last.Load(); last != nil && last.key == key {
		return last.value, nil
	}
	out, err := make()
	if err == nil {
		m.last.Store(&memoized[V]{key, out})
	}
	return out, err
}

// deterministic encodes equal messages to equal bytes within one build.
var deterministic = proto.MarshalOptions{Deterministic: true}

// sized encodes a message whose size was computed just before.
var sized = proto.MarshalOptions{Deterministic: true, UseCachedSize: true}

// Marshal encodes a message; equal messages have equal bytes.
func Marshal(m proto.Message) ([]byte, error) { return deterministic.Marshal(m) }

// Resource encodes a message as a resource with the name.
func (e *Encoder) Resource(typeURL, name string, m proto.Message) (*Resource, error) {
	if e.Encoded != nil {
		e.Encoded(typeURL)
	}
	size := deterministic.Size(m)
	r := wrap(typeURL, name, noVersion, size, size)
	var err error
	if r.wire, err = sized.MarshalAppend(r.wire, m); err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", ShortType(typeURL), name, err)
	}
	r.setVersion()
	return r, nil
}

// Piece makes a part of a resource that is made from such parts, in one allocation with the list
// that contains it. It is not sent by itself, and has neither a type nor a version.
func (e *Encoder) Piece(typeURL, name string, message []byte) []*Resource {
	if e.Encoded != nil {
		e.Encoded(typeURL)
	}
	var p struct {
		Resource
		list [1]*Resource
		room [112]byte // enough for most pieces
	}
	p.Name, p.wire, p.id = name, append(p.room[:0], message...), lastID.Add(1)
	p.list[0] = &p.Resource
	return p.list[:]
}

// Equal reports whether a resource has the same content as another one of its type and name.
func (r *Resource) Equal(other *Resource) bool {
	return r == other || r.Version == other.Version && (r.Version != "" || bytes.Equal(r.wire, other.wire))
}

// setVersion replaces noVersion by the version of the message.
func (r *Resource) setVersion() {
	r.Version = versionOf([][]byte{r.wire[r.body:]})
	end := len(r.wire) - len(r.sotw)
	copy(r.wire[end-versionLength:end], r.Version)
}

// Field returns the encoding of a message whose only field is another message.
func Field(number protowire.Number, m proto.Message) ([]byte, error) {
	size := deterministic.Size(m)
	out := make([]byte, 0, protowire.SizeTag(number)+protowire.SizeBytes(size))
	out = protowire.AppendVarint(protowire.AppendTag(out, number, protowire.BytesType), uint64(size))
	return sized.MarshalAppend(out, m)
}

// Raw makes a resource from an encoded message, which may come in consecutive pieces.
func (e *Encoder) Raw(typeURL, name string, body ...[]byte) *Resource {
	return e.Marked(typeURL, name, "", body...)
}

// Marked makes a resource like Raw. Its version ends with a mark.
func (e *Encoder) Marked(typeURL, name, mark string, body ...[]byte) *Resource {
	if e.Encoded != nil {
		e.Encoded(typeURL)
	}
	size := 0
	for _, b := range body {
		size += len(b)
	}
	r := wrap(typeURL, name, versionOf(body)+mark, size, size)
	for _, b := range body {
		r.wire = append(r.wire, b...)
	}
	return r
}

// Parted makes a resource from the start of an encoded message, parts, and the end of the
// message. Resources share the memory of equal parts.
func (e *Encoder) Parted(typeURL, name string, head []byte, parts *Parts, tail []byte) *Resource {
	if e.Encoded != nil {
		e.Encoded(typeURL)
	}
	sum := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, parts.sum[0]), parts.sum[1])
	r := wrap(typeURL, name, versionOf([][]byte{head, sum, tail}), len(head)+parts.size+len(tail), len(head))
	r.wire, r.parted = append(r.wire, head...), &parted{parts, tail}
	return r
}

// noVersion has the length of a version without a mark.
const (
	noVersion     = "0000000000000000"
	versionLength = len(noVersion)
)

// versionOf returns the version of a message that comes in pieces.
func versionOf(body [][]byte) string {
	var sum [sha256.Size]byte
	if len(body) == 1 {
		sum = sha256.Sum256(body[0]) // without memory of its own
	} else {
		hash := sha256.New()
		for _, b := range body {
			hash.Write(b)
		}
		hash.Sum(sum[:0])
	}
	var text [versionLength]byte
	hex.Encode(text[:], sum[:len(text)/2])
	return string(text[:])
}

// wrap returns a resource whose message of a size must be appended, with room for a part
// of it.
func wrap(typeURL, name, version string, size, room int) *Resource {
	packed := anySize(typeURL, size)
	tail := protowire.SizeTag(fieldResourceBody) + protowire.SizeBytes(packed)
	inner := protowire.SizeTag(fieldResourceName) + protowire.SizeBytes(len(name)) +
		protowire.SizeTag(fieldResourceVersion) + protowire.SizeBytes(len(version)) + tail
	w := make([]byte, 0, protowire.SizeTag(fieldResources)+protowire.SizeBytes(inner)-size+room)
	w = protowire.AppendTag(w, fieldResources, protowire.BytesType)
	w = protowire.AppendVarint(w, uint64(inner))
	w = protowire.AppendTag(w, fieldResourceName, protowire.BytesType)
	w = protowire.AppendString(w, name)
	w = protowire.AppendTag(w, fieldResourceVersion, protowire.BytesType)
	w = protowire.AppendString(w, version)
	start := len(w)
	w = protowire.AppendTag(w, fieldResourceBody, protowire.BytesType)
	w = appendAny(protowire.AppendVarint(w, uint64(packed)), typeURL, size)
	return &Resource{Name: name, Version: version, wire: w, sotw: w[start:cap(w)], body: len(w), id: lastID.Add(1)}
}

// Any packs a message with deterministic bytes. Generation must not use anypb.New, which
// packs maps in random order.
func Any(m proto.Message) (*anypb.Any, error) {
	a := new(anypb.Any)
	if err := Pack(a, m); err != nil {
		return nil, err
	}
	return a, nil
}

// Pack packs a message like Any. The caller provides the memory, which may be part of another
// allocation.
func Pack(to *anypb.Any, m proto.Message) (err error) {
	to.TypeUrl = typeURLOf(m.ProtoReflect().Descriptor())
	if to.Value, err = Marshal(m); err != nil {
		return fmt.Errorf("pack %s: %w", to.TypeUrl, err)
	}
	return nil
}

// PackedField returns the encoding of a field that contains a message, packed like Any. The last
// fields of the message may be encoded before.
func PackedField(number protowire.Number, m proto.Message, encoded ...byte) ([]byte, error) {
	typeURL, size := typeURLOf(m.ProtoReflect().Descriptor()), deterministic.Size(m)+len(encoded)
	packed := anySize(typeURL, size)
	b := make([]byte, 0, protowire.SizeTag(number)+protowire.SizeBytes(packed))
	b = protowire.AppendVarint(protowire.AppendTag(b, number, protowire.BytesType), uint64(packed))
	b, err := sized.MarshalAppend(appendAny(b, typeURL, size), m)
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", typeURL, err)
	}
	return append(b, encoded...), nil
}

// anySize returns the size of an Any with a message of a size.
func anySize(typeURL string, size int) int {
	return protowire.SizeTag(1) + protowire.SizeBytes(len(typeURL)) + protowire.SizeTag(2) + protowire.SizeBytes(size)
}

// appendAny appends an Any without its message, which must be appended.
func appendAny(b []byte, typeURL string, size int) []byte {
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), typeURL)
	return protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.BytesType), uint64(size))
}

// typeURLs holds the type URLs of packed messages by descriptor.
var typeURLs sync.Map

func typeURLOf(d protoreflect.MessageDescriptor) string {
	url, known := typeURLs.Load(d)
	if !known {
		url, _ = typeURLs.LoadOrStore(d, "type.googleapis.com/"+string(d.FullName()))
	}
	text, _ := url.(string)
	return text
}
