package xdsgen

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/internal/xdswire/rules"
)

type (
	applyTo   = networkingv1alpha3.EnvoyFilter_ApplyTo
	operation = networkingv1alpha3.EnvoyFilter_Patch_Operation
)

// patcher applies patches to a resource.
type patcher struct {
	patches  list[*snapshot.Patch]
	resource string
	changed  bool // a patch had an effect
	faults   PatchFaults
}

// of iterates over the patches for a place with certain operations.
func (p *patcher) of(at applyTo, is func(operation) bool) iter.Seq[*snapshot.Patch] {
	return func(yield func(*snapshot.Patch) bool) {
		for patch := range p.patches.all {
			if patch.Spec.GetApplyTo() == at && is(patch.Spec.GetPatch().GetOperation()) && !yield(patch) {
				return
			}
		}
	}
}

func anyOperation(operation) bool { return true }

func isMerge(o operation) bool {
	return o == networkingv1alpha3.EnvoyFilter_Patch_MERGE || o == networkingv1alpha3.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
}

func isNoMerge(o operation) bool { return !isMerge(o) }

// isInsertion reports whether an operation adds an item to a list.
func isInsertion(o operation) bool {
	switch o {
	case networkingv1alpha3.EnvoyFilter_Patch_ADD, networkingv1alpha3.EnvoyFilter_Patch_INSERT_BEFORE,
		networkingv1alpha3.EnvoyFilter_Patch_INSERT_AFTER, networkingv1alpha3.EnvoyFilter_Patch_INSERT_FIRST:
		return true
	}
	return false
}

func isNoInsertion(o operation) bool { return !isInsertion(o) }

func replacesLists(patch *snapshot.Patch) bool {
	return patch.Spec.GetPatch().GetOperation() == networkingv1alpha3.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
}

func (p *patcher) fault(patch *snapshot.Patch, err error) {
	p.faults = append(p.faults, PatchFault{patch.Of, patch.Index, p.resource, err.Error()})
}

// items describes how patches select the items of a list.
type items[M proto.Message] struct {
	here  func(*snapshot.Patch) bool    // the patch is for this list
	named func(*snapshot.Patch) bool    // the patch names an item
	is    func(*snapshot.Patch, M) bool // the item is the named one, or none is named
	end   func([]M) int                 // where to append
}

// patchItems applies patches to a list and returns the result. It does not change the list.
func patchItems[M proto.Message](p *patcher, patches iter.Seq[*snapshot.Patch], list []M, of items[M]) []M {
	out := slices.Clone(list)
	for patch := range patches {
		if !of.here(patch) {
			continue
		}
		first := slices.IndexFunc(out, func(m M) bool { return of.is(patch, m) })
		insert := func(at int) {
			if at >= 0 {
				value, _ := proto.Clone(patch.Value).(M)
				out, p.changed = slices.Insert(out, at, value), true
			}
		}
		switch o := patch.Spec.GetPatch().GetOperation(); {
		case isMerge(o):
			for _, m := range out {
				if of.is(patch, m) {
					p.merge(patch, m)
				}
			}
		case o == networkingv1alpha3.EnvoyFilter_Patch_ADD, o == networkingv1alpha3.EnvoyFilter_Patch_INSERT_AFTER && !of.named(patch):
			insert(of.end(out))
		case o == networkingv1alpha3.EnvoyFilter_Patch_INSERT_AFTER:
			if first >= 0 {
				insert(max(min(first+1, of.end(out)), 0))
			}
		case o == networkingv1alpha3.EnvoyFilter_Patch_INSERT_BEFORE && of.named(patch):
			insert(first)
		case isInsertion(o):
			insert(0)
		case o == networkingv1alpha3.EnvoyFilter_Patch_REMOVE:
			n := len(out)
			out = slices.DeleteFunc(out, func(m M) bool { return of.is(patch, m) })
			p.changed = p.changed || len(out) < n
		case first >= 0:
			for i, m := range out {
				if of.is(patch, m) {
					out[i], _ = proto.Clone(patch.Value).(M)
				}
			}
			p.changed = true
		}
	}
	return out
}

// merge merges the value of a patch into a message. If the result is invalid, the message
// stays as it was.
func (p *patcher) merge(patch *snapshot.Patch, into proto.Message) {
	p.try(patch, into, func() error {
		if has, wants := typeOf(into), typeOf(patch.Value); has != "" && wants != "" && has != wants {
			return fmt.Errorf("typed_config has the type %s, and the patch has %s", has, wants)
		}
		return mergeMessage(into.ProtoReflect(), patch.Value.ProtoReflect(), replacesLists(patch))
	})
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
	before := proto.Clone(m)
	err := change()
	if err == nil {
		if v := rules.CheckAll(m); v != nil {
			err = fmt.Errorf("%s %s", v.Path, v.Reason)
		}
	}
	if err != nil {
		proto.Reset(m)
		proto.Merge(m, before)
		p.fault(patch, err)
		return
	}
	p.changed = true
}

// mergeMessage merges src into dst: fields that src has replace those of dst, messages merge,
// and lists are appended or, with replace, replaced. Entries of maps replace those of the
// same key. Values of type Any merge if they have one type. Unlike proto.Merge, durations and
// wrappers count as scalars.
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
