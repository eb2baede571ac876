package relay

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// envelope holds the fields of a response besides its resources.
type envelope struct {
	typeURL, nonce string
	version        string   // state of the world
	held           []held   // delta: the names and versions of the resources
	removed        []string // delta
}

type held struct{ name, version string }

// Fields of DiscoveryResponse and DeltaDiscoveryResponse. The numbers are the same in both.
const (
	fieldVersion   = 1
	fieldResources = 2
	fieldTypeURL   = 4
	fieldNonce     = 5
	fieldRemoved   = 6 // delta only
)

// Fields of a delta response's Resource.
const (
	fieldResourceVersion = 1
	fieldResourceAny     = 2
	fieldResourceName    = 3
)

// decodeEnvelope decodes a response without its resources.
func decodeEnvelope(v xdswire.Variant, b []byte) (*envelope, error) {
	e := &envelope{}
	err := xdswire.Fields(b, func(number protowire.Number, value []byte) error {
		switch number {
		case fieldVersion:
			e.version = string(value)
		case fieldTypeURL:
			e.typeURL = string(value)
		case fieldNonce:
			e.nonce = string(value)
		case fieldRemoved:
			if v == xdswire.Delta {
				e.removed = append(e.removed, string(value))
			}
		case fieldResources:
			if v != xdswire.Delta {
				return nil
			}
			var h held
			err := xdswire.Fields(value, func(number protowire.Number, value []byte) error {
				switch number {
				case fieldResourceVersion:
					h.version = string(value)
				case fieldResourceName:
					h.name = string(value)
				}
				return nil
			})
			e.held = append(e.held, h)
			return err
		}
		return nil
	})
	if err == nil && e.typeURL == "" {
		err = errors.New("it has no type")
	}
	if err != nil {
		return nil, fmt.Errorf("decode response: %w", err)
	}
	return e, nil
}

// decodeResources decodes the resources of a response.
func decodeResources(v xdswire.Variant, b []byte) ([]*anypb.Any, error) {
	var out []*anypb.Any
	add := func(value []byte) error {
		a := &anypb.Any{}
		out = append(out, a)
		return proto.Unmarshal(value, a)
	}
	err := xdswire.Fields(b, func(number protowire.Number, value []byte) error {
		if number != fieldResources {
			return nil
		}
		if v != xdswire.Delta {
			return add(value)
		}
		return xdswire.Fields(value, func(number protowire.Number, value []byte) error {
			if number != fieldResourceAny {
				return nil
			}
			return add(value)
		})
	})
	if err != nil {
		return nil, fmt.Errorf("decode resources: %w", err)
	}
	return out, nil
}

// withNonce gives a response another nonce: in protobuf, the last value of a field counts.
func withNonce(m *message, nonce string) *message {
	field := protowire.AppendString(protowire.AppendTag(nil, fieldNonce, protowire.BytesType), nonce)
	m.data = append(m.data, mem.SliceBuffer(field))
	return m
}
