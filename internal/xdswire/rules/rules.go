// Package rules checks messages of Envoy's API by the rules for the values of their fields.
// Envoy refuses messages that violate them. The descriptions of the messages contain the
// rules, as options of protoc-gen-validate. The methods that protoc-gen-validate generates
// are not called: through an interface, the linker would keep the methods of all messages,
// 11 MB.
package rules

import (
	"cmp"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/envoyproxy/protoc-gen-validate/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Violation is a value that violates a rule.
type Violation struct {
	// Path leads to the field from the message, such as routes[0].name. It is empty for
	// the message itself.
	Path string
	// Reason continues a sentence that starts with the field: must be greater than 0.
	Reason string
}

// Check returns the first violation in a message and the messages in it, nil if there is
// none. It does not decode values of type Any.
func Check(m proto.Message) *Violation { return checker{}.message(m.ProtoReflect()) }

// CheckAll is Check, and also checks the values of type Any whose type is linked into the
// program.
func CheckAll(m proto.Message) *Violation { return checker{}.all(m.ProtoReflect()) }

// CheckPart is CheckAll for a message that is merged into another one: it finds only
// violations that remain, whatever the other message is. Fields that are missing, and lists
// that are short, are none.
func CheckPart(m proto.Message) *Violation { return checker{part: true}.all(m.ProtoReflect()) }

// checker checks messages.
type checker struct {
	part bool // of a message
}

func (c checker) all(m protoreflect.Message) *Violation {
	if v := c.message(m); v != nil {
		return v
	}
	return c.packed(m)
}

// packed checks the values of type Any in a message.
func (c checker) packed(m protoreflect.Message) *Violation {
	if a, ok := m.Interface().(*anypb.Any); ok {
		if value, err := a.UnmarshalNew(); err == nil {
			return c.all(value.ProtoReflect())
		}
		return nil
	}
	for _, f := range rulesOf(m.Descriptor()).fields {
		if !f.packed || !m.Has(f.fd) {
			continue
		}
		var found *Violation
		switch value := m.Get(f.fd); {
		case f.fd.IsMap():
			found = eachEntry(value.Map(), func(_ protoreflect.MapKey, v protoreflect.Value) *Violation { return checker{}.packed(v.Message()) })
		case f.fd.IsList():
			found = eachItem(value.List(), func(v protoreflect.Value) *Violation { return checker{}.packed(v.Message()) })
		default:
			found = c.packed(value.Message())
		}
		if found != nil {
			return found.under(string(f.fd.Name()))
		}
	}
	return nil
}

func (c checker) message(m protoreflect.Message) *Violation {
	rules := rulesOf(m.Descriptor())
	for _, f := range rules.fields {
		if v := c.field(m, f); v != nil {
			return v
		}
	}
	for _, oneof := range rules.required {
		if v := checkOneof(m, oneof); v != nil && !c.part {
			return v
		}
	}
	return nil
}

func checkOneof(m protoreflect.Message, oneof protoreflect.OneofDescriptor) *Violation {
	if m.WhichOneof(oneof) != nil {
		return nil
	}
	var names []string
	for i := range oneof.Fields().Len() {
		names = append(names, string(oneof.Fields().Get(i).Name()))
	}
	return &Violation{Reason: "must have one of " + strings.Join(names, ", ")}
}

func (c checker) field(m protoreflect.Message, f *fieldRules) *Violation {
	var found *Violation
	switch has := m.Has(f.fd); {
	case c.part && !has:
	case f.fd.IsList():
		found = c.list(f, m.Get(f.fd))
	case f.fd.IsMap():
		found = c.entries(f, m.Get(f.fd))
	case has || !f.fd.HasPresence():
		found = c.value(f.fd, m.Get(f.fd), &f.own)
	case f.isRequired:
		found = &Violation{Reason: "is missing"}
	}
	return found.under(string(f.fd.Name()))
}

func (c checker) list(f *fieldRules, value protoreflect.Value) *Violation {
	if reason := f.own.broken(f.fd, value, c.part); reason != "" {
		return &Violation{Reason: reason}
	}
	return eachItem(value.List(), func(item protoreflect.Value) *Violation { return checker{}.value(f.fd, item, &f.items) })
}

func (c checker) entries(f *fieldRules, value protoreflect.Value) *Violation {
	if reason := f.own.broken(f.fd, value, c.part); reason != "" {
		return &Violation{Reason: reason}
	}
	return eachEntry(value.Map(), func(key protoreflect.MapKey, entry protoreflect.Value) *Violation {
		if v := (checker{}).value(f.fd.MapKey(), key.Value(), &f.keys); v != nil {
			return v
		}
		return checker{}.value(f.fd.MapValue(), entry, &f.items)
	})
}

// value checks a value that is not a list or a map, and the message in it.
func (c checker) value(fd protoreflect.FieldDescriptor, value protoreflect.Value, rules *valueRules) *Violation {
	if reason := rules.broken(fd, value, false); reason != "" {
		return &Violation{Reason: reason}
	}
	if !rules.inside {
		return nil
	}
	return c.message(value.Message())
}

// eachItem returns the first violation in a list.
func eachItem(list protoreflect.List, check func(protoreflect.Value) *Violation) *Violation {
	for i := range list.Len() {
		if v := check(list.Get(i)); v != nil {
			return v.under("[" + strconv.Itoa(i) + "]")
		}
	}
	return nil
}

// eachEntry returns the first violation in a map, by the order of its keys.
func eachEntry(m protoreflect.Map, check func(protoreflect.MapKey, protoreflect.Value) *Violation) *Violation {
	for _, key := range sortedKeys(m) {
		if v := check(key, m.Get(key)); v != nil {
			return v.under("[" + key.String() + "]")
		}
	}
	return nil
}

func sortedKeys(m protoreflect.Map) []protoreflect.MapKey {
	keys := make([]protoreflect.MapKey, 0, m.Len())
	m.Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, key)
		return true
	})
	// slices.SortFunc would be compiled for this type only.
	sort.Slice(keys, func(i, j int) bool { return keys[i].String() < keys[j].String() })
	return keys
}

// under returns the violation with its path extended by a name or an index in front.
func (v *Violation) under(name string) *Violation {
	switch {
	case v == nil:
		return nil
	case v.Path == "", v.Path[0] == '[':
		v.Path = name + v.Path
	default:
		v.Path = name + "." + v.Path
	}
	return v
}

// broken returns the first violated rule for a value itself, empty if there is none. More items
// may follow those of a part of a list or map.
func (r *valueRules) broken(fd protoreflect.FieldDescriptor, value protoreflect.Value, part bool) string {
	if len(r.rules) == 0 {
		return ""
	}
	if isWrapper(fd.Message()) {
		fd = fd.Message().Fields().ByName("value")
		value = value.Message().Get(fd)
	}
	if number, ok := value.Interface().(protoreflect.EnumNumber); ok { // as in rules
		value = protoreflect.ValueOfInt32(int32(number))
	}
	if r.ignoreEmpty && value.Equal(fd.Default()) {
		return ""
	}
	for _, rule := range r.rules {
		if part && (rule.name == "min_items" || rule.name == "min_pairs") {
			continue
		}
		if reason := broken(fd, value, rule, r.set); reason != "" {
			return reason
		}
	}
	return ""
}

// isWrapper reports whether a message, which may be nil, is a google.protobuf.UInt32Value
// or the like.
func isWrapper(d protoreflect.MessageDescriptor) bool {
	return d != nil && d.ParentFile().Path() == "google/protobuf/wrappers.proto"
}

// option returns the value of a flag in the rules of a type, false if it has no such flag.
func option(set protoreflect.Message, name protoreflect.Name) bool {
	fd := set.Descriptor().Fields().ByName(name)
	return fd != nil && set.Get(fd).Bool()
}

// broken returns the reason why a value violates a rule, empty if it does not. A value
// violates each unknown rule. set holds all rules for the value.
func broken(fd protoreflect.FieldDescriptor, value protoreflect.Value, r rule, set protoreflect.Message) string {
	name, rule := r.name, r.value
	ok, want := false, ""
	switch name {
	case "const":
		ok, want = value.Equal(rule), "be "+text(rule)
	case "in":
		ok, want = contains(rule.List(), value), "be one of "+text(rule)
	case "not_in":
		ok, want = !contains(rule.List(), value), "be none of "+text(rule)
	case "lt", "lte", "gt", "gte":
		ok, want = inRange(value, name, rule, set), bounds[name]+" "+text(rule)
	case "min_len", "min_bytes", "min_items", "min_pairs":
		n, unit := size(value, name)
		ok, want = n >= rule.Uint(), fmt.Sprintf("have at least %d %s", rule.Uint(), unit)
		if rule.Uint() == 1 {
			want = "not be empty"
		}
	case "max_len", "max_bytes", "max_items", "max_pairs":
		n, unit := size(value, name)
		ok, want = n <= rule.Uint(), fmt.Sprintf("have at most %d %s", rule.Uint(), unit)
	case "prefix":
		ok, want = strings.HasPrefix(value.String(), rule.String()), "start with "+text(rule)
	case "suffix":
		ok, want = strings.HasSuffix(value.String(), rule.String()), "end with "+text(rule)
	case "pattern":
		ok, want = r.matches(value), "match "+rule.String()
	case "well_known_regex":
		ok, want = r.matches(value), "match "+headerPattern(validate.KnownRegex(rule.Enum()), option(set, "strict"))
	case "defined_only":
		ok, want = fd.Enum().Values().ByNumber(protoreflect.EnumNumber(value.Int())) != nil, "be a defined value"
	case "unique":
		ok, want = isUnique(value.List()), "have no value twice"
	default:
		return "has the rule " + name + ", which is not supported"
	}
	if ok {
		return ""
	}
	return "must " + want
}

// text returns the value of a rule in a readable form.
func text(rule protoreflect.Value) string {
	switch rule := rule.Interface().(type) {
	case string:
		return strconv.Quote(rule)
	case protoreflect.Message:
		if d, ok := rule.Interface().(*durationpb.Duration); ok {
			return d.AsDuration().String()
		}
	case protoreflect.List:
		var items []string
		for i := range rule.Len() {
			items = append(items, text(rule.Get(i)))
		}
		return strings.Join(items, ", ")
	}
	return fmt.Sprint(rule.Interface())
}

func contains(list protoreflect.List, value protoreflect.Value) bool {
	for i := range list.Len() {
		if list.Get(i).Equal(value) {
			return true
		}
	}
	return false
}

// bounds contains the rules that bound numbers and durations, in words.
var bounds = map[string]string{"lt": "be less than", "lte": "be at most", "gt": "be greater than", "gte": "be at least"}

// inRange reports whether a value is within the bound, or outside a range that is
// forbidden: if the lower bound is not less than the upper one, the value needs only one.
func inRange(value protoreflect.Value, name string, bound protoreflect.Value, set protoreflect.Message) bool {
	if isWithin(value, name, bound) {
		return true
	}
	for other := range bounds {
		fd := set.Descriptor().Fields().ByName(protoreflect.Name(other))
		if other[0] == name[0] || !set.Has(fd) {
			continue
		}
		upper, lower := bound, set.Get(fd)
		if name[0] == 'g' {
			upper, lower = lower, upper
		}
		if compare(upper, lower) <= 0 && isWithin(value, other, set.Get(fd)) {
			return true
		}
	}
	return false
}

func isWithin(value protoreflect.Value, name string, bound protoreflect.Value) bool {
	order := compare(value, bound)
	switch name {
	case "lt":
		return order < 0
	case "lte":
		return order <= 0
	case "gt":
		return order > 0
	}
	return order >= 0
}

// compare compares two numbers, or two durations.
func compare(a, b protoreflect.Value) int {
	switch m := a.Interface().(type) {
	case int32, int64:
		return cmp.Compare(a.Int(), b.Int())
	case uint32, uint64:
		return cmp.Compare(a.Uint(), b.Uint())
	case protoreflect.Message:
		seconds, nanos := m.Descriptor().Fields().ByName("seconds"), m.Descriptor().Fields().ByName("nanos")
		return cmp.Or(compare(m.Get(seconds), b.Message().Get(seconds)), compare(m.Get(nanos), b.Message().Get(nanos)))
	}
	return cmp.Compare(a.Float(), b.Float())
}

// size returns the size that a rule such as min_len limits, and its unit.
func size(value protoreflect.Value, rule string) (n uint64, unit string) {
	switch v := value.Interface().(type) {
	case protoreflect.List:
		return uint64(v.Len()), "items"
	case protoreflect.Map:
		return uint64(v.Len()), "entries"
	case []byte:
		return uint64(len(v)), "bytes"
	}
	if strings.HasSuffix(rule, "_len") {
		return uint64(utf8.RuneCountInString(value.String())), "characters"
	}
	return uint64(len(value.String())), "bytes"
}

func (r rule) matches(value protoreflect.Value) bool {
	return r.pattern != nil && r.pattern.MatchString(value.String())
}

// headerPattern returns the pattern for names or values of HTTP headers.
func headerPattern(known validate.KnownRegex, strict bool) string {
	switch {
	case !strict:
		return "^[^\x00\n\r]*$"
	case known == validate.KnownRegex_HTTP_HEADER_NAME:
		return "^:?[0-9a-zA-Z!#$%&'*+-.^_|~`]+$"
	}
	return "^[^\x00-\x08\x0A-\x1F\x7F]*$"
}

func isUnique(list protoreflect.List) bool {
	seen := map[string]bool{}
	for i := range list.Len() {
		item := list.Get(i).String()
		if seen[item] {
			return false
		}
		seen[item] = true
	}
	return true
}
