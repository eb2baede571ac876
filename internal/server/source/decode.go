package source

import (
	"bytes"
	"cmp"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/meshctl/meshctl/internal/istiojson"
	"github.com/meshctl/meshctl/internal/kubejson"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// Decode decodes and converts one object of a document. place is the place of the
// value. Errors are of type *fields.Error or fields.Faults, with the line of each field.
func (c *Converter) Decode(v yamldoc.Value, place snapshot.Place) (Result, error) {
	r, err := c.decode(v, place)
	r.Suppress = v.Get("metadata").Get("annotations").Get(mesh.AnnotationSuppress).Text()
	for _, w := range r.Warnings {
		w.Line = lineOf(v, w)
	}
	for _, fault := range fields.FaultsOf(err) {
		fault.Line = lineOf(v, fault)
		if fault.TextFirst > 0 {
			fault.Err = fmt.Errorf("%w, first in line %d", fault.Err, v.TextLineOf(fault.Field, fault.TextFirst))
		}
	}
	return r, err
}

func lineOf(v yamldoc.Value, f *fields.Error) int {
	if f.TextLine > 0 {
		return v.TextLineOf(f.Field, f.TextLine)
	}
	return v.LineOf(f.Field)
}

func (c *Converter) decode(v yamldoc.Value, place snapshot.Place) (Result, error) {
	if !v.IsMapping() {
		return Result{}, fields.Faultf("", "is not an object: want apiVersion, kind and metadata")
	}
	name := v.Get("kind").Text()
	key := snapshot.Key{
		Kind: snapshot.Kind(name), Cluster: c.Cluster,
		Namespace: v.Get("metadata").Get("namespace").Text(), Name: v.Get("metadata").Get("name").Text(),
	}
	apiVersion := v.Get("apiVersion").Text()
	switch {
	case name == "":
		return Result{Key: key}, fields.Faultf("kind", "is missing: not a Kubernetes object")
	case apiVersion == "":
		return Result{Key: key}, fields.Faultf("apiVersion", "is missing: not a Kubernetes object")
	}
	group, version := splitVersion(apiVersion)
	k := findKind(group, name)
	if k == nil || k.newObject == nil {
		if c.Remote {
			return Result{Key: unreadResult(key, group).Key, Skipped: true}, nil
		}
		r := unreadResult(key, group)
		if k == nil && !isIstioGroup(group) {
			if r.Warnings = append(r.Warnings, workloadAnnotations(key.Kind, v)...); len(r.Warnings) > 0 {
				r.Key.Namespace = cmp.Or(r.Key.Namespace, metav1.NamespaceDefault)
			}
		}
		r.Closed = c.UnreadPolicy(&r, group)
		return r, nil
	}
	r := c.resultOf(k, key.Namespace, key.Name)
	if r.Key.Namespace == "" && !k.clusterWide {
		r.Key.Namespace = metav1.NamespaceDefault
	}
	if !slices.Contains(k.versions, version) {
		r.Closed = c.UnreadPolicy(&r, group)
		return r, fields.Faultf("apiVersion", "%s of version %q is not read: use %s", name, version, k.versions[0])
	}
	object := k.newObject()
	if fault := fields.YamlSizeFault(v); fault != nil {
		istio, isIstio := object.(*Istio)
		if isIstio && fields.YamlSizeFault(v.Get("metadata")) == nil {
			_ = fields.DecodeKube(v.Get("metadata"), "", &istio.ObjectMeta)
		}
		r.Closed = c.closed(k, object, v.Get("spec"), place, fault)
		return r, fault
	}
	if fault := decodeObject(v, object); fault != nil {
		err := fault.AsError()
		r.Closed = c.closed(k, object, v.Get("spec"), place, err)
		return r, err
	}
	out, err := c.Convert(object, place)
	if err != nil {
		out.Closed = c.closed(k, object, v.Get("spec"), place, err)
	} else if k.doubts != nil {
		out.Warnings = append(out.Warnings, k.doubts(v.Get("spec"))...)
	}
	return out, err
}

// splitVersion splits an apiVersion. The group of the core is empty.
func splitVersion(apiVersion string) (group, version string) {
	group, version, ok := strings.Cut(apiVersion, "/")
	if !ok {
		return "", apiVersion
	}
	return group, version
}

// istioKeys lists the fields of an Istio object.
var istioKeys = []string{"apiVersion", "kind", "metadata", "spec", "status"}

func fieldHint(key string) string {
	if near := output.NearestWord(key, istioKeys); near != "" {
		return fmt.Sprintf(", did you mean %s?", near)
	}
	return ""
}

// decodeObject decodes into the object. Unknown fields of a Kubernetes object are
// ignored: they belong to later versions. Unknown fields of an Istio object are
// errors: they are mostly typing mistakes.
func decodeObject(v yamldoc.Value, object any) *fields.Error {
	istio, ok := object.(*Istio)
	if !ok {
		return fields.DecodeKube(v, "", object)
	}
	var faults *fields.Error
	for _, key := range v.Keys() {
		if !slices.Contains(istioKeys, key) {
			faults = faults.And(fields.Faultf(fields.FieldOf(key), "is not a field of %s%s", istio.kind.name, fieldHint(key)))
		}
	}
	faults = faults.And(fields.DecodeKube(v.Get("metadata"), "metadata", &istio.ObjectMeta))
	if istio.hasStatus() && !v.Get("status").IsNull() {
		faults = faults.And(fields.DecodeKube(v.Get("status"), "status", &istio.Status))
	}
	if spec := v.Get("spec"); !spec.IsNull() {
		faults = faults.And(fields.Under("spec", fields.DecodeProto(spec, istio.Spec, fields.Strict)))
	}
	return faults
}

// DecodeJSON decodes and converts one object from a Kubernetes API. Unknown fields of
// an Istio object are warnings, not errors as in files: the API has accepted the
// object, so the fields belong to a later version of Istio. Errors are of type
// *fields.Error or fields.Faults.
func (c *Converter) DecodeJSON(text []byte) (Result, error) {
	if fault := fields.SizeFault(text); fault != nil {
		return c.tooLarge(text, fault)
	}
	var head struct {
		metav1.TypeMeta
		metav1.ObjectMeta `json:"metadata"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return Result{}, fields.Faultf("", "is not an object of the Kubernetes API: %s", fields.KubeReason(err, ""))
	}
	group, _ := splitVersion(head.APIVersion)
	k := findKind(group, head.Kind)
	if k == nil || k.newObject == nil {
		return Result{Skipped: true}, nil
	}
	object := k.newObject()
	istio, isIstio := object.(*Istio)
	if !isIstio {
		if err := kubejson.Check(text, object); err != nil {
			return c.resultOf(k, head.Namespace, head.Name), &fields.Error{Err: err}
		}
		if err := json.Unmarshal(text, object); err != nil {
			return c.resultOf(k, head.Namespace, head.Name), &fields.Error{Err: errors.New(fields.KubeReason(err, ""))}
		}
		return c.Convert(object, snapshot.Place{})
	}
	istio.ObjectMeta = head.ObjectMeta
	unknown, fault := decodeSpec(text, istio)
	if fault != nil {
		r := c.resultOf(k, head.Namespace, head.Name)
		r.Suppress = head.Annotations[mesh.AnnotationSuppress]
		err := fault.AsError()
		r.Closed = c.closed(k, object, specOf(text), snapshot.Place{}, err)
		return r, err
	}
	r, err := c.Convert(istio, snapshot.Place{})
	if err != nil {
		r.Closed = c.closed(k, object, specOf(text), snapshot.Place{}, err)
	} else if k.doubts != nil && (bytes.Contains(text, []byte("[]")) || bytes.Contains(text, []byte("null"))) {
		r.Warnings = append(r.Warnings, k.doubts(specOf(text))...)
	}
	if unknown != nil {
		r.Warnings = append(r.Warnings, unknown.Each()...)
		if err == nil {
			if r.Closed = c.closed(k, object, specOf(text), snapshot.Place{}, nil); r.Closed != nil {
				r.Object = r.Closed
			}
		}
	}
	return r, err
}

// tooLarge returns the result of an object with too many values: only its name is decoded, and
// the small fields of a security policy.
func (c *Converter) tooLarge(text []byte, fault *fields.Error) (Result, error) {
	var head struct {
		metav1.TypeMeta
		Metadata struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return Result{}, fields.Faultf("", "is not an object of the Kubernetes API: %s", fields.KubeReason(err, ""))
	}
	group, _ := splitVersion(head.APIVersion)
	k := findKind(group, head.Kind)
	if k == nil || k.newObject == nil {
		return Result{Skipped: true}, nil
	}
	r, object := c.resultOf(k, head.Metadata.Namespace, head.Metadata.Name), k.newObject()
	if istio, ok := object.(*Istio); ok && k.closed != nil {
		istio.Name, istio.Namespace = head.Metadata.Name, head.Metadata.Namespace
		r.Closed = c.closed(k, object, smallPartsOf(text), snapshot.Place{}, nil)
	}
	return r, fault
}

// hasStatus reports whether the status of the object is read.
func (o *Istio) hasStatus() bool {
	switch o.Spec.(type) {
	case *networkingv1alpha3.WorkloadEntry, *networkingv1alpha3.ServiceEntry:
		return true
	}
	return false
}

// decodeSpec decodes the spec, and the status if it is read. unknown reports unknown
// fields.
func decodeSpec(text []byte, istio *Istio) (unknown, fault *fields.Error) {
	var body struct {
		Spec   stdjson.RawMessage `json:"spec"`
		Status stdjson.RawMessage `json:"status"`
	}
	if err := json.Unmarshal(text, &body); err != nil {
		return nil, fields.Faultf("spec", "%s", fields.KubeReason(err, ""))
	}
	if istio.hasStatus() && len(body.Status) > 0 {
		if err := json.Unmarshal(body.Status, &istio.Status); err != nil {
			return nil, fields.Faultf("status", "%s", fields.KubeReason(err, ""))
		}
	}
	if len(body.Spec) == 0 || string(body.Spec) == "null" {
		return nil, nil
	}
	if istiojson.Unmarshal(protojson.UnmarshalOptions{}, body.Spec, istio.Spec) == nil {
		return nil, nil
	}
	doc, err := yamldoc.Parse(yamldoc.Chunk{Text: body.Spec, Line: 1}) // to find the field
	if err != nil {
		return nil, fields.Faultf("spec", "%w", err)
	}
	fault = fields.DecodeProto(doc, istio.Spec, fields.Strict)
	if fault == nil || fields.DecodeProto(doc, istio.Spec, fields.Lenient) != nil {
		return nil, fields.Under("spec", fault)
	}
	return fields.Under("spec", fault), nil
}
