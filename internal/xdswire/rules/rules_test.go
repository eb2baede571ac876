package rules

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/envoyproxy/protoc-gen-validate/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	_ "github.com/meshctl/meshctl/internal/xdswire/protos"
)

// generated is a message with methods of protoc-gen-validate.
type generated interface {
	proto.Message
	ValidateAll() error
}

// TestSameAsGenerated: for every field of Envoy's API, Check finds the violations that the
// generated code finds. The values of a field are those near the limits of its rules.
func TestSameAsGenerated(t *testing.T) {
	t.Parallel()
	broken, kept := map[string]bool{}, map[string]bool{}
	protoregistry.GlobalTypes.RangeMessages(func(mt protoreflect.MessageType) bool {
		if _, ok := mt.New().Interface().(generated); !ok {
			return true
		}
		fields := mt.Descriptor().Fields()
		for i := range fields.Len() {
			fd := fields.Get(i)
			names := ruleNames(fd)
			for _, value := range values(mt, fd) {
				m := mt.New()
				if value.IsValid() {
					m.Set(fd, value)
				}
				got, want := checker{}.field(m, compileField(fd)), generatedFault(m, fd.Name())
				if part := (checker{part: true}).field(m, compileField(fd)); part != nil && got == nil {
					t.Errorf("%s = %v: a part of a message gets %v, the message nothing", fd.FullName(), value, part)
				}
				if (got != nil) != want {
					t.Errorf("%s = %v: got %v, the generated code refuses it: %t", fd.FullName(), value, got, want)
				}
				for _, name := range names {
					broken[name], kept[name] = broken[name] || want, kept[name] || !want
				}
			}
		}
		for i := range mt.Descriptor().Oneofs().Len() {
			oneof := mt.Descriptor().Oneofs().Get(i)
			required := slices.Contains(requiredOneofs(mt.Descriptor()), oneof)
			if got, want := required && checkOneof(mt.New(), oneof) != nil, generatedFault(mt.New(), oneof.Name()); got != want {
				t.Errorf("%s: got %t, the generated code refuses it: %t", oneof.FullName(), got, want)
			}
		}
		return true
	})
	for name := range broken {
		if name != "message.skip" && (!broken[name] || !kept[name]) {
			t.Errorf("rule %s: broken %t, kept %t, want both", name, broken[name], kept[name])
		}
	}
	if len(broken) < 20 {
		t.Errorf("got only the rules %v", broken)
	}
}

// generatedFault reports whether the generated code refuses the field, or a value in it.
func generatedFault(m protoreflect.Message, field protoreflect.Name) bool {
	message, _ := m.Interface().(generated)
	var all interface{ AllErrors() []error }
	if !errors.As(message.ValidateAll(), &all) {
		return false
	}
	for _, err := range all.AllErrors() {
		var fault interface{ Field() string }
		if errors.As(err, &fault) {
			name, _, _ := strings.Cut(fault.Field(), "[")
			if strings.EqualFold(strings.ReplaceAll(name, "_", ""), strings.ReplaceAll(string(field), "_", "")) {
				return true
			}
		}
	}
	return false
}

// ruleNames returns the names of all rules of a field, such as repeated.items.string.min_len.
func ruleNames(fd protoreflect.FieldDescriptor) (names []string) {
	eachRule(fd, func(name string, _ protoreflect.Value) { names = append(names, name) })
	return names
}

func eachRule(fd protoreflect.FieldDescriptor, visit func(name string, value protoreflect.Value)) {
	rules, _ := proto.GetExtension(fd.Options(), validate.E_Rules).(*validate.FieldRules)
	var walk func(path string, m protoreflect.Message)
	walk = func(path string, m protoreflect.Message) {
		m.Range(func(rule protoreflect.FieldDescriptor, value protoreflect.Value) bool {
			name := path + string(rule.Name())
			if rule.Message() != nil && !rule.IsList() && rule.Message().ParentFile() == m.Descriptor().ParentFile() {
				walk(name+".", value.Message())
			} else {
				visit(name, value)
			}
			return true
		})
	}
	walk("", rules.ProtoReflect())
}

// values returns values of a field near the limits of its rules; an invalid one for a field
// without a value.
func values(mt protoreflect.MessageType, fd protoreflect.FieldDescriptor) []protoreflect.Value {
	var durations []*durationpb.Duration
	numbers, counts := []float64{0, 1, 2, -1, 1e9}, []int{0, 1, 2}
	texts := []string{"", "a", "a b", "A-b", ":a", "a\n", "a\t", "a\x7f", "/a", "a?b", "a/", "ä", ";", "a.mmdb"}
	eachRule(fd, func(name string, value protoreflect.Value) {
		last := name[strings.LastIndexByte(name, '.')+1:]
		switch v := value.Interface().(type) {
		case string:
			texts = append(texts, v, v+"a", "a"+v)
		case protoreflect.List:
			for i := range v.Len() {
				texts = append(texts, v.Get(i).String())
			}
		case protoreflect.Message:
			d, _ := v.Interface().(*durationpb.Duration)
			for _, nanos := range []int32{-1, 0, 1} {
				moved := &durationpb.Duration{Seconds: d.Seconds, Nanos: d.Nanos + nanos}
				if moved.Nanos < 0 {
					moved = &durationpb.Duration{Seconds: d.Seconds - 1, Nanos: 999_999_999}
				}
				if moved.IsValid() {
					durations = append(durations, moved)
				}
			}
		case uint64:
			if unit := last[strings.IndexByte(last, '_')+1:]; unit == "items" || unit == "pairs" {
				counts = append(counts, int(v)-1, int(v), int(v)+1)
			} else if unit == "len" || unit == "bytes" {
				for _, n := range []uint64{v / 2, v, v + 1} {
					texts = append(texts, strings.Repeat("a", int(n)), strings.Repeat("ä", int(n)))
				}
			}
		}
		if last == "lt" || last == "lte" || last == "gt" || last == "gte" {
			n := number(value)
			numbers = append(numbers, n, n+1, n-1, n+0.5, n-0.5)
		}
	})

	scalars := func(fd protoreflect.FieldDescriptor, empty func() protoreflect.Value) (out []protoreflect.Value) {
		return scalarsOf(fd, empty, texts, numbers, durations)
	}
	switch {
	case fd.IsList():
		items := scalars(fd, func() protoreflect.Value { return mt.New().NewField(fd).List().NewElement() })
		var out []protoreflect.Value
		for _, item := range items {
			list := mt.New().NewField(fd)
			list.List().Append(item)
			out = append(out, list)
		}
		for _, n := range counts {
			list := mt.New().NewField(fd)
			for i := range n {
				list.List().Append(items[i%len(items)])
			}
			out = append(out, list)
		}
		return out
	case fd.IsMap():
		var out []protoreflect.Value
		elements := scalars(fd.MapValue(), func() protoreflect.Value { return mt.New().NewField(fd).Map().NewValue() })
		add := func(key string, value protoreflect.Value) {
			if fd.MapKey().Kind() != protoreflect.StringKind {
				return
			}
			m := mt.New().NewField(fd)
			m.Map().Set(protoreflect.ValueOfString(key).MapKey(), value)
			out = append(out, m)
		}
		for _, value := range elements {
			add("a", value)
		}
		for _, key := range texts {
			add(key, elements[len(elements)-1])
		}
		return append(out, mt.New().NewField(fd))
	}
	out := scalars(fd, func() protoreflect.Value { return mt.New().NewField(fd) })
	return append(out, protoreflect.Value{})
}

func number(v protoreflect.Value) float64 {
	switch v.Interface().(type) {
	case int32, int64:
		return float64(v.Int())
	case uint32, uint64:
		return float64(v.Uint())
	case float32, float64:
		return v.Float()
	}
	return 0
}

// scalarsOf returns values for a field or an item of it. empty returns an empty message.
func scalarsOf(fd protoreflect.FieldDescriptor, empty func() protoreflect.Value, texts []string, numbers []float64, durations []*durationpb.Duration) (out []protoreflect.Value) {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return []protoreflect.Value{protoreflect.ValueOfBool(false), protoreflect.ValueOfBool(true)}
	case protoreflect.EnumKind:
		for _, n := range append(numbers, 600) {
			out = append(out, protoreflect.ValueOfEnum(protoreflect.EnumNumber(n)))
		}
	case protoreflect.MessageKind:
		out = append(out, empty())
		if isWrapper(fd.Message()) {
			value := fd.Message().Fields().ByName("value")
			for _, v := range scalarsOf(value, nil, texts, numbers, nil) {
				m := empty()
				m.Message().Set(value, v)
				out = append(out, m)
			}
		}
		if fd.Message().FullName() == "google.protobuf.Duration" {
			for _, d := range durations {
				out = append(out, protoreflect.ValueOfMessage(d.ProtoReflect()))
			}
		}
	case protoreflect.StringKind:
		for _, s := range texts {
			out = append(out, protoreflect.ValueOfString(s))
		}
	case protoreflect.BytesKind:
		for _, s := range texts {
			out = append(out, protoreflect.ValueOfBytes([]byte(s)))
		}
	default:
		for _, n := range numbers {
			out = append(out, numberOf(fd.Kind(), n))
		}
	}
	return out
}

func numberOf(kind protoreflect.Kind, n float64) protoreflect.Value {
	switch kind {
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(max(n, 0)))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(min(max(n, 0), math.MaxInt64/2)))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(n))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(n)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	}
	return protoreflect.ValueOfInt32(int32(n))
}

// TestPath: a violation names its field, also in messages, lists and maps.
func TestPath(t *testing.T) {
	t.Parallel()
	action := &routev3.Route_Redirect{Redirect: &routev3.RedirectAction{}}
	prefix := &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
	for name, tt := range map[string]struct {
		m            proto.Message
		path, reason string
	}{
		"field":   {&corev3.HeaderValue{}, "key", "must not be empty"},
		"message": {&corev3.HeaderValueOption{}, "header", "is missing"},
		"oneof":   {&corev3.DataSource{}, "", "must have one of filename, inline_bytes, inline_string, environment_variable"},
		"list": {
			&routev3.VirtualHost{Name: "a", Domains: []string{"*"}, Routes: []*routev3.Route{{Match: prefix, Action: action}, {Match: &routev3.RouteMatch{}}}},
			"routes[1].match", "must have one of prefix, path, safe_regex, connect_matcher, path_separated_prefix, path_match_policy",
		},
		"item": {&routev3.VirtualHost{Name: "a", Domains: []string{"*", "\n"}}, "domains[1]", "must match ^[^\x00\n\r]*$"},
		"map":  {&corev3.Metadata{TypedFilterMetadata: map[string]*anypb.Any{"": {}}}, "typed_filter_metadata[]", "must not be empty"},
		"none": {&corev3.HeaderValue{Key: "a"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := fmt.Sprint(Check(tt.m))
			if want := fmt.Sprint(&Violation{tt.path, tt.reason}); tt.reason != "" && got != want || tt.reason == "" && Check(tt.m) != nil {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// TestCheckPart: only what stays wrong after a merge is a violation of a part.
func TestCheckPart(t *testing.T) {
	t.Parallel()
	packed := func(m proto.Message) *anypb.Any {
		a, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	negative := durationpb.New(-1)
	tests := map[string]struct {
		part proto.Message
		want string // path
	}{
		"missing name and oneof":  {&routev3.Route{}, ""},
		"part of a message":       {&routev3.Route{Match: &routev3.RouteMatch{}}, ""},
		"item without its oneof":  {&routev3.VirtualHost{Routes: []*routev3.Route{{Match: &routev3.RouteMatch{}}}}, "routes[0].match"},
		"no item":                 {&routev3.VirtualHost{Routes: []*routev3.Route{}}, ""},
		"value":                   {&corev3.HealthCheck{Timeout: negative}, "timeout"},
		"value in a message":      {&corev3.HealthCheck{EventService: &corev3.EventServiceConfig{}, Interval: negative}, "interval"},
		"part in an extension":    {&corev3.TypedExtensionConfig{TypedConfig: packed(&corev3.HealthCheck{})}, ""},
		"value in an extension":   {&corev3.TypedExtensionConfig{TypedConfig: packed(&corev3.HealthCheck{Timeout: negative})}, "typed_config.timeout"},
		"item of the wrong value": {&corev3.HealthCheck{EventLogger: []*corev3.TypedExtensionConfig{{}}}, "event_logger[0].name"},
	}
	for name, test := range tests {
		got := ""
		if v := CheckPart(test.part); v != nil {
			got = v.Path
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}
