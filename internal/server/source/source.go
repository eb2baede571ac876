// Package source converts the Kubernetes and Istio objects of one cluster to the
// objects of package snapshot. Its subpackages, which read objects from a directory
// and from a Kubernetes API, share it, so that both read an object in the same way.
// It checks everything that generation relies on: ports, addresses, names and modes.
// It does no I/O and keeps no state. Each kind of object has a description (type
// kind) in a file of its name.
package source

import (
	"slices"

	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/meshctl/meshctl/internal/clustersettings"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// Converter converts the objects of one cluster. Its methods may be called
// from any goroutine.
type Converter struct {
	Cluster mesh.ClusterID
	// SystemNamespace holds the ConfigMap istio; default istio-system.
	SystemNamespace string
	// Revision selects the ConfigMap with the settings of the injector.
	Revision string
	// RefuseLocal drops loopback, link-local, unspecified and multicast addresses of
	// endpoints, pods and gateways, each with a warning. Set it for objects that are
	// not trusted, such as the objects of a Kubernetes API.
	RefuseLocal bool
	// SocketDir is the folder below which objects may name Unix sockets, an absolute path that
	// CheckSocketDir accepts. Empty means that they may name none.
	SocketDir string
	// IgnorePolicies leaves security policies that no proxy can enforce without effect. Without
	// it, the workloads to which such a policy may apply refuse requests.
	IgnorePolicies bool
	// Remote is set for a cluster other than the control plane's own cluster. Its
	// configuration is not used, so parts without effect are not reported.
	Remote bool
	// Analysis is set if the objects are read for an analysis. Pods then have an Injection,
	// also without an address, and the kinds of Analyzed are delivered.
	Analysis bool
}

// Istio is an Istio configuration object before it is checked. Spec is a
// message of istio.io/api of the type that its kind names.
type Istio struct {
	kind *kind
	metav1.ObjectMeta
	Spec proto.Message
	// Status is read of a WorkloadEntry and a ServiceEntry only.
	Status Status
}

// Result is the result of converting an object.
type Result struct {
	// Key names the object. With an error it holds the known parts of the name.
	Key snapshot.Key
	// Object is nil when the object is valid but there is nothing to deliver, such
	// as for a pod that has ended or a ServiceAccount.
	Object snapshot.Object
	// Closed is set if a security policy is not fully understood, and permits no more than
	// any meaning of it. With an error, it is delivered unless an older version of the
	// object is in use.
	Closed snapshot.Object
	// Skipped is set for kinds that are not read. Warnings then has an entry if the
	// object was likely meant to have an effect on the mesh.
	Skipped bool
	// Security is set for a security policy and for an object that was likely meant
	// to be one.
	Security bool
	// Shared is set for a skipped object that may be meant for another program.
	Shared bool
	// Warnings name the parts of the object that are not used.
	Warnings []*fields.Error
	// Suppress is snapshot.Meta.Suppress, also of an object that is refused or skipped.
	Suppress string
}

// Unenforced reports whether the object is a security policy that is not fully
// enforced. err is the error of its conversion; used reports whether an older
// version of the object is enforced.
func (r *Result) Unenforced(err error, used bool) bool {
	return r.Security && r.Closed == nil && (err != nil && !used || slices.ContainsFunc(r.Warnings, func(w *fields.Error) bool { return w.Kind == fields.Unused }))
}

// Convert converts one object: a *corev1.Namespace, Node, Pod, Service,
// ConfigMap, Secret or ServiceAccount, a *discoveryv1.EndpointSlice, a
// *gatewayv1.Gateway or an *Istio. The result shares maps with the object, which
// must not change afterwards. Errors are of type *fields.Error or fields.Faults.
func (c *Converter) Convert(object any, place snapshot.Place) (Result, error) {
	k := kindOfObject(object)
	if k == nil {
		return Result{Skipped: true}, nil
	}
	m := c.meta(metaOf(object), k, place)
	r := c.resultOf(k, m.Namespace, m.Name)
	r.Suppress = m.Suppress
	if err := checkMeta(m, k); err != nil {
		return r, err
	}
	if fault := limitFault(object); fault != nil {
		return r, fault.AsError()
	}
	conv := conversion{Converter: c, meta: m}
	if fault := k.convert(&conv, object); fault != nil {
		return r, fault.AsError()
	}
	conv.checkAnnotations(k, metaOf(object).Annotations)
	r.Object, r.Warnings = conv.object, conv.warnings
	return r, nil
}

// resultOf returns a result with nothing but the name of the object.
func (c *Converter) resultOf(k *kind, namespace, name string) Result {
	return Result{
		Key: snapshot.Key{
			Kind: c.deliveredKind(k.snapshotKind(), namespace, name), Cluster: c.Cluster, Namespace: namespace, Name: name,
		},
		Security: !c.Remote && k.security(),
	}
}

// conversion is the conversion of one object.
type conversion struct {
	*Converter
	meta     snapshot.Meta
	istio    *Istio // nil for an object of Kubernetes
	object   snapshot.Object
	warnings []*fields.Error
}

func (c *conversion) warn(w *fields.Error) { c.warnings = append(c.warnings, w.Each()...) }

// deliveredKind returns the kind under which an object is delivered: three
// ConfigMaps are settings.
func (c *Converter) deliveredKind(kind snapshot.Kind, namespace, name string) snapshot.Kind {
	if kind != snapshot.KindConfigMap || namespace != SystemNamespaceOf(c.SystemNamespace) {
		return kind
	}
	switch name {
	case mesh.MeshConfigMap:
		return snapshot.KindMeshSettings
	case clustersettings.ConfigMap:
		return snapshot.KindClusterSettings
	case mesh.InjectorConfigMapOf(c.Revision):
		return snapshot.KindInjectorSettings
	}
	return kind
}

func (c *Converter) meta(o *metav1.ObjectMeta, k *kind, place snapshot.Place) snapshot.Meta {
	m := snapshot.Meta{
		Cluster: c.Cluster, Namespace: o.Namespace, Name: o.Name,
		Labels: o.Labels, Created: o.CreationTimestamp.Time, Place: place, Suppress: o.Annotations[mesh.AnnotationSuppress],
	}
	switch {
	case k.clusterWide:
		m.Namespace = ""
	case m.Namespace == "":
		m.Namespace = metav1.NamespaceDefault // as kubectl does
	}
	return m
}

func checkMeta(m snapshot.Meta, k *kind) error {
	switch {
	case m.Name == "":
		return fields.Faultf("metadata.name", "is missing")
	case k == serviceKind && !mesh.IsDNSLabel(m.Name):
		return fields.Faultf("metadata.name", "%q is not a DNS label", m.Name)
	case len(validation.IsDNS1123Subdomain(m.Name)) > 0:
		return fields.Faultf("metadata.name", "%q is not a DNS name", m.Name)
	case !k.clusterWide && !mesh.IsDNSLabel(m.Namespace):
		return fields.Faultf("metadata.namespace", "%q is not a DNS label", m.Namespace)
	}
	return nil
}
