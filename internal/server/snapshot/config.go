package snapshot

import (
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

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

// Spec is the content of an Istio configuration object.
type Spec interface {
	proto.Message
	*networkingv1alpha3.Gateway | *networkingv1alpha3.Sidecar | *securityv1beta1.PeerAuthentication |
		*networkingv1alpha3.DestinationRule | *networkingv1alpha3.VirtualService
}

// Config is an Istio configuration object with a validated spec.
type Config[S Spec] struct {
	Meta
	Kind Kind
	Spec S
}

// Key implements Object.
func (o *Config[S]) Key() Key { return o.key(o.Kind) }

type (
	// Gateway opens ports of gateway proxies.
	Gateway = Config[*networkingv1alpha3.Gateway]
	// Sidecar limits the services that a workload sees and declares its ports.
	Sidecar = Config[*networkingv1alpha3.Sidecar]
	// PeerAuthentication sets the mTLS mode of workloads.
	PeerAuthentication = Config[*securityv1beta1.PeerAuthentication]
	// DestinationRule sets how clients call a host.
	DestinationRule = Config[*networkingv1alpha3.DestinationRule]
	// VirtualService has no effect yet.
	VirtualService = Config[*networkingv1alpha3.VirtualService]
)
