package source

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// Groups of the Istio API.
const (
	groupNetworking = "networking.istio.io"
	groupSecurity   = "security.istio.io"
)

// Decode reads and converts one object of a document. The place is that of
// the value; errors are of type *FieldError and know the line of the field.
func (c *Converter) Decode(v yamldoc.Value, place snapshot.Place) (Result, error) {
	r, err := c.decode(v, place)
	for _, w := range r.Warnings {
		w.Line = lineOf(v, w)
	}
	if fault, ok := errors.AsType[*FieldError](err); ok {
		fault.Line = lineOf(v, fault)
		if fault.textFirst > 0 {
			fault.Err = fmt.Errorf("%w, first in line %d", fault.Err, v.TextLineOf(fault.Field, fault.textFirst))
		}
	}
	return r, err
}

func lineOf(v yamldoc.Value, f *FieldError) int {
	if f.TextLine > 0 {
		return v.TextLineOf(f.Field, f.TextLine)
	}
	return v.LineOf(f.Field)
}

func (c *Converter) decode(v yamldoc.Value, place snapshot.Place) (Result, error) {
	if !v.IsMapping() {
		return Result{}, faultf("", "is not an object: want apiVersion, kind and metadata")
	}
	kind := snapshot.Kind(v.Get("kind").Text())
	r := Result{Key: snapshot.Key{
		Kind: kind, Cluster: c.Cluster,
		Namespace: v.Get("metadata").Get("namespace").Text(), Name: v.Get("metadata").Get("name").Text(),
	}}
	apiVersion := v.Get("apiVersion").Text()
	switch {
	case kind == "":
		return r, faultf("kind", "is missing: not a Kubernetes object")
	case apiVersion == "":
		return r, faultf("apiVersion", "is missing: not a Kubernetes object")
	}
	group, version, ok := strings.Cut(apiVersion, "/")
	if !ok {
		group, version = "", apiVersion
	}
	object, versions := newObject(group, kind)
	if object == nil {
		if r = unread(r.Key, group); c.Remote {
			return Result{Key: r.Key, Skipped: true}, nil
		}
		return r, nil
	}
	r.Security = !c.Remote && group == groupSecurity
	_, r.Key.Kind = metaOf(object)
	r.Key.Kind = c.kindOf(r.Key.Kind, r.Key.Namespace, r.Key.Name)
	if !strings.Contains(versions, version+" ") {
		return r, faultf("apiVersion", "%s of version %q is not read: use %s", kind, version, strings.Fields(versions)[0])
	}
	if r.Key.Namespace == "" && !isClusterWide(kind) {
		r.Key.Namespace = metav1.NamespaceDefault
	}
	if fault := decodeObject(v, object); fault != nil {
		return r, fault
	}
	return c.Convert(object, place)
}

// newObject returns an empty object of a kind that is read, with the versions
// of it that are, each followed by a space; nil for another kind.
func newObject(group string, kind snapshot.Kind) (object any, versions string) {
	istio := func(spec proto.Message) *Istio { return &Istio{Kind: kind, Spec: spec} }
	const all = "v1 v1beta1 v1alpha3 "
	switch group + "/" + string(kind) {
	case "/Namespace":
		return &corev1.Namespace{}, "v1 "
	case "/Node":
		return &corev1.Node{}, "v1 "
	case "/Pod":
		return &corev1.Pod{}, "v1 "
	case "/Service":
		return &corev1.Service{}, "v1 "
	case "/ConfigMap":
		return &corev1.ConfigMap{}, "v1 "
	case "/Secret":
		return &corev1.Secret{}, "v1 "
	case "/ServiceAccount":
		return &corev1.ServiceAccount{}, "v1 "
	case discoveryv1.GroupName + "/EndpointSlice":
		return &discoveryv1.EndpointSlice{}, "v1 "
	case groupGatewayAPI + "/Gateway":
		return &gatewayv1.Gateway{}, "v1 v1beta1 "
	case groupNetworking + "/Gateway":
		return istio(&networkingv1alpha3.Gateway{}), all
	case groupNetworking + "/Sidecar":
		return istio(&networkingv1alpha3.Sidecar{}), all
	case groupNetworking + "/DestinationRule":
		return istio(&networkingv1alpha3.DestinationRule{}), all
	case groupNetworking + "/VirtualService":
		return istio(&networkingv1alpha3.VirtualService{}), all
	case groupNetworking + "/ServiceEntry":
		return istio(&networkingv1alpha3.ServiceEntry{}), all
	case groupNetworking + "/WorkloadEntry":
		return istio(&networkingv1alpha3.WorkloadEntry{}), all
	case groupNetworking + "/EnvoyFilter":
		return istio(&networkingv1alpha3.EnvoyFilter{}), "v1alpha3 "
	case groupSecurity + "/PeerAuthentication":
		return istio(&securityv1beta1.PeerAuthentication{}), all
	}
	return nil, ""
}

// istioKeys are the fields of an Istio object.
var istioKeys = []string{"apiVersion", "kind", "metadata", "spec", "status"}

// fieldOf is the path of a key, which may hold what separates parts of a path.
func fieldOf(key string) string {
	if strings.ContainsAny(key, ".[]") {
		return "[" + key + "]"
	}
	return key
}

func fieldHint(key string) string {
	if near := output.NearestWord(key, istioKeys); near != "" {
		return fmt.Sprintf(", did you mean %s?", near)
	}
	return ""
}

// decodeObject fills the object. Fields that a Kubernetes type does not have
// are ignored, as they come from later versions; in an Istio object they are
// errors, as they are mostly typing mistakes.
func decodeObject(v yamldoc.Value, object any) *FieldError {
	istio, ok := object.(*Istio)
	if !ok {
		return decodeKube(v, "", object)
	}
	for _, key := range v.Keys() {
		if !slices.Contains(istioKeys, key) {
			return faultf(fieldOf(key), "is not a field of %s%s", istio.Kind, fieldHint(key))
		}
	}
	if fault := decodeKube(v.Get("metadata"), "metadata", &istio.ObjectMeta); fault != nil {
		return fault
	}
	if _, ok := istio.Spec.(*networkingv1alpha3.WorkloadEntry); ok && !v.Get("status").IsNull() {
		if fault := decodeKube(v.Get("status"), "status", &istio.Status); fault != nil {
			return fault
		}
	}
	spec := v.Get("spec")
	if spec.IsNull() {
		return nil
	}
	fault := decodeProto(spec, istio.Spec, strict)
	return under("spec", fault)
}

// under puts the field of a fault below another.
func under(parent string, fault *FieldError) *FieldError {
	if fault == nil || parent == "" {
		return fault
	}
	switch {
	case fault.Field == "":
		fault.Field = parent
	case fault.Field[0] == '[':
		fault.Field = parent + fault.Field
	default:
		fault.Field = parent + "." + fault.Field
	}
	return fault
}

func decodeKube(v yamldoc.Value, field string, into any) *FieldError {
	data, err := v.JSON()
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err == nil {
		return nil
	}
	at := v.Fault(func(b []byte) error {
		return json.Unmarshal(b, reflect.New(reflect.TypeOf(into).Elem()).Interface())
	})
	return under(field, &FieldError{Field: at, Err: errors.New(kubeReason(err, at))})
}

// Modes of decodeProto.
const (
	strict  = false
	lenient = true
)

func decodeProto(v yamldoc.Value, into proto.Message, discardUnknown bool) *FieldError {
	opts := protojson.UnmarshalOptions{DiscardUnknown: discardUnknown}
	data, err := v.JSON()
	if err == nil {
		err = opts.Unmarshal(data, into)
	}
	if err == nil {
		return nil
	}
	at := v.Fault(func(b []byte) error { return opts.Unmarshal(b, into.ProtoReflect().New().Interface()) })
	return &FieldError{Field: at, Err: errors.New(protoReason(err, at, into.ProtoReflect().Descriptor()))}
}

var (
	kubeMismatch = regexp.MustCompile(`cannot unmarshal (\S+).* of type (.+)$`)
	protoPrefix  = regexp.MustCompile(`^proto:[\s\x{00a0}]*(syntax error )?\(line \d+:\d+\): `)
	protoEnum    = regexp.MustCompile(`^invalid value for enum field \S+: ([^{\[].*)$`)
)

// kubeReason says in a person's words what the JSON decoder says in Go's.
func kubeReason(err error, field string) string {
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
	// jsonWords are a person's words for what the JSON decoder has found.
	jsonWords = map[string]string{
		"array": "a list", "object": "a mapping", "number": "a number", "string": "a string", "bool": "true or false",
	}
	// isPortOrName finds the fields that take a number or a name.
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

// protoReason says what the decoder says, and for an enum what it may be.
func protoReason(err error, field string, message protoreflect.MessageDescriptor) string {
	reason := protoPrefix.ReplaceAllString(err.Error(), "")
	m := protoEnum.FindStringSubmatch(reason)
	enum := enumAt(message, field)
	if m == nil || enum == nil {
		return reason
	}
	var names []string
	for i := range enum.Values().Len() {
		names = append(names, string(enum.Values().Get(i).Name()))
	}
	return fmt.Sprintf("%s is none of %s", m[1], strings.Join(names, ", "))
}

// enumAt is the enum that the field at the path takes, nil for another.
func enumAt(message protoreflect.MessageDescriptor, path string) protoreflect.EnumDescriptor {
	var enum protoreflect.EnumDescriptor
	isKey := false // the part is the index or the key of the field before it
	for _, part := range strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		if isKey {
			isKey = false
			continue
		}
		if message == nil {
			return nil
		}
		fd := message.Fields().ByJSONName(part)
		if fd == nil {
			fd = message.Fields().ByTextName(part)
		}
		if fd == nil {
			return nil
		}
		isKey = fd.IsList() || fd.IsMap()
		if fd.IsMap() {
			fd = fd.MapValue()
		}
		message, enum = fd.Message(), fd.Enum()
	}
	return enum
}
