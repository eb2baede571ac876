package snapshot

import (
	"fmt"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Kind is a kind of object, or of another cause of a change.
type Kind string

// The kinds of objects that sources read, and below them kinds without objects. The kinds
// of Config are in config.go.
const (
	KindNamespace       Kind = "Namespace"
	KindNode            Kind = "Node"
	KindPod             Kind = "Pod"
	KindService         Kind = "Service"
	KindEndpointSlice   Kind = "EndpointSlice"
	KindWorkloadEntry   Kind = "WorkloadEntry"
	KindMeshSettings    Kind = "ConfigMap" // the ConfigMap istio of the system namespace
	KindServiceEntry    Kind = "ServiceEntry"
	KindVirtualService  Kind = "VirtualService"
	KindServiceExport   Kind = "ServiceExport"
	KindServiceImport   Kind = "ServiceImport"
	KindEnvoyFilter     Kind = "EnvoyFilter"
	KindKubeGateway     Kind = "KubernetesGateway" // Gateway of gateway.networking.k8s.io
	KindClusterSettings Kind = "ClusterSettings"   // the ConfigMap meshctl-clusters of the system namespace
	// KindInjectorSettings is for the ConfigMap istio-sidecar-injector of the system namespace.
	KindInjectorSettings Kind = "InjectorSettings"
	KindSecret           Kind = "Secret"      // a Secret with a certificate, CA certificates or both
	KindConfigMap        Kind = "CAConfigMap" // a ConfigMap with CA certificates

	// Only an analysis of the mesh reads these kinds.
	KindReplicaSet Kind = "ReplicaSet"
	KindEvent      Kind = "Event"
	KindInjector   Kind = "MutatingWebhookConfiguration"

	KindCluster     Kind = "Cluster"     // a cluster that was added, removed or changed
	KindTrustBundle Kind = "TrustBundle" // the roots of the mesh
	KindHostName    Kind = "HostName"    // the resolved host names of gateways
	KindKeySet      Kind = "KeySet"      // the fetched key sets of RequestAuthentications
)

// IsObject reports whether the kind has objects. The other kinds only name causes of
// changes.
func (k Kind) IsObject() bool {
	return k != KindCluster && k != KindTrustBundle && k != KindHostName && k != KindKeySet
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

// Place is the file and line where an object's YAML document starts. The zero Place
// stands for a Kubernetes API.
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

// Meta holds the fields that all objects have.
type Meta struct {
	Cluster   mesh.ClusterID
	Namespace string
	Name      string
	Labels    map[string]string
	Created   time.Time // zero if not known
	Place     Place
	// Suppress holds the codes of findings that are not reported of the object, separated
	// by commas; "*" stands for all. It is mostly empty.
	Suppress string `json:",omitempty"`
}

// Object is one object of one cluster: *Namespace, *Node, *Pod, *Service,
// *EndpointSlice, *WorkloadEntry, *KubeGateway, *MeshSettings, *ClusterSettings, *InjectorSettings,
// *ServiceEntry, *ServiceExport, *ServiceImport, *VirtualService, *EnvoyFilter,
// *AuthorizationPolicy, *Secret, *ConfigMap or a *Config.
type Object interface {
	Key() Key
	// ReadFrom returns the place where a source read the object.
	ReadFrom() Place
}

// Event reports the new state of an object. Object is nil if the object is gone.
type Event struct {
	Key    Key
	Object Object
}

// Sink receives the objects that sources read. Its methods return without waiting for
// the work and may be called from any goroutine. Events of one cluster are applied in
// order.
type Sink interface {
	// Apply takes a batch of events that must become visible together.
	Apply(events []Event)
	// Synced reports that Apply got all objects of the cluster once.
	Synced(cluster mesh.ClusterID)
}

// Info returns the metadata.
func (m *Meta) Info() *Meta { return m }

// ReadFrom implements Object.
func (m *Meta) ReadFrom() Place { return m.Place }

func (m *Meta) key(k Kind) Key {
	return Key{Kind: k, Cluster: m.Cluster, Namespace: m.Namespace, Name: m.Name}
}
