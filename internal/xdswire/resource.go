// Package xdswire holds the parts of an xDS stream that both of its ends use: type URLs,
// encoded resources, frames, name sets and nonces. A resource is encoded once; the
// frames of any number of streams share its bytes.
package xdswire

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
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
	// tail from any on is also field 2 of a DiscoveryResponse.
	wire []byte
	any  int
	body int // start of the encoded message
	// parts keeps the shared parts alive from which the resource was made.
	parts any
}

// Field numbers of the discovery messages.
const (
	fieldResources       = 2 // DiscoveryResponse and DeltaDiscoveryResponse
	fieldResourceVersion = 1 // of Resource
	fieldResourceBody    = 2
	fieldResourceName    = 3
)

// Delta returns the resource as a field of a DeltaDiscoveryResponse.
func (r *Resource) Delta() []byte { return r.wire }

// SotW returns the resource as a field of a DiscoveryResponse.
func (r *Resource) SotW() []byte { return r.wire[r.any:] }

// Message returns the encoded message without its type. It must not be modified.
func (r *Resource) Message() []byte { return r.wire[r.body:] }

// Size returns the number of bytes of the resource.
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

// Encoder turns messages into resources. The zero value is ready to use. Several
// goroutines may use it if Encoded permits that.
type Encoder struct {
	// Encoded, which may be nil, is called for every encoded resource.
	Encoded func(typeURL string)
	shared  sharedParts
}

// deterministic encodes equal messages to equal bytes within one build.
var deterministic = proto.MarshalOptions{Deterministic: true}

// Marshal encodes a message; equal messages have equal bytes.
func Marshal(m proto.Message) ([]byte, error) { return deterministic.Marshal(m) }

// Resource encodes a message as a resource with the name.
func (e *Encoder) Resource(typeURL, name string, m proto.Message) (*Resource, error) {
	body, err := Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", ShortType(typeURL), name, err)
	}
	return e.Raw(typeURL, name, body), nil
}

// Raw makes a resource from an encoded message, which may come in consecutive pieces.
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

// Any packs a message with deterministic bytes. Generation must not use anypb.New, which
// packs maps in random order.
func Any(m proto.Message) (*anypb.Any, error) {
	a := new(anypb.Any)
	if err := anypb.MarshalFrom(a, m, deterministic); err != nil {
		return nil, fmt.Errorf("pack %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return a, nil
}
