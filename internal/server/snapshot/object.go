// Package snapshot holds the facts that the control plane works with. Objects
// are what a source reads from one cluster; facts are what the registry joins
// them to; a Snapshot is one consistent, immutable set of facts. There are no
// Kubernetes types here: sources translate, everything after them reads only
// this package. Nothing in a published value is ever written again.
package snapshot

import (
	"fmt"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Kind names a kind of object.
type Kind string

// The kinds that sources deliver.
const (
	KindNamespace          Kind = "Namespace"
	KindNode               Kind = "Node"
	KindPod                Kind = "Pod"
	KindService            Kind = "Service"
	KindEndpointSlice      Kind = "EndpointSlice"
	KindWorkloadEntry      Kind = "WorkloadEntry"
	KindMeshSettings       Kind = "ConfigMap" // the ConfigMap istio of the system namespace
	KindGateway            Kind = "Gateway"
	KindSidecar            Kind = "Sidecar"
	KindPeerAuthentication Kind = "PeerAuthentication"
	KindDestinationRule    Kind = "DestinationRule"
	KindVirtualService     Kind = "VirtualService"
	KindServiceEntry       Kind = "ServiceEntry"
	KindEnvoyFilter        Kind = "EnvoyFilter"
	KindKubeGateway        Kind = "KubernetesGateway" // Gateway of gateway.networking.k8s.io
	// KindClusterSettings is the ConfigMap meshctl-clusters of the system
	// namespace.
	KindClusterSettings Kind = "ClusterSettings"
	// KindCluster is that of no object: it names a cluster as the cause of a
	// change.
	KindCluster Kind = "Cluster"
	// KindTrustBundle likewise names the roots of the mesh.
	KindTrustBundle Kind = "TrustBundle"
	// KindHostName likewise names host names that were resolved.
	KindHostName Kind = "HostName"
)

// IsObject reports whether there are objects of the kind, which were read
// somewhere: others only name causes of changes.
func (k Kind) IsObject() bool {
	return k != KindCluster && k != KindTrustBundle && k != KindHostName
}

// Key names one object of the mesh.
type Key struct {
	Kind      Kind
	Cluster   mesh.ClusterID
	Namespace string
	Name      string
}

func (k Key) String() string {
	if k.Namespace == "" {
		return fmt.Sprintf("%s %s (cluster %s)", k.Kind, k.Name, k.Cluster)
	}
	return fmt.Sprintf("%s %s/%s (cluster %s)", k.Kind, k.Namespace, k.Name, k.Cluster)
}

// Place says where an object was read: a file and the line its document
// starts at. The zero Place is an object of a Kubernetes API.
type Place struct {
	File string
	Line int
}

func (p Place) String() string {
	if p.File == "" {
		return "Kubernetes API"
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Meta is what every object has.
type Meta struct {
	Cluster   mesh.ClusterID
	Namespace string
	Name      string
	Labels    map[string]string
	Created   time.Time // zero when the object does not say
	Place     Place
}

// Object is one object of one cluster: *Namespace, *Node, *Pod, *Service,
// *EndpointSlice, *WorkloadEntry, *KubeGateway, *MeshSettings, *ClusterSettings,
// *EnvoyFilter, *Secret, *ConfigMap or a *Config.
type Object interface {
	Key() Key
	// ReadFrom is where the object was read.
	ReadFrom() Place
}

// Event says that an object is now as Object says, or gone when Object is nil.
type Event struct {
	Key    Key
	Object Object
}

// Sink takes what sources read. Its methods do not block on work and may be
// called from any goroutine; events of one cluster are applied in order.
type Sink interface {
	// Apply hands over a batch that should become visible together.
	Apply(events []Event)
	// Synced says that the cluster's first full reading was handed over.
	Synced(cluster mesh.ClusterID)
}

// ReadFrom implements Object.
func (m *Meta) ReadFrom() Place { return m.Place }

func (m *Meta) key(k Kind) Key {
	return Key{Kind: k, Cluster: m.Cluster, Namespace: m.Namespace, Name: m.Name}
}
