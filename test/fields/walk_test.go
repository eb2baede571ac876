//go:build !race

package fields

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// leaves returns the paths of the fields of a message that hold no further fields.
func leaves(md protoreflect.MessageDescriptor, parent string) []string {
	var out []string
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		path := strings.TrimPrefix(parent+"."+fd.JSONName(), ".")
		if inner := messageOf(fd); inner != nil && inner.Fields().Len() > 0 {
			out = append(out, leaves(inner, path)...)
		} else {
			out = append(out, path)
		}
	}
	return out
}

// messageOf returns the message whose fields are below a field, or nil: messages with a form of
// their own in JSON count as values.
func messageOf(fd protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if fd.IsMap() {
		fd = fd.MapValue()
	}
	if md := fd.Message(); md != nil && !strings.HasPrefix(string(md.FullName()), "google.protobuf.") {
		return md
	}
	return nil
}

// place is a field of an object in JSON, set or not.
type place struct {
	fd     protoreflect.FieldDescriptor
	path   string // of names
	steps  []any  // of names and indexes, from the spec
	parent map[string]any
}

func (p *place) name() string   { return p.fd.JSONName() }
func (p *place) value() any     { return p.parent[p.name()] }
func (p *place) isSet() bool    { return p.value() != nil }
func (p *place) String() string { return p.path }

// places returns the places of an object at which a field is or can be set without another
// message.
func places(md protoreflect.MessageDescriptor, object map[string]any, path string) []place {
	var out []place
	var visit func(md protoreflect.MessageDescriptor, object map[string]any, names []string, steps []any)
	visit = func(md protoreflect.MessageDescriptor, object map[string]any, names []string, steps []any) {
		fd := md.Fields().ByJSONName(names[0])
		steps = append(slices.Clip(steps), names[0])
		if len(names) == 1 {
			out = append(out, place{fd, path, steps, object})
			return
		}
		inner := messageOf(fd)
		switch value := object[names[0]].(type) {
		case []any:
			for i, item := range value {
				if item, ok := item.(map[string]any); ok {
					visit(inner, item, names[1:], append(slices.Clip(steps), i))
				}
			}
		case map[string]any:
			if !fd.IsMap() {
				visit(inner, value, names[1:], steps)
				return
			}
			for _, key := range slices.Sorted(maps.Keys(value)) {
				if item, ok := value[key].(map[string]any); ok {
					visit(inner, item, names[1:], append(slices.Clip(steps), key))
				}
			}
		}
	}
	visit(md, object, strings.Split(path, "."), nil)
	return out
}

// with returns a copy of the spec in which the field has another value, or none if it is nil. Other
// fields of the same oneof are removed.
func (p *place) with(spec map[string]any, value any) map[string]any {
	out, _ := clone(spec).(map[string]any)
	var at any = out
	for _, step := range p.steps[:len(p.steps)-1] {
		switch step := step.(type) {
		case string:
			object, _ := at.(map[string]any)
			at = object[step]
		case int:
			list, _ := at.([]any)
			at = list[step]
		}
	}
	object, _ := at.(map[string]any)
	if value == nil {
		delete(object, p.name())
		return out
	}
	if one := p.fd.ContainingOneof(); one != nil {
		for i := range one.Fields().Len() {
			delete(object, one.Fields().Get(i).JSONName())
		}
	}
	object[p.name()] = value
	return out
}

func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, item := range v {
			out[k] = clone(item)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = clone(item)
		}
		return out
	}
	return v
}

// values returns the values to try at a field: every value of an enumeration but the one that
// means "not set", and some value of other types.
func values(fd protoreflect.FieldDescriptor) []any {
	one := func(v any) []any {
		if fd.IsList() {
			v = []any{v}
		}
		return []any{v}
	}
	switch {
	case fd.IsMap() && fd.MapValue().Message() == nil:
		return []any{map[string]any{"other": "other"}}
	case fd.IsMap():
		return []any{map[string]any{"other": map[string]any{}}}
	case fd.Enum() != nil:
		var out []any
		for i := range fd.Enum().Values().Len() {
			if v := fd.Enum().Values().Get(i); v.Number() != 0 {
				out = append(out, one(string(v.Name()))...)
			}
		}
		return out
	case fd.Message() != nil:
		switch name := fd.Message().FullName().Name(); name {
		case "BoolValue":
			return []any{true, false}
		case "Duration":
			return one("7s")
		case "StringValue":
			return one("other")
		case "Struct":
			return one(map[string]any{"other": "other"})
		case "Int32Value", "UInt32Value", "Int64Value", "UInt64Value", "DoubleValue", "FloatValue":
			return one(7)
		default:
			return one(map[string]any{})
		}
	}
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return one(true)
	case protoreflect.StringKind:
		return one("other")
	case protoreflect.BytesKind:
		return one("b3RoZXI=")
	default:
		return one(7)
	}
}

// similar returns values of the same form as a given one.
func similar(v any) []any {
	switch v := v.(type) {
	case string:
		return []any{v + "2", "2" + v}
	case float64:
		return []any{v + 1}
	case []any:
		var out []any
		for _, item := range v[:min(1, len(v))] {
			for _, other := range similar(item) {
				out = append(out, []any{other})
			}
		}
		return out
	case map[string]any:
		for key, item := range v {
			for _, other := range similar(item) {
				return []any{map[string]any{key: other}}
			}
		}
	}
	return nil
}

// isEach reports whether every value of a field must not be silent, not only one of them.
func isEach(fd protoreflect.FieldDescriptor) bool { return fd.Enum() != nil && !fd.IsMap() }

// shown returns a value for people.
func shown(v any) string { return fmt.Sprint(v) }
