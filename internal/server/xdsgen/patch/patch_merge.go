package patch

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/internal/xdswire/rules"
)

// merge merges the value of a patch into a message. If the result is invalid, the message
// stays as it was.
func (p *patcher) merge(patch *snapshot.Patch, into proto.Message) {
	p.try(patch, into, func() error { return mergeValue(patch, into) })
}

func mergeValue(patch *snapshot.Patch, into proto.Message) error {
	if has, wants := typeOf(into), typeOf(patch.Value); has != "" && wants != "" && has != wants {
		return fmt.Errorf("typed_config has the type %s, and the patch has %s", has, wants)
	}
	return mergeMessage(into.ProtoReflect(), patch.Value.ProtoReflect(), replacesLists(patch))
}

// typeOf returns the type of the typed_config of a message, or "".
func typeOf(m proto.Message) string {
	if m, ok := m.(interface{ GetTypedConfig() *anypb.Any }); ok {
		return m.GetTypedConfig().GetTypeUrl()
	}
	return ""
}

// try changes a message by a patch. If the result is invalid, the message stays as it was.
func (p *patcher) try(patch *snapshot.Patch, m proto.Message, change func() error) {
	p.tryAll([]*snapshot.Patch{patch}, m, func(*snapshot.Patch) error { return change() })
}

// tryAll changes a message by patches. It checks the result of many at once, and of each half if the
// result is invalid: to check a message costs much more than to change it.
func (p *patcher) tryAll(patches []*snapshot.Patch, m proto.Message, change func(*snapshot.Patch) error) {
	if len(patches) == 0 {
		return
	}
	before := proto.Clone(m)
	var err error
	for i := 0; i < len(patches) && err == nil; i++ {
		err = change(patches[i])
	}
	if err == nil {
		if v := rules.CheckAll(m); v != nil {
			err = fmt.Errorf("%s %s", v.Path, v.Reason)
		}
	}
	if err == nil {
		p.changed = true
		return
	}
	proto.Reset(m)
	proto.Merge(m, before)
	if len(patches) == 1 {
		p.fault(patches[0], err)
		return
	}
	half := len(patches) / 2
	p.tryAll(patches[:half], m, change)
	p.tryAll(patches[half:], m, change)
}

func replacesLists(patch *snapshot.Patch) bool {
	return patch.Spec.GetPatch().GetOperation() == networkingv1alpha3.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
}

// mergeMessage merges src into dst. Scalars of src replace scalars of dst, messages merge, and
// lists are appended or, with replace, replaced. An entry of a map replaces the entry of the
// same key. Values of type Any merge if they have one type. Unlike with proto.Merge, durations
// and wrappers count as scalars.
func mergeMessage(dst, src protoreflect.Message, replace bool) (err error) {
	src.Range(func(fd protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case fd.IsList():
			if replace {
				dst.Clear(fd)
			}
			list := dst.Mutable(fd).List()
			for i := range value.List().Len() {
				list.Append(cloneValue(fd, value.List().Get(i)))
			}
		case fd.IsMap():
			entries := dst.Mutable(fd).Map()
			value.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				entries.Set(k, cloneValue(fd.MapValue(), v))
				return true
			})
		case fd.Message() == nil || !dst.Has(fd) || isScalar(fd.Message()):
			dst.Set(fd, cloneValue(fd, value))
		case fd.Message().FullName() == "google.protobuf.Any":
			err = mergeAny(dst, fd, value.Message().Interface(), replace)
		default:
			err = mergeMessage(dst.Mutable(fd).Message(), value.Message(), replace)
		}
		return err == nil
	})
	return err
}

// isScalar reports whether messages of a type stand for a single value.
func isScalar(d protoreflect.MessageDescriptor) bool {
	if d.ParentFile().Package() != "google.protobuf" {
		return false
	}
	switch d.Name() {
	case "Any", "Struct", "ListValue":
		return false
	}
	return true
}

func cloneValue(fd protoreflect.FieldDescriptor, v protoreflect.Value) protoreflect.Value {
	if fd.Message() == nil {
		return v
	}
	return protoreflect.ValueOfMessage(proto.Clone(v.Message().Interface()).ProtoReflect())
}

// mergeAny merges src into a field of type Any.
func mergeAny(dst protoreflect.Message, fd protoreflect.FieldDescriptor, src proto.Message, replace bool) error {
	into, ok := dst.Get(fd).Message().Interface().(*anypb.Any)
	from, also := src.(*anypb.Any)
	if !ok || !also {
		return errors.New("a value of type Any has another Go type")
	}
	if into.GetTypeUrl() != from.GetTypeUrl() {
		dst.Set(fd, protoreflect.ValueOfMessage(proto.CloneOf(from).ProtoReflect()))
		return nil
	}
	a, err := into.UnmarshalNew()
	if err != nil {
		return err
	}
	b, err := from.UnmarshalNew()
	if err != nil {
		return err
	}
	if err = mergeMessage(a.ProtoReflect(), b.ProtoReflect(), replace); err != nil {
		return err
	}
	merged, err := xdswire.Any(a)
	if err == nil {
		dst.Set(fd, protoreflect.ValueOfMessage(merged.ProtoReflect()))
	}
	return err
}
