// Package xdswire holds what both ends of an xDS stream share: type URLs,
// encoded resources, frames, name sets and nonces. Resources are encoded
// once; frames for any number of streams share their bytes.
package xdswire

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Resource is one encoded resource. It is immutable and shared by every view
// and every stream that holds it.
type Resource struct {
	Name string
	// Version is a hash of the content: equal content has an equal version,
	// also after a restart of the same build.
	Version string
	// wire is field 2 of a DeltaDiscoveryResponse: tag, length and a Resource
	// message whose last field is the resource itself. That last field has
	// number 2 too, so the tail from any on is at the same time field 2 of a
	// state-of-the-world DiscoveryResponse.
	wire []byte
	any  int
	body int // start of the encoded message within wire
	// parts is what the resource was made of, when it shares that with others.
	parts any
}

// Field numbers of the discovery messages.
const (
	fieldResources       = 2 // DiscoveryResponse and DeltaDiscoveryResponse
	fieldResourceVersion = 1 // of Resource
	fieldResourceBody    = 2
	fieldResourceName    = 3
)

// Delta is the resource as a field of a DeltaDiscoveryResponse.
func (r *Resource) Delta() []byte { return r.wire }

// SotW is the resource as a field of a DiscoveryResponse.
func (r *Resource) SotW() []byte { return r.wire[r.any:] }

// Message is the encoded message itself, without its type. It must not be
// changed.
func (r *Resource) Message() []byte { return r.wire[r.body:] }

// Size is the number of bytes the resource holds.
func (r *Resource) Size() int { return len(r.wire) }

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

// Encoder turns messages into resources. Its zero value works; it may be used
// from several goroutines when Encoded may be called from them.
type Encoder struct {
	// Encoded, when set, is told of every resource that is encoded.
	Encoded func(typeURL string)
	shared  sharedParts
}

// deterministic makes equal messages equal bytes within one build.
var deterministic = proto.MarshalOptions{Deterministic: true}

// Marshal encodes a message, equal ones alike.
func Marshal(m proto.Message) ([]byte, error) { return deterministic.Marshal(m) }

// Resource encodes a message as the resource of that name.
func (e *Encoder) Resource(typeURL, name string, m proto.Message) (*Resource, error) {
	body, err := Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", ShortType(typeURL), name, err)
	}
	return e.Raw(typeURL, name, body), nil
}

// Raw makes a resource of a message that is encoded already, perhaps in
// several pieces that follow each other.
func (e *Encoder) Raw(typeURL, name string, body ...[]byte) *Resource {
	if e.Encoded != nil {
		e.Encoded(typeURL)
	}
	size := 0
	sum := sha256.New()
	for _, b := range body {
		size += len(b)
		sum.Write(b)
	}
	version := hex.EncodeToString(sum.Sum(nil)[:8])

	anySize := protowire.SizeTag(1) + protowire.SizeBytes(len(typeURL)) + protowire.SizeTag(2) + protowire.SizeBytes(size)
	tail := protowire.SizeTag(fieldResourceBody) + protowire.SizeBytes(anySize)
	inner := protowire.SizeTag(fieldResourceName) + protowire.SizeBytes(len(name)) +
		protowire.SizeTag(fieldResourceVersion) + protowire.SizeBytes(len(version)) + tail
	w := make([]byte, 0, protowire.SizeTag(fieldResources)+protowire.SizeBytes(inner))
	w = protowire.AppendTag(w, fieldResources, protowire.BytesType)
	w = protowire.AppendVarint(w, uint64(inner))
	w = protowire.AppendTag(w, fieldResourceName, protowire.BytesType)
	w = protowire.AppendString(w, name)
	w = protowire.AppendTag(w, fieldResourceVersion, protowire.BytesType)
	w = protowire.AppendString(w, version)
	start := len(w)
	w = protowire.AppendTag(w, fieldResourceBody, protowire.BytesType)
	w = protowire.AppendVarint(w, uint64(anySize))
	w = protowire.AppendTag(w, 1, protowire.BytesType)
	w = protowire.AppendString(w, typeURL)
	w = protowire.AppendTag(w, 2, protowire.BytesType)
	w = protowire.AppendVarint(w, uint64(size))
	message := len(w)
	for _, b := range body {
		w = append(w, b...)
	}
	return &Resource{Name: name, Version: version, wire: w, any: start, body: message}
}

// Any packs a message with deterministic bytes. anypb.New must not be used in
// generation: it packs maps in random order.
func Any(m proto.Message) (*anypb.Any, error) {
	a := new(anypb.Any)
	if err := anypb.MarshalFrom(a, m, deterministic); err != nil {
		return nil, fmt.Errorf("pack %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return a, nil
}
