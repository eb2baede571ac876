package source

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// TestDeprecatedFields: each field and value of a kind with an effect that Istio's API marks as
// deprecated has no effect, which is reported, or has a replacement, which is advised.
func TestDeprecatedFields(t *testing.T) {
	t.Parallel()
	found := map[protoreflect.FullName]bool{}
	for _, k := range kinds {
		if k.newObject == nil || k.support == fields.NoEffect {
			continue
		}
		o, isIstio := k.newObject().(*Istio)
		if !isIstio {
			continue
		}
		eachDeprecated(o.Spec.ProtoReflect().Descriptor(), "", nil, func(path string, name protoreflect.FullName) {
			found[name] = true
			reported := slices.ContainsFunc(k.fields, func(f fields.Field) bool { return f.Path == path && f.Support == fields.NoEffect })
			if advised := replacements[name] != ""; reported == advised {
				t.Errorf("%s of %s: reported as without effect: %v, replacement: %q; want one of them", path, k.name, reported, replacements[name])
			}
		})
	}
	for name := range replacements {
		if !found[name] {
			t.Errorf("%s is not deprecated", name)
		}
	}
}

// eachDeprecated calls visit for each deprecated field and value below a message.
func eachDeprecated(m protoreflect.MessageDescriptor, path string, above []protoreflect.FullName, visit func(string, protoreflect.FullName)) {
	if slices.Contains(above, m.FullName()) {
		return
	}
	above = append(slices.Clip(above), m.FullName())
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		at := f.JSONName()
		if path != "" {
			at = path + "." + at
		}
		if o, ok := f.Options().(*descriptorpb.FieldOptions); ok && o.GetDeprecated() {
			visit(at, f.FullName())
		}
		if f.Message() != nil {
			eachDeprecated(f.Message(), at, above, visit)
		}
		if f.Enum() == nil {
			continue
		}
		for j := range f.Enum().Values().Len() {
			v := f.Enum().Values().Get(j)
			if o, ok := v.Options().(*descriptorpb.EnumValueOptions); ok && o.GetDeprecated() {
				visit(at, v.FullName())
			}
		}
	}
}
