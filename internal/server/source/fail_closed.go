package source

import (
	"cmp"
	stdjson "encoding/json"
	"errors"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/istiojson"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// ClosedMeaning states what Result.Closed does.
const ClosedMeaning = "its valid parts are enforced, and the invalid parts refuse requests rather than permit them"

// closedKind adds kind.closed to the description of a kind.
func closedKind(k *kind, closed func(*conversion, yamldoc.Value) snapshot.Object) *kind {
	k.closed = closed
	return k
}

// UnreadPolicy returns Result.Closed of a security policy of which only the kind and the name are
// known, or of an object that was likely meant to be one. It is nil for other objects.
func (c *Converter) UnreadPolicy(r *Result, group string) snapshot.Object {
	if !r.Security || c.Remote || c.IgnorePolicies {
		return nil
	}
	k, name := findKind(groupSecurity, string(r.Key.Kind)), r.Key.Name
	if k == nil || group != groupSecurity { // Names of objects have no colon, so no object has this key.
		near, _ := kindHint(group, string(r.Key.Kind))
		meant := findKind(groupSecurity, near)
		k, name = cmp.Or(k, meant, authorizationPolicyKind), string(r.Key.Kind)+":"+name
	}
	m := snapshot.Meta{Cluster: c.Cluster, Namespace: cmp.Or(r.Key.Namespace, metav1.NamespaceDefault), Name: name}
	if k.closed == nil || r.Key.Name == "" || !mesh.IsDNSLabel(m.Namespace) {
		return nil
	}
	return k.closed(&conversion{Converter: c, meta: m, istio: &Istio{}}, unreadSpec())
}

// LeftOut returns a security policy of a resource that stands for the policies of a namespace
// that are not read because of a limit. It refuses what any of them might. It is nil for other
// resources.
func (c *Converter) LeftOut(r *Resource, namespace string) snapshot.Object {
	return c.UnreadPolicy(&Result{
		Key:      snapshot.Key{Kind: r.Kind, Namespace: namespace, Name: "left-out:"},
		Security: r.Security,
	}, r.Group)
}

// closed returns Result.Closed of an object with a fault, or nil. Of an object that exceeds a
// limit, nothing is used but its small fields.
func (c *Converter) closed(k *kind, object any, spec yamldoc.Value, place snapshot.Place, fault error) snapshot.Object {
	istio, ok := object.(*Istio)
	if !ok || k.closed == nil || c.Remote {
		return nil
	}
	if of, ok := errors.AsType[*fields.Error](fault); ok && of.Limit {
		text, err := spec.JSON()
		if err != nil {
			text = []byte("null")
		}
		spec = smallParts(text)
	}
	m := c.meta(&istio.ObjectMeta, k, place)
	if checkMeta(m, k) != nil {
		return nil
	}
	return k.closed(&conversion{Converter: c, meta: m, istio: istio}, spec)
}

// specOf returns the spec of an object from a Kubernetes API. A spec that cannot be read is a text, of
// which nothing is understood.
func specOf(text []byte) yamldoc.Value {
	var body struct {
		Spec stdjson.RawMessage `json:"spec"`
	}
	if stdjson.Unmarshal(text, &body) != nil || len(body.Spec) == 0 {
		return yamldoc.Value{}
	}
	doc, err := yamldoc.Parse(yamldoc.Chunk{Text: body.Spec, Line: 1})
	if err != nil {
		return unreadSpec()
	}
	return doc
}

// smallPartsOf is specOf for an object that is too large to be read.
func smallPartsOf(text []byte) yamldoc.Value {
	var body struct {
		Spec stdjson.RawMessage `json:"spec"`
	}
	if stdjson.Unmarshal(text, &body) != nil || len(body.Spec) == 0 {
		return unreadSpec()
	}
	return smallParts(body.Spec)
}

// smallParts returns the spec of a policy that is too large. In place of a large field it has a
// text, so that the field is not understood.
func smallParts(spec []byte) yamldoc.Value {
	const small = 16 << 10
	var fields map[string]stdjson.RawMessage
	if stdjson.Unmarshal(spec, &fields) != nil || len(fields) > maxListeners {
		return unreadSpec()
	}
	for name, value := range fields {
		if len(name) > small {
			return unreadSpec()
		}
		if len(value) > small {
			fields[name] = stdjson.RawMessage(`"too large"`)
		}
	}
	text, err := stdjson.Marshal(fields)
	if err != nil {
		return unreadSpec()
	}
	doc, err := yamldoc.Parse(yamldoc.Chunk{Text: text, Line: 1})
	if err != nil {
		return unreadSpec()
	}
	return doc
}

// unreadSpec returns a spec of which nothing is understood.
func unreadSpec() yamldoc.Value {
	doc, _ := yamldoc.Parse(yamldoc.Chunk{Text: []byte("unread"), Line: 1})
	return doc
}

// understood sets the fields of a message that a value sets and that are understood.
func understood(v yamldoc.Value, m protoreflect.Message) {
	for key, of := range v.Fields() {
		fd := istiojson.FieldNamed(m.Descriptor(), key)
		switch {
		case fd == nil || of.IsNull():
		case fd.IsList():
			items, _ := of.Items()
			for _, item := range items {
				understoodItem(item, fd, m)
			}
		case fd.Message() != nil && !fd.IsMap():
			if of.IsMapping() {
				understood(of, m.Mutable(fd).Message())
			}
		default:
			if one := m.New(); decodeField(key, of, false, one) {
				m.Set(fd, one.Get(fd))
			}
		}
	}
}

// understoodItem appends an item to a list. An item that is not understood is empty, so that no check
// accepts it as a value.
func understoodItem(item yamldoc.Value, fd protoreflect.FieldDescriptor, m protoreflect.Message) {
	list := m.Mutable(fd).List()
	e := list.NewElement()
	if fd.Message() != nil {
		understood(item, e.Message())
	} else if one := m.New(); decodeField(fd.JSONName(), item, true, one) && one.Get(fd).List().Len() == 1 {
		e = one.Get(fd).List().Get(0)
	}
	list.Append(e)
}

// decodeField decodes the value of a field, or of an item of a list, into a message. It
// reports whether the value is valid.
func decodeField(key string, v yamldoc.Value, item bool, into protoreflect.Message) bool {
	text, err := v.JSON()
	if err != nil {
		return false
	}
	value := stdjson.RawMessage(text)
	var object any = map[string]any{key: value}
	if item {
		object = map[string]any{key: []any{value}}
	}
	whole, err := stdjson.Marshal(object)
	return err == nil && istiojson.Unmarshal(protojson.UnmarshalOptions{}, whole, into.Interface()) == nil
}

// exact reports whether all of some fields of a message are understood.
func exact[T any, M interface {
	*T
	proto.Message
}](v yamldoc.Value, names ...string) bool {
	for _, name := range names {
		if of := v.Get(name); !of.IsNull() && !decodeField(name, of, false, M(new(T)).ProtoReflect()) {
			return false
		}
	}
	return v.IsMapping() || v.IsNull()
}

// hasUnknown reports whether a value has a field that the message does not have.
func hasUnknown(v yamldoc.Value, m proto.Message) bool {
	for _, key := range v.Keys() {
		if istiojson.FieldNamed(m.ProtoReflect().Descriptor(), key) == nil {
			return true
		}
	}
	return false
}
