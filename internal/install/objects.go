package install

import (
	"bytes"
	"fmt"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// Labels of the objects of installations.
const (
	// LabelInstallation has the name of the installation that an object belongs to.
	LabelInstallation = "meshctl.io/installation"
	// LabelManagedBy has the program that made an object: ManagedBy, or Helm for the
	// objects of a chart.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "meshctl"
	labelPartOf    = "app.kubernetes.io/part-of"
	partOf         = "istio"
	labelRevision  = "istio.io/rev"
)

// Shared is the value of LabelInstallation for objects that all installations of a
// cluster use: the namespace, the MeshConfig, the settings of the injector and
// CustomResourceDefinitions.
const Shared = "shared"

// Objects returns the objects of an installation in the order to apply.
func Objects(v *Values) ([]*unstructured.Unstructured, error) {
	if err := v.Check(); err != nil {
		return nil, err
	}
	s := &set{values: v}
	if v.CRDs {
		s.addCRDs()
	}
	s.addNamespaces()
	s.addInputs()
	switch {
	case v.Remote.Enabled:
		s.addRemote()
	case v.external():
		s.addExternalControlPlane()
	case !v.ControlPlane.Disabled:
		s.addControlPlane()
	}
	for i := range v.Gateways {
		s.addGateway(&v.Gateways[i])
	}
	s.addExposed()
	return s.objects, s.err
}

// set collects the objects of an installation.
type set struct {
	values  *Values
	objects []*unstructured.Unstructured
	err     error
}

// fields holds a part of an object as JSON has it. Objects of kinds that the program only
// writes have no Go type: linking the types of their API groups would add a megabyte.
type fields = map[string]any

// object is an object without a Go type of its own.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              fields   `json:"spec,omitempty"`
	Webhooks          []fields `json:"webhooks,omitempty"`
}

// add adds an object of the installation, a pointer to a struct.
func (s *set) add(o any) { s.addTo(s.values.Installation(), o) }

// addTo adds an object of an installation, a pointer to a struct.
func (s *set) addTo(installation string, o any) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		s.err = fmt.Errorf("%T: %w", o, err)
		return
	}
	delete(content, "status") // the API server's
	if spec, ok := content["spec"].(map[string]any); ok && len(spec) == 0 {
		delete(content, "spec")
	}
	u := &unstructured.Unstructured{Object: content}
	labels := u.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[LabelInstallation], labels[LabelManagedBy], labels[labelPartOf] = installation, ManagedBy, partOf
	u.SetLabels(labels)
	s.objects = append(s.objects, u)
}

// custom adds an object without a Go type in the namespace of the control plane.
func (s *set) custom(apiVersion, kind, name string, spec fields) {
	s.add(newObject(apiVersion, kind, s.meta(name, nil), spec))
}

func newObject(apiVersion, kind string, meta metav1.ObjectMeta, spec fields) *object {
	return &object{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}, ObjectMeta: meta, Spec: spec}
}

func kindOf(group schema.GroupVersion, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: group.String(), Kind: kind}
}

// meta returns the metadata of an object in the namespace of the control plane.
func (s *set) meta(name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: s.values.Namespace, Labels: maps.Clone(labels)}
}

// YAML returns the objects as documents.
func YAML(objects []*unstructured.Unstructured) ([]byte, error) {
	var out bytes.Buffer
	for i, o := range objects {
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", Ref(o), err)
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(text)
	}
	return out.Bytes(), nil
}

// Ref returns the kind and the name of an object, such as Service istio-system/istiod.
func Ref(o *unstructured.Unstructured) string {
	return o.GetKind() + " " + strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
}
