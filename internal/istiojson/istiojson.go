// Package istiojson decodes messages from JSON as Istio does.
package istiojson

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Unmarshal decodes a message. Unlike protojson it accepts durations in all units of Go, such
// as 5m and 100ms.
func Unmarshal(opts protojson.UnmarshalOptions, text []byte, into proto.Message) error {
	err := opts.Unmarshal(text, into)
	if err == nil || !strings.Contains(err.Error(), "google.protobuf.Duration") {
		return err
	}
	var value any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&value) != nil {
		return err
	}
	text, failed := json.Marshal(inSeconds(value, into.ProtoReflect().Descriptor()))
	if failed != nil {
		return err
	}
	return opts.Unmarshal(text, into)
}

// prefix matches the place in the JSON that protojson puts before its reasons. It varies the
// space.
var prefix = regexp.MustCompile(`^proto:[\s\x{00a0}]*(syntax error )?\(line \d+:\d+\): `)

// Reason returns the reason of an error of Unmarshal, without the place in the JSON.
func Reason(err error) string { return prefix.ReplaceAllString(err.Error(), "") }

// inSeconds returns the JSON value of a message with all durations in seconds. It changes
// the value.
func inSeconds(value any, md protoreflect.MessageDescriptor) any {
	if text, ok := value.(string); ok && md.FullName() == "google.protobuf.Duration" {
		if d, err := time.ParseDuration(text); err == nil {
			if seconds, err := protojson.Marshal(durationpb.New(d)); err == nil {
				return json.RawMessage(seconds)
			}
		}
		return value
	}
	fields, _ := value.(map[string]any)
	if url, ok := fields["@type"].(string); ok && md.FullName() == "google.protobuf.Any" {
		t, err := protoregistry.GlobalTypes.FindMessageByURL(url)
		if err != nil {
			return value
		}
		md = t.Descriptor()
	}
	for name, field := range fields {
		fd := FieldNamed(md, name)
		if fd == nil || fd.Message() == nil {
			continue
		}
		items, _ := field.(map[string]any)
		list, _ := field.([]any)
		switch {
		case fd.IsMap() && fd.MapValue().Message() != nil:
			for key := range items {
				items[key] = inSeconds(items[key], fd.MapValue().Message())
			}
		case fd.IsList():
			for i := range list {
				list[i] = inSeconds(list[i], fd.Message())
			}
		case !fd.IsMap():
			fields[name] = inSeconds(field, fd.Message())
		}
	}
	return value
}

// FieldNamed returns the field with one of its two names in JSON, or nil.
func FieldNamed(md protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if fd := md.Fields().ByJSONName(name); fd != nil {
		return fd
	}
	return md.Fields().ByTextName(name)
}
