package source

import (
	"reflect"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// API groups.
const (
	groupNetworking   = "networking.istio.io"
	groupSecurity     = "security.istio.io"
	groupTelemetry    = "telemetry.istio.io"
	groupIstioPlugins = "extensions.istio.io"
	groupGatewayAPI   = "gateway.networking.k8s.io"
	groupGatewayXAPI  = "gateway.networking.x-k8s.io"
	groupMultiCluster = "multicluster.x-k8s.io"
	groupExtensions   = "apiextensions.k8s.io"
	groupApps         = "apps"
	groupAdmission    = "admissionregistration.k8s.io"
)

// kind describes one kind of object: its names in the API, how it is converted,
// which parts of it have an effect, and how it is followed in a Kubernetes API.
type kind struct {
	group string // empty for the core group
	name  string // such as Service
	// kind is the kind in package snapshot; empty means name.
	kind snapshot.Kind
	// plural is the name of the resource, such as services.
	plural string
	// versions lists the versions, the preferred one first.
	versions    []string
	clusterWide bool

	// newObject returns an empty object to decode into; nil for a kind that is
	// not decoded because it has no effect. object is the type of the object.
	newObject func() any
	object    reflect.Type
	// convert checks an object and delivers it; nil when there is nothing to deliver.
	convert func(*conversion, any) *fields.Error
	// closed returns the valid parts of a security policy with a fault; nil for kinds of
	// which nothing is used then. The metadata is valid. The spec may have any value.
	closed func(c *conversion, spec yamldoc.Value) snapshot.Object
	// doubts finds what the author of a valid spec may not have meant, in its text; nil for none.
	doubts func(spec yamldoc.Value) []*fields.Error

	// support is empty for the kinds of Kubernetes itself, which
	// docs/api-support.md leaves out. meaning explains it.
	support fields.Support
	meaning string
	// unreported suppresses the warning about a kind without effect.
	unreported bool
	// fields lists the fields of the spec, if some of them have no effect.
	fields []fields.Field

	// resources describes how the kind is followed: one Resource for most kinds.
	// Watched fills in the names.
	resources []Resource
}

var (
	v1            = []string{"v1"}
	istioVersions = []string{"v1", "v1beta1", "v1alpha3"}
)

// kubeKind completes the description of a kind with the Go type T.
func kubeKind[T any](k kind, convert func(*conversion, *T) *fields.Error) *kind {
	k.newObject, k.object = func() any { return new(T) }, reflect.TypeFor[*T]()
	k.convert = func(c *conversion, object any) *fields.Error {
		o, _ := object.(*T)
		return convert(c, o)
	}
	return &k
}

// istioKind completes the description of a kind of Istio with a spec of type T.
// convert gets the spec; the field paths of its faults are relative to the spec, or start with
// metadata.
func istioKind[T any, M interface {
	*T
	proto.Message
}](k kind, convert func(*conversion, M) *fields.Error) *kind {
	k.newObject, k.object = func() any { return &Istio{kind: &k, Spec: M(new(T))} }, nil
	k.convert = func(c *conversion, object any) *fields.Error {
		c.istio, _ = object.(*Istio)
		spec, _ := c.istio.Spec.(M)
		old := deprecated(spec.ProtoReflect()) // convert may replace them
		fault := convert(c, spec)
		if fault == nil && !c.Remote {
			for _, w := range k.withoutEffect(spec) {
				c.warn(w)
			}
			c.warnDeprecated(old)
		}
		return fields.Under("spec", fault)
	}
	if k.resources == nil {
		k.resources = []Resource{{Use: ForConfiguration, Custom: true, Without: "no " + k.name + " has an effect"}}
	}
	return &k
}

// unread returns the description of a kind that has no effect.
func unread(group, name, plural, meaning string, versions ...string) *kind {
	return &kind{
		group: group, name: name, plural: plural, versions: versions, support: fields.NoEffect, meaning: meaning,
		resources: []Resource{{
			Use: ForConfiguration, Custom: true, Optional: true, Unread: true,
			Without: "it is not reported whether there is any " + name + ", which has no effect",
		}},
	}
}

// unreported returns the description of a kind that has no effect and needs none.
func unreported(group, name, plural, meaning string, versions ...string) *kind {
	k := unread(group, name, plural, meaning, versions...)
	k.unreported, k.resources = true, nil
	return k
}

const noRoute = "no route is made of it"

// kinds lists every kind that is read and every kind of the Istio API and the
// Kubernetes Gateway API, the kinds that are read first.
var kinds = []*kind{
	namespaceKind,
	serviceKind,
	endpointSliceKind,
	podKind,
	nodeKind,
	kubeGatewayKind,
	serviceExportKind,
	serviceImportKind,
	workloadEntryKind,
	secretKind,
	configMapKind,
	// Files may hold service accounts. They are checked, but not used.
	kubeKind(kind{name: "ServiceAccount", plural: "serviceaccounts", versions: v1},
		func(*conversion, *corev1.ServiceAccount) *fields.Error { return nil }),
	gatewayKind,
	sidecarKind,
	destinationRuleKind,
	virtualServiceKind,
	serviceEntryKind,
	envoyFilterKind,
	peerAuthenticationKind,
	requestAuthenticationKind,
	telemetryKind,
	wasmPluginKind,
	authorizationPolicyKind,
	proxyConfigKind,
	workloadGroupKind,
	trafficExtensionKind,
	replicaSetKind,
	eventKind,
	injectorKind,
	unreported(groupGatewayAPI, "GatewayClass", "gatewayclasses", "a Gateway works without its class", "v1", "v1beta1"),
	unread(groupGatewayAPI, "HTTPRoute", "httproutes", noRoute, "v1", "v1beta1"),
	unread(groupGatewayAPI, "GRPCRoute", "grpcroutes", noRoute, "v1", "v1alpha2"),
	unread(groupGatewayAPI, "TLSRoute", "tlsroutes", noRoute, "v1", "v1alpha3", "v1alpha2"),
	unread(groupGatewayAPI, "TCPRoute", "tcproutes", noRoute, "v1", "v1alpha2"),
	unread(groupGatewayAPI, "UDPRoute", "udproutes", noRoute, "v1", "v1alpha2"),
	unread(groupGatewayAPI, "ListenerSet", "listenersets", "no Gateway gets its listeners", "v1"),
	unreported(groupGatewayAPI, "ReferenceGrant", "referencegrants", "no reference needs a permission", "v1", "v1beta1", "v1alpha2"),
	unread(groupGatewayAPI, "BackendTLSPolicy", "backendtlspolicies", "no proxy uses it to check the backend's certificate", "v1", "v1alpha3"),
	unreported(groupGatewayXAPI, "XBackend", "xbackends", "experimental", "v1alpha1"),
	unreported(groupGatewayXAPI, "XBackendTrafficPolicy", "xbackendtrafficpolicies", "experimental", "v1alpha1"),
	unreported(groupGatewayXAPI, "XMesh", "xmeshes", "experimental", "v1alpha1"),
}

// security reports whether objects of the kind protect something.
func (k *kind) security() bool { return k.group == groupSecurity }

// shared reports whether objects of the kind may be meant for other programs.
func (k *kind) shared() bool { return !isIstioGroup(k.group) }

// groupResource names the resource, such as gateways.networking.istio.io.
func (k *kind) groupResource() string { return k.plural + "." + k.group }

// snapshotKind returns the kind in package snapshot.
func (k *kind) snapshotKind() snapshot.Kind {
	if k.kind != "" {
		return k.kind
	}
	return snapshot.Kind(k.name)
}

// IsIstio reports whether an apiVersion is one of Istio's API.
func IsIstio(apiVersion string) bool {
	group, _ := splitVersion(apiVersion)
	return isIstioGroup(group)
}

func isIstioGroup(group string) bool { return strings.HasSuffix(group, ".istio.io") }

// findKind returns the kind of that name in the group, nil when there is none.
func findKind(group, name string) *kind {
	i := slices.IndexFunc(kinds, func(k *kind) bool { return k.group == group && k.name == name })
	if i < 0 {
		return nil
	}
	return kinds[i]
}

// kindOfObject returns the kind of an object, nil for an object of another type.
func kindOfObject(object any) *kind {
	if o, ok := object.(*Istio); ok {
		return o.kind
	}
	t := reflect.TypeOf(object)
	if i := slices.IndexFunc(kinds, func(k *kind) bool { return k.object == t }); t != nil && i >= 0 {
		return kinds[i]
	}
	return nil
}

// metaOf returns the metadata of an object of a kind.
func metaOf(object any) *metav1.ObjectMeta {
	accessor, _ := object.(metav1.ObjectMetaAccessor)
	meta, _ := accessor.GetObjectMeta().(*metav1.ObjectMeta)
	return meta
}

// namesOfKinds returns the names of the kinds of a group.
func namesOfKinds(group string) []string {
	var out []string
	for _, k := range kinds {
		if k.group == group {
			out = append(out, k.name)
		}
	}
	return out
}

// IstioKindsWithoutEffect returns the names of the kinds of Istio that have no
// effect.
func IstioKindsWithoutEffect() []string {
	var out []string
	for _, k := range kinds {
		if k.support == fields.NoEffect && isIstioGroup(k.group) {
			out = append(out, k.name)
		}
	}
	return out
}
