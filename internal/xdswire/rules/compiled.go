package rules

import (
	"regexp"
	"sync"

	"github.com/envoyproxy/protoc-gen-validate/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// messageRules holds the rules of a message.
type messageRules struct {
	// fields are those with rules, or with messages that may have rules or values of type Any.
	fields   []*fieldRules
	required []protoreflect.OneofDescriptor
}

// fieldRules holds the rules of a field.
type fieldRules struct {
	fd  protoreflect.FieldDescriptor
	own valueRules // of the value; of a list or map as a whole
	// items are the rules of the items of a list or the values of a map, and keys those of its keys.
	items, keys valueRules
	isRequired  bool
	packed      bool // values of type Any may be inside
}

// valueRules holds the rules of a value.
type valueRules struct {
	set         protoreflect.Message // all rules, with their options
	rules       []rule
	ignoreEmpty bool
	inside      bool // the message in the value is checked
}

type rule struct {
	name    string
	value   protoreflect.Value
	pattern *regexp.Regexp // that a text must match
}

// compiled holds messageRules by protoreflect.MessageDescriptor: to read rules from the options
// of fields takes longer than to check a message.
var compiled sync.Map

func rulesOf(d protoreflect.MessageDescriptor) *messageRules {
	known, _ := compiled.Load(d)
	if r, ok := known.(*messageRules); ok {
		return r
	}
	out := &messageRules{required: requiredOneofs(d)}
	for i := range d.Fields().Len() {
		if f := compileField(d.Fields().Get(i)); f.matters() {
			out.fields = append(out.fields, f)
		}
	}
	compiled.Store(d, out)
	return out
}

func compileField(fd protoreflect.FieldDescriptor) *fieldRules {
	rules, _ := proto.GetExtension(fd.Options(), validate.E_Rules).(*validate.FieldRules)
	f := &fieldRules{fd: fd, own: compile(fd, rules)}
	message := fd.Message()
	switch {
	case fd.IsList():
		f.items, f.own.inside = compile(fd, rules.GetRepeated().GetItems()), false
	case fd.IsMap():
		f.keys, f.items, f.own.inside = compile(fd.MapKey(), rules.GetMap().GetKeys()), compile(fd.MapValue(), rules.GetMap().GetValues()), false
		message = fd.MapValue().Message()
	default:
		f.isRequired = fd.ContainingOneof() == nil && (rules.GetMessage().GetRequired() || rules.GetAny().GetRequired() ||
			rules.GetDuration().GetRequired() || rules.GetTimestamp().GetRequired())
	}
	f.packed = message != nil && reaches(message, isAny)
	return f
}

// matters reports whether the field has anything to check.
func (f *fieldRules) matters() bool {
	return f.isRequired || f.packed || f.own.matters() || f.items.matters() || f.keys.matters()
}

func (r *valueRules) matters() bool { return len(r.rules) > 0 || r.inside }

// compile returns the rules of a value, or of a list or map as a whole.
func compile(fd protoreflect.FieldDescriptor, rules *validate.FieldRules) valueRules {
	var out valueRules
	if fd.Message() != nil && !rules.GetMessage().GetSkip() && rules.GetAny() == nil {
		out.inside = reaches(fd.Message(), hasRules)
	}
	all := rules.ProtoReflect()
	typed := all.WhichOneof(all.Descriptor().Oneofs().ByName("type"))
	if typed == nil {
		return out
	}
	out.set = all.Get(typed).Message()
	out.ignoreEmpty = option(out.set, "ignore_empty")
	fields := out.set.Descriptor().Fields()
	for i := range fields.Len() {
		switch r := fields.Get(i); r.Name() {
		case "required", "ignore_empty", "strict", "items", "keys", "values", "skip":
		default:
			if out.set.Has(r) {
				out.rules = append(out.rules, newRule(string(r.Name()), out.set.Get(r), out.set))
			}
		}
	}
	return out
}

func newRule(name string, value protoreflect.Value, set protoreflect.Message) rule {
	r := rule{name: name, value: value}
	switch name {
	case "pattern":
		r.pattern, _ = regexp.Compile(value.String()) // nothing matches an invalid one
	case "well_known_regex":
		r.pattern, _ = regexp.Compile(headerPattern(validate.KnownRegex(value.Enum()), option(set, "strict")))
	}
	return r
}

// reaches reports whether a message, or one that may be in it, has a property.
func reaches(d protoreflect.MessageDescriptor, has func(protoreflect.MessageDescriptor) bool) bool {
	known := map[protoreflect.FullName]struct{}{}
	var visit func(protoreflect.MessageDescriptor) bool
	visit = func(d protoreflect.MessageDescriptor) bool {
		if _, done := known[d.FullName()]; done {
			return false
		}
		known[d.FullName()] = struct{}{}
		if has(d) {
			return true
		}
		for i := range d.Fields().Len() {
			if m := d.Fields().Get(i).Message(); m != nil && visit(m) {
				return true
			}
		}
		return false
	}
	return visit(d)
}

func isAny(d protoreflect.MessageDescriptor) bool { return d.FullName() == "google.protobuf.Any" }

// hasRules reports whether a message has rules of its own.
func hasRules(d protoreflect.MessageDescriptor) bool {
	for i := range d.Fields().Len() {
		if proto.HasExtension(d.Fields().Get(i).Options(), validate.E_Rules) {
			return true
		}
	}
	return len(requiredOneofs(d)) > 0
}

func requiredOneofs(d protoreflect.MessageDescriptor) (out []protoreflect.OneofDescriptor) {
	for i := range d.Oneofs().Len() {
		oneof := d.Oneofs().Get(i)
		if required, _ := proto.GetExtension(oneof.Options(), validate.E_Required).(bool); required {
			out = append(out, oneof)
		}
	}
	return out
}
