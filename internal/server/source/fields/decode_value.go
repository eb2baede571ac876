package fields

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/meshctl/meshctl/internal/istiojson"
	"github.com/meshctl/meshctl/internal/kubejson"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// FieldOf returns the path of a key, which may contain dots and brackets.
func FieldOf(key string) string {
	if strings.ContainsAny(key, ".[]") {
		return "[" + key + "]"
	}
	return key
}

// Under prepends a path to the fields of faults.
func Under(parent string, fault *Error) *Error {
	if fault == nil || parent == "" {
		return fault
	}
	for _, f := range fault.Further {
		_ = Under(parent, f) // changes it
	}
	if parent != "spec" || !strings.HasPrefix(fault.Field, "metadata.") { // which is no field of the spec
		fault.Field = FieldBelow(parent, fault.Field)
	}
	return fault
}

// FieldBelow returns the path of a field below a parent. Each of the two may be empty.
func FieldBelow(parent, field string) string {
	if parent == "" || field == "" || field[0] == '[' {
		return parent + field
	}
	return parent + "." + field
}

// DecodeKube decodes a value at the path field into a part of a Kubernetes object. It ignores unknown
// fields.
func DecodeKube(v yamldoc.Value, field string, into any) *Error {
	data, err := v.JSON()
	if err == nil {
		err = kubejson.Check(data, into)
	}
	if err != nil {
		return Faultf(field, "%w", err)
	}
	if err = json.Unmarshal(data, into); err == nil {
		return nil
	}
	decode := func(b []byte) error {
		return json.Unmarshal(b, reflect.New(reflect.TypeOf(into).Elem()).Interface())
	}
	return Under(field, Refusals(v, err, decode, KubeReason))
}

// Modes of DecodeProto.
const (
	Strict  = false
	Lenient = true
)

// DecodeProto decodes a value into a message of Istio.
func DecodeProto(v yamldoc.Value, into proto.Message, discardUnknown bool) *Error {
	opts := protojson.UnmarshalOptions{DiscardUnknown: discardUnknown}
	data, err := v.JSON()
	if err == nil {
		err = istiojson.Unmarshal(opts, data, into)
	}
	if err == nil {
		return nil
	}
	decode := func(b []byte) error { return istiojson.Unmarshal(opts, b, into.ProtoReflect().New().Interface()) }
	return Refusals(v, err, decode, func(err error, field string) string {
		return ProtoReason(err, field, into.ProtoReflect().Descriptor())
	})
}

// Refusals returns the parts of a value that decode refuses, the whole with err, with their reasons.
func Refusals(v yamldoc.Value, err error, decode func([]byte) error, reason func(err error, field string) string) *Error {
	var faults *Error
	for _, r := range v.Refusals(err, maxFaults, decode) {
		faults = faults.And(&Error{Field: r.Path, Err: errors.New(reason(r.Err, r.Path))})
	}
	return faults
}

var (
	kubeMismatch = regexp.MustCompile(`cannot unmarshal (\S+).* of type (.+)$`)
	protoEnum    = regexp.MustCompile(`^invalid value for enum field \S+: ([^{\[].*)$`)
	protoTime    = regexp.MustCompile(`^invalid google\.protobuf\.Duration value (".*")$`)
	protoToken   = regexp.MustCompile(`^unexpected token (.*)$`)
)

// KubeReason translates an error of the JSON decoder from terms of Go to terms of
// YAML.
func KubeReason(err error, field string) string {
	m := kubeMismatch.FindStringSubmatch(err.Error())
	if m == nil {
		return err.Error()
	}
	is, want := cmp.Or(jsonWords[m[1]], m[1]), typeWord(m[2])
	switch {
	case is == "a number" && is == want:
		return "is not a whole number, or too large a one"
	case isPortOrName.MatchString(field):
		want = "a number or a name"
	}
	return "is " + is + ", want " + want
}

var (
	// jsonWords translates the JSON decoder's words for values.
	jsonWords = map[string]string{
		"array": "a list", "object": "a mapping", "number": "a number", "string": "a string", "bool": "true or false",
	}
	// isPortOrName matches the fields that take a number or a name.
	isPortOrName = regexp.MustCompile(`(^|\.)(targetPort|(httpGet|tcpSocket)\.port)$`)
)

func typeWord(goType string) string {
	switch {
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	case strings.HasPrefix(goType, "map["), strings.Contains(goType, "."):
		return "a mapping"
	case strings.Contains(goType, "int"), strings.Contains(goType, "float"):
		return "a number"
	case goType == "bool":
		return "true or false"
	}
	return "a string"
}

// ProtoReason returns the reason of the decoder, with the values that are valid for an enum,
// a duration, a list or a mapping.
func ProtoReason(err error, field string, message protoreflect.MessageDescriptor) string {
	const duration = "a duration, such as 5s, 100ms or 1m"
	reason := istiojson.Reason(err)
	at, whole := fieldAt(message, field)
	if m := protoTime.FindStringSubmatch(reason); m != nil {
		return m[1] + " is not " + duration
	}
	if at == nil {
		return reason + nearestField(message, field)
	}
	if m := protoToken.FindStringSubmatch(reason); m != nil {
		is := cmp.Or(map[string]string{"[": "a list", "{": "a mapping"}[m[1]], m[1])
		switch {
		case whole && at.IsList():
			return "is " + is + ", want a list"
		case at.Message() == nil || whole && at.IsMap():
		case at.Message().FullName() == "google.protobuf.Duration":
			return "is " + is + ", want " + duration
		case !strings.HasPrefix(string(at.Message().FullName()), "google.protobuf."):
			return "is " + is + ", want a mapping"
		}
		return reason
	}
	m := protoEnum.FindStringSubmatch(reason)
	if m == nil || at.Enum() == nil {
		return reason
	}
	var names []string
	for i := range at.Enum().Values().Len() {
		names = append(names, string(at.Enum().Values().Get(i).Name()))
	}
	return fmt.Sprintf("%s is none of %s", m[1], strings.Join(names, ", "))
}

// nearestField proposes a field in place of the one at the path, which the message does not have.
func nearestField(message protoreflect.MessageDescriptor, path string) string {
	parent, name := "", path
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		parent, name = path[:i], path[i+1:]
		of, whole := fieldAt(message, parent)
		if of == nil || whole || of.Message() == nil {
			return ""
		}
		message = of.Message()
	}
	isEnvoy := strings.HasPrefix(string(message.FullName()), "envoy.") // whose documentation has the names of protobuf
	var names []string
	for i := range message.Fields().Len() {
		fd := message.Fields().Get(i)
		if isEnvoy {
			names = append(names, string(fd.Name()))
		} else {
			names = append(names, fd.JSONName())
		}
	}
	if near := output.NearestWord(name, names); near != "" {
		return " (did you mean " + near + "?)"
	}
	return ""
}

// fieldAt returns the field at the path, or nil. whole reports whether the path names a whole
// list or map.
func fieldAt(message protoreflect.MessageDescriptor, path string) (at protoreflect.FieldDescriptor, whole bool) {
	isKey := false // the part is an index or a map key
	for _, part := range strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		if isKey {
			if isKey = false; at.IsMap() {
				at = at.MapValue()
			}
			continue
		}
		if message == nil {
			return nil, false
		}
		fd := istiojson.FieldNamed(message, part)
		if fd == nil {
			return nil, false
		}
		isKey = fd.IsList() || fd.IsMap()
		if at = fd; fd.IsMap() {
			fd = fd.MapValue()
		}
		message = fd.Message()
	}
	return at, isKey
}
