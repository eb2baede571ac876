package proxyconfig

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/cncf/xds/go/udpa/annotations"
	rawbufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// decode reads a resource of a dump into its message. A resource of another type is an
// error. Unknown extensions keep their type URL and lose their content.
func decode(raw jsontext.Value, m proto.Message) error {
	want := m.ProtoReflect().Descriptor().FullName()
	if got := typeOf(raw); got != "" && got != string(want) {
		return fmt.Errorf("it is a %s, want %s", got, want)
	}
	opts := protojson.UnmarshalOptions{DiscardUnknown: true, Resolver: knownTypes{protoregistry.GlobalTypes}}
	if err := opts.Unmarshal(raw, m); err != nil {
		return fmt.Errorf("decode %s: %w", want, err)
	}
	return nil
}

// typeOf returns the message name in an object's "@type", if that is its first member.
func typeOf(raw jsontext.Value) string {
	d := newDump(bytes.NewReader(raw))
	if d.begin(jsontext.KindBeginObject, "") != nil {
		return ""
	}
	if name, err := d.ReadToken(); err != nil || name.String() != "@type" {
		return ""
	}
	url, err := d.text()
	if err != nil {
		return ""
	}
	return url[strings.LastIndexByte(url, '/')+1:]
}

// knownTypes resolves an unknown extension to a message without fields, so that the
// resource around it remains readable.
type knownTypes struct{ *protoregistry.Types }

func (k knownTypes) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	t, err := k.Types.FindMessageByURL(url)
	if errors.Is(err, protoregistry.NotFound) {
		return (*rawbufferv3.RawBuffer)(nil).ProtoReflect().Type(), nil
	}
	return t, err
}

// protoJSON converts a message from Envoy's output (snake case) to proto JSON (lower
// camel case), by the message's description. Keys of maps and of google.protobuf.Struct,
// unknown members and extensions stay. It redacts fields that Envoy's API marks as
// sensitive, and private keys in PEM in all other fields.
func protoJSON(raw jsontext.Value, of proto.Message) (jsontext.Value, error) {
	value, _, err := convert(raw, of, false)
	return value, err
}

// convert is protoJSON, and reports whether anything is redacted. With reveal, redacted
// values stay.
func convert(raw jsontext.Value, of proto.Message, reveal bool) (value jsontext.Value, redacts bool, err error) {
	var out bytes.Buffer
	c := converter{
		d:      jsontext.NewDecoder(bytes.NewReader(raw)),
		e:      jsontext.NewEncoder(&out, jsontext.AllowDuplicateNames(true)),
		reveal: reveal,
	}
	if err := c.message(of.ProtoReflect().Descriptor(), false); err != nil {
		return nil, false, fmt.Errorf("convert to proto JSON: %w", err)
	}
	return bytes.TrimRight(out.Bytes(), "\n"), c.redacts, nil
}

type converter struct {
	d *jsontext.Decoder
	e *jsontext.Encoder

	reveal  bool // what is redacted else
	redacts bool // there is such
}

// message converts the value of a message.
func (c *converter) message(md protoreflect.MessageDescriptor, secret bool) error {
	if c.d.PeekKind() != jsontext.KindBeginObject || md.FullName().Parent() == "google.protobuf" && md.Name() != "Any" {
		return c.plain(false, secret)
	}
	untyped := md.FullName() == "google.protobuf.Any"
	return c.object(func(name string) error {
		if untyped && name != "@type" { // what is secret in it is not known yet
			return fmt.Errorf(`%s does not begin with "@type"`, c.d.StackPointer().Parent())
		}
		untyped = false
		fd := md.Fields().ByName(protoreflect.Name(name))
		if fd == nil {
			fd = md.Fields().ByJSONName(name)
		}
		switch {
		case name == "@type": // an Any: what follows is of this type
			if err := c.e.WriteToken(jsontext.String(name)); err != nil {
				return err
			}
			tok, err := c.d.ReadToken()
			if err != nil {
				return err
			}
			if t, err := protoregistry.GlobalTypes.FindMessageByURL(tok.String()); err == nil {
				md = t.Descriptor()
			}
			return c.e.WriteToken(tok)
		case fd == nil:
			if err := c.e.WriteToken(jsontext.String(name)); err != nil {
				return err
			}
			return c.plain(false, secret)
		}
		if err := c.e.WriteToken(jsontext.String(fd.JSONName())); err != nil {
			return err
		}
		sensitive, _ := proto.GetExtension(fd.Options(), annotations.E_Sensitive).(bool)
		return c.field(fd, secret || sensitive)
	})
}

// field converts the value of a field: map, list or single.
func (c *converter) field(fd protoreflect.FieldDescriptor, secret bool) error {
	switch {
	case fd.IsMap() && c.d.PeekKind() == jsontext.KindBeginObject:
		return c.object(func(key string) error {
			if err := c.e.WriteToken(jsontext.String(key)); err != nil {
				return err
			}
			return c.single(fd.MapValue(), secret)
		})
	case fd.IsList() && c.d.PeekKind() == jsontext.KindBeginArray:
		if err := c.copyToken(); err != nil {
			return err
		}
		for k := c.d.PeekKind(); k != jsontext.KindEndArray && k != jsontext.KindInvalid; k = c.d.PeekKind() {
			if err := c.single(fd, secret); err != nil {
				return err
			}
		}
		return c.copyToken()
	}
	return c.single(fd, secret)
}

func (c *converter) single(fd protoreflect.FieldDescriptor, secret bool) error {
	if md := fd.Message(); md != nil {
		return c.message(md, secret)
	}
	return c.plain(fd.Kind() == protoreflect.BytesKind, secret)
}

// plain copies a value without field names to convert, and redacts private keys. In a
// secret it keeps the structure and redacts all strings and numbers.
func (c *converter) plain(isBytes, secret bool) error {
	depth := c.d.StackDepth()
	for {
		kind, length := c.d.StackIndex(c.d.StackDepth())
		isName := kind == jsontext.KindBeginObject && length%2 == 0
		tok, err := c.d.ReadToken()
		if err != nil {
			return err
		}
		if !isName {
			if safe, redacts := safeToken(tok, isBytes, secret); redacts {
				c.redacts = true
				if !c.reveal {
					tok = safe
				}
			}
		}
		if err := c.e.WriteToken(tok); err != nil {
			return err
		}
		if c.d.StackDepth() == depth {
			return nil
		}
	}
}

// object copies the braces of an object, and calls member after each name.
func (c *converter) object(member func(name string) error) error {
	if err := c.copyToken(); err != nil {
		return err
	}
	for c.d.PeekKind() == jsontext.KindString {
		tok, err := c.d.ReadToken()
		if err != nil {
			return err
		}
		if err := member(tok.String()); err != nil {
			return err
		}
	}
	return c.copyToken()
}

func (c *converter) copyToken() error {
	tok, err := c.d.ReadToken()
	if err != nil {
		return err
	}
	return c.e.WriteToken(tok)
}
