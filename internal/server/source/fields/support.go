package fields

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Support is the extent to which a kind or a field has an effect.
type Support string

// The values of Support.
const (
	Works    Support = "works"
	Partly   Support = "partly"
	NoEffect Support = "no effect"
)

// Field is a field of a kind or of MeshConfig.
type Field struct {
	// Path is the path of JSON names within the spec, without indexes: servers.tls.
	Path    string
	Support Support
	// Meaning names the part with an effect, or the consequence of having none.
	Meaning string
	// Lacks reports whether a value of a field that works partly has no effect. For
	// a list it is called with each item. May be nil.
	Lacks func(value proto.Message) bool
}

// WithoutEffect returns a warning about a field without effect.
func WithoutEffect(field, meaning string) *Error {
	return Faultf(field, "has no effect: %s", strings.ReplaceAll(meaning, "`", ""))
}

// EachSet calls visit for each field that is set, with its path, its place in the
// object, and its value if the value is a message. For a list of messages it calls
// visit for each item. It descends into a value if visit returns true.
func EachSet(m protoreflect.Message, path, place string, visit func(path, place string, value proto.Message) bool) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) {
			continue
		}
		below, field := strings.TrimPrefix(path+"."+fd.JSONName(), "."), place+"."+fd.JSONName()
		one := func(field string, value protoreflect.Message) {
			if visit(below, field, value.Interface()) {
				EachSet(value, below, field, visit)
			}
		}
		switch {
		case fd.IsList() && fd.Message() != nil:
			for j := range m.Get(fd).List().Len() {
				one(At(field, j), m.Get(fd).List().Get(j).Message())
			}
		case fd.Message() != nil && !fd.IsMap():
			one(field, m.Get(fd).Message())
		default:
			visit(below, field, nil)
		}
	}
}
