package source

import (
	stdjson "encoding/json"
	"errors"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// DecodeJSON reads and converts one object as a Kubernetes API shows it. Fields
// of an Istio object that are not known are warnings, not errors as in files:
// the API has taken the object, and a later Istio knows them. Errors are of
// type *FieldError.
func (c *Converter) DecodeJSON(text []byte) (Result, error) {
	var head struct {
		metav1.TypeMeta
		metav1.ObjectMeta `json:"metadata"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return Result{}, faultf("", "is not an object of the Kubernetes API: %s", kubeReason(err, ""))
	}
	group, _, ok := strings.Cut(head.APIVersion, "/")
	if !ok {
		group = ""
	}
	object, _ := newObject(group, snapshot.Kind(head.Kind))
	if object == nil {
		return Result{Skipped: true}, nil
	}
	istio, isIstio := object.(*Istio)
	if !isIstio {
		if err := json.Unmarshal(text, object); err != nil {
			return c.resultOf(object, &head.ObjectMeta), &FieldError{Err: errors.New(kubeReason(err, ""))}
		}
		return c.Convert(object, snapshot.Place{})
	}
	istio.ObjectMeta = head.ObjectMeta
	unknown, fault := decodeSpec(text, istio)
	if fault != nil {
		return c.resultOf(istio, &head.ObjectMeta), fault
	}
	r, err := c.Convert(istio, snapshot.Place{})
	if unknown != nil {
		r.Warnings = append(r.Warnings, unknown)
	}
	return r, err
}

// resultOf is the result of an object that cannot be read.
func (c *Converter) resultOf(object any, meta *metav1.ObjectMeta) Result {
	_, kind := metaOf(object)
	kind = c.kindOf(kind, meta.Namespace, meta.Name)
	return Result{
		Key:      snapshot.Key{Kind: kind, Cluster: c.Cluster, Namespace: meta.Namespace, Name: meta.Name},
		Security: !c.Remote && kind == snapshot.KindPeerAuthentication,
	}
}

// decodeSpec reads the spec, and the status of a WorkloadEntry. unknown tells of fields that are not known.
func decodeSpec(text []byte, istio *Istio) (unknown, fault *FieldError) {
	var body struct {
		Spec   stdjson.RawMessage `json:"spec"`
		Status stdjson.RawMessage `json:"status"`
	}
	if err := json.Unmarshal(text, &body); err != nil {
		return nil, faultf("spec", "%s", kubeReason(err, ""))
	}
	if _, ok := istio.Spec.(*networkingv1alpha3.WorkloadEntry); ok && len(body.Status) > 0 {
		if err := json.Unmarshal(body.Status, &istio.Status); err != nil {
			return nil, faultf("status", "%s", kubeReason(err, ""))
		}
	}
	if len(body.Spec) == 0 || string(body.Spec) == "null" {
		return nil, nil
	}
	if (protojson.UnmarshalOptions{}).Unmarshal(body.Spec, istio.Spec) == nil {
		return nil, nil
	}
	doc, err := yamldoc.Parse(yamldoc.Chunk{Text: body.Spec, Line: 1}) // which finds the field
	if err != nil {
		return nil, faultf("spec", "%w", err)
	}
	fault = decodeProto(doc, istio.Spec, strict)
	if fault == nil || decodeProto(doc, istio.Spec, lenient) != nil {
		return nil, under("spec", fault)
	}
	return under("spec", fault), nil
}
