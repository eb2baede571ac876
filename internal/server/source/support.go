package source

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Support says how far a kind or a field has an effect.
type Support string

// The values of Support.
const (
	Works    Support = "works"
	Partly   Support = "partly"
	NoEffect Support = "no effect"
)

// APIKind is a kind of the Istio API or of the Kubernetes Gateway API.
type APIKind struct {
	Group string
	Kind  string
	// Plural is the name of the resource, Versions are those that exist, the
	// preferred one first.
	Plural   string
	Versions []string
	Support  Support
	// Meaning says which part has an effect, or what follows from having none.
	Meaning string
	// Unreported is set for kinds of which nothing is reported.
	Unreported bool
	// Fields are those of the spec, when some of them have no effect.
	Fields []APIField
}

// APIField is a field of a kind or of MeshConfig.
type APIField struct {
	// Path has the JSON names from the spec on, without indexes: servers.tls.
	Path    string
	Support Support
	// Meaning says which part has an effect, or what follows from having none.
	Meaning string
	// lacks reports whether the value of a field that works partly has no
	// effect. Of a list it is called for each item. May be nil.
	lacks func(value proto.Message) bool
}

// security reports whether objects of the kind protect something.
func (k *APIKind) security() bool { return k.Group == groupSecurity }

// shared reports whether objects of the kind may be meant for other programs.
func (k *APIKind) shared() bool { return !isIstioGroup(k.Group) }

// unread reports whether objects of the kind have no effect, are not even
// decoded, and are reported.
func (k *APIKind) unread() bool {
	object, _ := newObject(k.Group, snapshotKind(k.Kind))
	return k.Support == NoEffect && !k.Unreported && object == nil
}

// groupResource names the resource, such as gateways.networking.istio.io.
func (k *APIKind) groupResource() string { return k.Plural + "." + k.Group }

func isIstioGroup(group string) bool { return strings.HasSuffix(group, ".istio.io") }

// findKind returns the kind of the API, nil when there is none.
func findKind(group, kind string) *APIKind {
	i := slices.IndexFunc(apiKinds, func(k APIKind) bool { return k.Group == group && k.Kind == kind })
	if i < 0 {
		return nil
	}
	return &apiKinds[i]
}

// kindsOf returns the names of the kinds of a group.
func kindsOf(group string) []string {
	var out []string
	for i := range apiKinds {
		if apiKinds[i].Group == group {
			out = append(out, apiKinds[i].Kind)
		}
	}
	return out
}

// IstioKindsWithoutEffect returns the names of the kinds of Istio that have no
// effect.
func IstioKindsWithoutEffect() []string {
	var out []string
	for i := range apiKinds {
		if k := &apiKinds[i]; k.Support == NoEffect && isIstioGroup(k.Group) {
			out = append(out, k.Kind)
		}
	}
	return out
}

// withoutEffect reports the object as a whole when its kind has no effect, or
// else each part of its spec that has none.
func (k *APIKind) withoutEffect(spec proto.Message) []*FieldError {
	if k.Support == NoEffect {
		return []*FieldError{noEffect("", k.Meaning)}
	}
	var out []*FieldError
	rows := make(map[string]*APIField, len(k.Fields))
	for i := range k.Fields {
		rows[k.Fields[i].Path] = &k.Fields[i]
	}
	eachSet(spec.ProtoReflect(), "", "spec", func(path, field string, value proto.Message) (deeper bool) {
		row := rows[path]
		switch {
		case row == nil:
			return false
		case row.Support == NoEffect, row.lacks != nil && value != nil && row.lacks(value):
			out = append(out, noEffect(field, row.Meaning))
			return false
		}
		return row.Support == Partly
	})
	return out
}

func noEffect(field, meaning string) *FieldError {
	return faultf(field, "has no effect: %s", strings.ReplaceAll(meaning, "`", ""))
}

// eachSet calls visit for each field that is set, with its path, its place in
// the object, and its value if that is a message; of a list of messages for
// each item. It goes on with the fields of the value when visit returns true.
func eachSet(m protoreflect.Message, path, place string, visit func(path, place string, value proto.Message) bool) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) {
			continue
		}
		below, field := strings.TrimPrefix(path+"."+fd.JSONName(), "."), place+"."+fd.JSONName()
		one := func(field string, value protoreflect.Message) {
			if visit(below, field, value.Interface()) {
				eachSet(value, below, field, visit)
			}
		}
		switch {
		case fd.IsList() && fd.Message() != nil:
			for j := range m.Get(fd).List().Len() {
				one(at(field, j), m.Get(fd).List().Get(j).Message())
			}
		case fd.Message() != nil && !fd.IsMap():
			one(field, m.Get(fd).Message())
		default:
			visit(below, field, nil)
		}
	}
}
