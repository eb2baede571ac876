package snapshot

import (
	"iter"
	"maps"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	securityv1beta1 "istio.io/api/security/v1beta1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
)

// MeshSettings is the content of the ConfigMap istio: MeshConfig, with defaults for
// unset fields, and MeshNetworks.
type MeshSettings struct {
	Meta
	Mesh     *meshv1alpha1.MeshConfig
	Networks *meshv1alpha1.MeshNetworks
}

// Key implements Object.
func (o *MeshSettings) Key() Key { return o.key(KindMeshSettings) }

// ClusterSettings is the content of the ConfigMap meshctl-clusters.
type ClusterSettings struct {
	Meta
	Clusters mesh.ClusterSettings
}

// Key implements Object.
func (o *ClusterSettings) Key() Key { return o.key(KindClusterSettings) }

// InjectorSettings is the content of the ConfigMap istio-sidecar-injector, as text.
type InjectorSettings struct {
	Meta
	Values, Config string
}

// Key implements Object.
func (o *InjectorSettings) Key() Key { return o.key(KindInjectorSettings) }

// Config is an Istio configuration object with a validated spec.
type Config[S proto.Message] struct {
	Meta
	Kind Kind
	Spec S
}

// Key implements Object.
func (o *Config[S]) Key() Key { return o.key(o.Kind) }

// SameAs implements Policy. The places of equal objects may differ.
func (o *Config[S]) SameAs(other Policy) bool {
	p, ok := other.(*Config[S])
	return ok && o.Namespace == p.Namespace && o.Name == p.Name && o.Created.Equal(p.Created) &&
		o.Suppress == p.Suppress && maps.Equal(o.Labels, p.Labels) && proto.Equal(o.Spec, p.Spec)
}

// Content implements Policy.
func (o *Config[S]) Content() proto.Message { return o.Spec }

// Policy is a *Config that applies to workloads of its namespace or, in the root
// namespace, of all namespaces. Only policies of the local cluster count.
type Policy interface {
	Object
	// SameAs reports whether two objects mean the same.
	SameAs(other Policy) bool
	// Info returns the metadata, Content the spec.
	Info() *Meta
	Content() proto.Message
}

// PolicyKinds lists the kinds of policies. Their objects are in NamespaceFacts.Policies.
var PolicyKinds = []Kind{KindSidecar, KindPeerAuthentication, KindRequestAuthentication, KindTelemetry, KindWasmPlugin, KindTrafficExtension, KindAuthorizationPolicy, KindProxyConfig}

// Policies iterates over the policies of a kind in a namespace, oldest first. ns may be
// nil.
func Policies[S proto.Message](ns *NamespaceFacts, kind Kind) iter.Seq[*Config[S]] {
	return func(yield func(*Config[S]) bool) {
		if ns == nil {
			return
		}
		for _, p := range ns.Policies[kind] {
			if c, ok := p.(*Config[S]); ok && !yield(c) {
				return
			}
		}
	}
}

// The kinds of Config.
const (
	KindGateway            Kind = "Gateway"
	KindSidecar            Kind = "Sidecar"
	KindPeerAuthentication Kind = "PeerAuthentication"
	KindDestinationRule    Kind = "DestinationRule"
	KindTelemetry          Kind = "Telemetry"
	KindProxyConfig        Kind = "ProxyConfig"
)

type (
	// Gateway opens ports of gateway proxies.
	Gateway = Config[*networkingv1alpha3.Gateway]
	// Sidecar limits the services that a workload sees and declares its ports.
	Sidecar = Config[*networkingv1alpha3.Sidecar]
	// PeerAuthentication sets the mTLS mode of workloads.
	PeerAuthentication = Config[*securityv1beta1.PeerAuthentication]
	// Telemetry sets the access logs of workloads.
	Telemetry = Config[*telemetryv1alpha1.Telemetry]
	// ProxyConfig sets the environment and the worker threads of proxies that are injected.
	ProxyConfig = Config[*networkingv1beta1.ProxyConfig]
	// DestinationRule sets how clients call a host.
	DestinationRule = Config[*networkingv1alpha3.DestinationRule]
)
