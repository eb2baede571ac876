// Package patches checks the patches of EnvoyFilters: which resources they match, and whether
// their values are valid messages of Envoy.
package patches

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/structpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/istiojson"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/internal/xdswire/rules"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// Value decodes and checks the value of a patch as the message of that name.
func Value(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch, message protoreflect.FullName) (proto.Message, *fields.Error) {
	const at = "patch.value"
	value := p.GetPatch().GetValue()
	if value == nil {
		return nil, fields.Faultf(at, "is missing")
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(message)
	if err != nil {
		return nil, fields.Faultf(at, "%w", err)
	}
	m := t.New().Interface()
	fault := fill(m, value)
	parts, unknown := typedParts(value)
	if unknown != nil {
		return nil, fields.Under(at, unknown)
	}
	for _, part := range parts {
		// The decoder of the whole value does not report places within typed parts.
		if inner := fill(part.message, part.value); inner != nil {
			return nil, fields.Under(at, fields.Under(part.path, inner))
		}
	}
	if fault != nil {
		return nil, fields.Under(at, fault)
	}
	if p.GetApplyTo() == networkingv1alpha3.EnvoyFilter_BOOTSTRAP {
		if path, err := xdswire.CheckBootstrapPatch(m); err != nil {
			return nil, fields.Under(at, fields.Faultf(path, "%w", err))
		}
	}
	if merges(p.GetPatch().GetOperation()) {
		if v := rules.CheckPart(m); v != nil { // the result is checked, too
			return nil, fields.Under(at, brokenRule(v))
		}
		return m, nil
	}
	return m, fields.Under(at, checkValue(p, m, parts))
}

// checkValue checks a complete value, and its typed parts.
func checkValue(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch, m proto.Message, parts []typed) *fields.Error {
	near := p.GetMatch().GetListener().GetFilterChain().GetFilter().GetSubFilter().GetName()
	ofRouter := p.GetPatch().GetOperation() == networkingv1alpha3.EnvoyFilter_Patch_REPLACE && near == routerFilter
	for _, part := range parts {
		if isRouter := part.message.ProtoReflect().Descriptor().FullName() == routerMessage; isRouter && !ofRouter {
			return fields.Faultf(part.path, "is a router, which every filter chain already has at its end")
		} else if !isRouter && ofRouter {
			return fields.Faultf(part.path, "is not a router, which every filter chain needs at its end")
		}
		if v := rules.Check(part.message); v != nil {
			return fields.Under(part.path, brokenRule(v))
		}
	}
	if v := rules.CheckAll(m); v != nil {
		return brokenRule(v)
	}
	descriptor := m.ProtoReflect().Descriptor()
	switch p.GetApplyTo() {
	case networkingv1alpha3.EnvoyFilter_HTTP_FILTER, networkingv1alpha3.EnvoyFilter_NETWORK_FILTER, networkingv1alpha3.EnvoyFilter_LISTENER_FILTER:
		if m.ProtoReflect().WhichOneof(descriptor.Oneofs().ByName("config_type")) == nil {
			return fields.Faultf("", "has neither typed_config nor config_discovery")
		}
	case networkingv1alpha3.EnvoyFilter_LISTENER, networkingv1alpha3.EnvoyFilter_CLUSTER:
		switch name := TextField(m, "name"); {
		case name == "":
			return fields.Faultf("name", "is missing")
		case mesh.IsGeneratedName(name):
			return fields.Faultf("name", "%q is a name of generated configuration", name)
		}
	}
	return nil
}

// brokenRule describes a violation of the rules of Envoy's API, because of which Envoy would
// refuse the message.
func brokenRule(v *rules.Violation) *fields.Error {
	return fields.Faultf(v.Path, "breaks Envoy's rules: %s", v.Reason)
}

// fill decodes a value into a message.
func fill(m proto.Message, value *structpb.Struct) *fields.Error {
	text, err := protojson.Marshal(value)
	if err != nil {
		return fields.Faultf("", "%w", err)
	}
	doc, err := yamldoc.Parse(yamldoc.Chunk{Text: text, Line: 1})
	if err != nil {
		return fields.Faultf("", "%w", err)
	}
	if err = istiojson.Unmarshal(protojson.UnmarshalOptions{}, text, m); err == nil {
		return nil
	}
	decode := func(b []byte) error {
		err := istiojson.Unmarshal(protojson.UnmarshalOptions{}, b, m.ProtoReflect().New().Interface())
		if err != nil && strings.Contains(err.Error(), `missing "@type"`) {
			return nil // the search left it out
		}
		return err
	}
	return fields.Refusals(doc, err, decode, func(err error, field string) string {
		return fields.ProtoReason(err, field, m.ProtoReflect().Descriptor())
	})
}

// typed is a part of a value with a type of its own.
type typed struct {
	path    string
	value   *structpb.Struct // without @type
	message proto.Message    // an empty message of the type
}

// typedParts returns the typed parts of a patch's value. A part without a known type
// is a fault.
func typedParts(value *structpb.Struct) ([]typed, *fields.Error) {
	var out []typed
	for _, path := range [][]string{
		{"typed_config"}, {"typedConfig"}, {"config_discovery", "default_config"}, {"configDiscovery", "defaultConfig"},
	} {
		part := value
		for _, name := range path {
			part = part.GetFields()[name].GetStructValue()
		}
		if part == nil {
			continue
		}
		at := strings.Join(path, ".")
		url := part.GetFields()["@type"].GetStringValue()
		if url == "" {
			return nil, fields.Faultf(at, `has no "@type"`)
		}
		t, fault := typeOf(at+".@type", url)
		if fault != nil {
			return nil, fault
		}
		rest := &structpb.Struct{Fields: maps.Clone(part.GetFields())}
		delete(rest.Fields, "@type")
		if !fields.IsWellKnown(t.Descriptor()) { // which have a JSON form of their own
			out = append(out, typed{at, rest, t.New().Interface()})
		}
	}
	structs, fault := typedStructs(structpb.NewStructValue(value))
	return append(out, structs...), fault
}

// typeOf returns the type of Envoy's API that a URL names.
func typeOf(field, url string) (protoreflect.MessageType, *fields.Error) {
	t, err := protoregistry.GlobalTypes.FindMessageByURL(url)
	switch _, name, _ := strings.Cut(url, "/"); {
	case err == nil:
		return t, nil
	case strings.HasPrefix(name, "envoy."):
		return nil, fields.Faultf(field, "%q is not in upstream Envoy: it is an extension of Envoy's contrib build or of another version", url)
	}
	return nil, fields.Faultf(field, "%q is no type of Envoy's API", url)
}

// typedStructs returns the contents of the structures in a value whose type is in the field type_url,
// such as xds.type.v3.TypedStruct. Envoy refuses those of unknown types.
func typedStructs(value *structpb.Value) ([]typed, *fields.Error) {
	var out []typed
	add := func(below string, value *structpb.Value) *fields.Error {
		parts, fault := typedStructs(value)
		for _, part := range parts {
			part.path = fields.FieldBelow(below, part.path)
			out = append(out, part)
		}
		return fields.Under(below, fault)
	}
	for i, item := range value.GetListValue().GetValues() {
		if fault := add(fields.At("", i), item); fault != nil {
			return nil, fault
		}
	}
	entries := value.GetStructValue().GetFields()
	if strings.HasSuffix(entries["@type"].GetStringValue(), ".TypedStruct") {
		name := "type_url"
		if entries[name] == nil {
			name = "typeUrl"
		}
		t, fault := typeOf(name, entries[name].GetStringValue())
		if fault != nil {
			return nil, fault
		}
		return []typed{{"value", cmp.Or(entries["value"].GetStructValue(), &structpb.Struct{}), t.New().Interface()}}, nil
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if fault := add(name, entries[name]); fault != nil {
			return nil, fault
		}
	}
	return out, nil
}

// TextField returns the value of a text field of a message.
func TextField(m proto.Message, name protoreflect.Name) string {
	return m.ProtoReflect().Get(m.ProtoReflect().Descriptor().Fields().ByName(name)).String()
}

// Packed encodes a message. Equal messages have equal bytes.
func Packed(m proto.Message) ([]byte, *fields.Error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fields.Faultf("patch.value", "cannot be encoded: %w", err)
	}
	return body, nil
}

// merges reports whether an operation merges the value into a part of the configuration, so
// that the value may be incomplete.
func merges(operation networkingv1alpha3.EnvoyFilter_Patch_Operation) bool {
	return operation == networkingv1alpha3.EnvoyFilter_Patch_MERGE || operation == networkingv1alpha3.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
}
