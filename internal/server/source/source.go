// Package source turns the Kubernetes and Istio objects of one cluster into
// the objects of package snapshot. The sources of objects (a directory, a
// Kubernetes API) share it, so that both read the same object the same way.
// What generation relies on is checked here, once: ports, addresses, names and
// modes. It does no I/O and keeps no state.
package source

import (
	"fmt"
	"net/netip"
	"strings"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/meshctl/meshctl/internal/clustersettings"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// KindServiceAccount is read and checked, but nothing of it is delivered.
const KindServiceAccount snapshot.Kind = "ServiceAccount"

// Converter converts the objects of one cluster. Its methods may be called
// from any goroutine.
type Converter struct {
	Cluster mesh.ClusterID
	// SystemNamespace holds the ConfigMap istio; default istio-system.
	SystemNamespace string
	// RefuseLocal drops loopback, link-local, unspecified and multicast
	// addresses of endpoints, pods and gateways, each with a warning. It is
	// for objects that others write, such as those of a Kubernetes API.
	RefuseLocal bool
	// Remote is set for the objects of another cluster than that of the control
	// plane. Configuration counts only of the own one, so nothing is reported of
	// what has no effect.
	Remote bool
}

// Istio is an Istio configuration object before it is checked. Spec is a
// message of istio.io/api of the type that Kind names.
type Istio struct {
	Kind snapshot.Kind
	metav1.ObjectMeta
	Spec proto.Message
	// Status is read of a WorkloadEntry alone.
	Status Conditions
}

// Result is what an object became.
type Result struct {
	// Key names the object. With an error it is what is known of the name.
	Key snapshot.Key
	// Object is nil when the object is fine and there is nothing to deliver,
	// such as a pod without an address or a ServiceAccount.
	Object snapshot.Object
	// Skipped is set for kinds that are not read. There is a warning then if
	// the object was likely meant to have an effect on the mesh.
	Skipped bool
	// Security is set for a security policy, and for what was likely meant to be
	// one.
	Security bool
	// Shared is set for a skipped object that may be meant for another program.
	Shared bool
	// Warnings tell what of the object is left out.
	Warnings []*FieldError
}

// Unenforced reports whether the object is a security policy that is not
// enforced, or not all of it. err is that of its conversion, and used says that
// an older version of the object is enforced.
func (r *Result) Unenforced(err error, used bool) bool {
	return r.Security && (err != nil && !used || len(r.Warnings) > 0)
}

// FieldError says what is wrong with which field of an object.
type FieldError struct {
	// Field is a path such as spec.servers[0].port.number or
	// metadata.labels[example.com/a]; empty means the object as a whole.
	Field string
	// TextLine is the line, from 1, within the text that the field holds;
	// 0 means the field itself.
	TextLine int
	// Line is the line of the fault in the file; 0 when there is no file.
	Line int
	Err  error

	textFirst int // the line, from 1, within the text, of what the fault repeats; 0 for others
}

func (e *FieldError) Error() string {
	switch {
	case e.Field == "":
		return e.Err.Error()
	case e.TextLine > 0 && e.Line == 0:
		return fmt.Sprintf("%s, line %d: %v", e.Field, e.TextLine, e.Err)
	}
	return e.Field + ": " + e.Err.Error()
}

// Unwrap returns the fault without its place.
func (e *FieldError) Unwrap() error { return e.Err }

func faultf(field, format string, args ...any) *FieldError {
	return &FieldError{Field: field, Err: fmt.Errorf(format, args...)}
}

// Convert converts one object: a *corev1.Namespace, Node, Pod, Service,
// ConfigMap, Secret or ServiceAccount, a *discoveryv1.EndpointSlice, a
// *gatewayv1.Gateway or an *Istio. The result shares maps with the object, which must not change any
// more. Errors are of type *FieldError.
func (c *Converter) Convert(object any, place snapshot.Place) (Result, error) {
	meta, kind := metaOf(object)
	if meta == nil {
		return Result{Skipped: true}, nil
	}
	m := c.meta(meta, kind, place)
	kind = c.kindOf(kind, m.Namespace, m.Name)
	r := Result{
		Key:      snapshot.Key{Kind: kind, Cluster: c.Cluster, Namespace: m.Namespace, Name: m.Name},
		Security: !c.Remote && kind == snapshot.KindPeerAuthentication,
	}
	if err := checkMeta(m, kind); err != nil {
		return r, err
	}
	conv := conversion{Converter: c, meta: m}
	fault := conv.convert(object)
	if fault != nil {
		return r, fault
	}
	r.Object, r.Warnings = conv.object, conv.warnings
	return r, nil
}

// conversion is the conversion of one object.
type conversion struct {
	*Converter
	meta     snapshot.Meta
	object   snapshot.Object
	warnings []*FieldError
}

func (c *conversion) convert(object any) *FieldError {
	switch o := object.(type) {
	case *corev1.Namespace:
		c.object = &snapshot.Namespace{Meta: c.meta}
	case *corev1.Node:
		c.meta.Labels = nil // there are many, and nodes
		c.object = &snapshot.Node{Meta: c.meta, Locality: nodeLocality(o.Labels)}
	case *corev1.Pod:
		return c.pod(o)
	case *corev1.Service:
		return c.service(o)
	case *discoveryv1.EndpointSlice:
		return c.endpointSlice(o)
	case *corev1.ConfigMap:
		return c.configMap(o)
	case *corev1.Secret:
		return c.secret(o)
	case *gatewayv1.Gateway:
		return c.kubeGateway(o)
	case *Istio:
		return c.istio(o)
	}
	return nil
}

func (c *conversion) warn(w *FieldError) { c.warnings = append(c.warnings, w) }

func metaOf(object any) (*metav1.ObjectMeta, snapshot.Kind) {
	switch o := object.(type) {
	case *corev1.Namespace:
		return &o.ObjectMeta, snapshot.KindNamespace
	case *corev1.Node:
		return &o.ObjectMeta, snapshot.KindNode
	case *corev1.Pod:
		return &o.ObjectMeta, snapshot.KindPod
	case *corev1.Service:
		return &o.ObjectMeta, snapshot.KindService
	case *discoveryv1.EndpointSlice:
		return &o.ObjectMeta, snapshot.KindEndpointSlice
	case *corev1.ConfigMap:
		return &o.ObjectMeta, snapshot.KindConfigMap
	case *corev1.Secret:
		return &o.ObjectMeta, snapshot.KindSecret
	case *corev1.ServiceAccount:
		return &o.ObjectMeta, KindServiceAccount
	case *gatewayv1.Gateway:
		return &o.ObjectMeta, snapshot.KindKubeGateway
	case *Istio:
		return &o.ObjectMeta, o.Kind
	}
	return nil, ""
}

// kindOf is as what an object is delivered: two ConfigMaps are settings.
func (c *Converter) kindOf(kind snapshot.Kind, namespace, name string) snapshot.Kind {
	if kind != snapshot.KindConfigMap || namespace != SystemNamespaceOf(c.SystemNamespace) {
		return kind
	}
	switch name {
	case meshConfigMap:
		return snapshot.KindMeshSettings
	case clustersettings.ConfigMap:
		return snapshot.KindClusterSettings
	}
	return kind
}

func isClusterWide(k snapshot.Kind) bool {
	return k == snapshot.KindNamespace || k == snapshot.KindNode
}

func (c *Converter) meta(o *metav1.ObjectMeta, kind snapshot.Kind, place snapshot.Place) snapshot.Meta {
	m := snapshot.Meta{
		Cluster: c.Cluster, Namespace: o.Namespace, Name: o.Name,
		Labels: o.Labels, Created: o.CreationTimestamp.Time, Place: place,
	}
	switch {
	case isClusterWide(kind):
		m.Namespace = ""
	case m.Namespace == "":
		m.Namespace = metav1.NamespaceDefault // where kubectl puts it
	}
	return m
}

func checkMeta(m snapshot.Meta, kind snapshot.Kind) error {
	switch {
	case m.Name == "":
		return faultf("metadata.name", "is missing")
	case kind == snapshot.KindService && !mesh.IsDNSLabel(m.Name):
		return faultf("metadata.name", "%q is not a DNS label", m.Name)
	case len(validation.IsDNS1123Subdomain(m.Name)) > 0:
		return faultf("metadata.name", "%q is not a DNS name", m.Name)
	case !isClusterWide(kind) && !mesh.IsDNSLabel(m.Namespace):
		return faultf("metadata.namespace", "%q is not a DNS label", m.Namespace)
	}
	return nil
}

// parseAddr reads an IP address in the form in which addresses are compared:
// IPv4 never as IPv6, no zone.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	return a.Unmap(), nil
}

// metadataIPv6 is the instance metadata service of a cloud, which is not
// link-local in IPv6.
const metadataIPv6 = "fd00:ec2::254"

// refused says why an address is not used, or "" when it is.
func (c *Converter) refused(a netip.Addr) string {
	switch {
	case !c.RefuseLocal:
		return ""
	case a.IsLoopback():
		return "is a loopback address"
	case a.IsLinkLocalUnicast(), a.String() == metadataIPv6:
		return "is a link-local or metadata address"
	case a.IsUnspecified():
		return "is the unspecified address"
	case a.IsMulticast():
		return "is a multicast address"
	}
	return ""
}

// refusedHost says why an address or host name is not used, or "".
func (c *Converter) refusedHost(host string) string {
	if a, err := parseAddr(host); err == nil {
		return c.refused(a)
	}
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	if c.RefuseLocal && (name == "localhost" || strings.HasSuffix(name, ".localhost")) {
		return "is a loopback name"
	}
	return ""
}

// addresses reads IP addresses and drops those that are refused.
func (c *conversion) addresses(field string, texts []string) ([]netip.Addr, *FieldError) {
	out := make([]netip.Addr, 0, len(texts))
	for i, text := range texts {
		at := itemOf(field, i)
		a, err := parseAddr(text)
		if err != nil {
			return nil, &FieldError{Field: at, Err: err}
		}
		if why := c.refused(a); why != "" {
			c.warn(faultf(at, "%s %s: it is not used", a, why))
			continue
		}
		out = append(out, a)
	}
	return out, nil
}

func isPort[T int32 | uint32](n T) bool { return n > 0 && n <= 65535 }
