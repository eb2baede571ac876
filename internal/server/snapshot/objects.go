// Package snapshot holds the facts that the control plane works with. Objects
// are what a source reads from one cluster; facts are what the registry joins
// them to; a Snapshot is one consistent, immutable set of facts. There are no
// Kubernetes types here: sources translate, everything after them reads only
// this package. Nothing in a published value is ever written again.
package snapshot

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

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

// Namespace is a Kubernetes Namespace.
type Namespace struct{ Meta }

// Key implements Object.
func (o *Namespace) Key() Key { return o.key(KindNamespace) }

// Node is a Kubernetes Node.
type Node struct {
	Meta
	Locality mesh.Locality
}

// Key implements Object.
func (o *Node) Key() Key { return o.key(KindNode) }

// Pod is a Kubernetes Pod that has an address.
type Pod struct {
	Meta
	IPs            []netip.Addr
	Node           string
	ServiceAccount string
	Workload       string // name of the Deployment, StatefulSet … that owns the pod
	HostNetwork    bool
	// Proxyless pods have no proxy: gRPC in the application takes its place.
	Proxyless bool
	// Ports are what services may target by name.
	Ports []PodPort
	// External workloads are those of a WorkloadEntry: it may also give a port of
	// the service's name where the service targets a number.
	External bool
}

// Key implements Object.
func (o *Pod) Key() Key { return o.key(KindPod) }

// PodPort is a named port of a workload.
type PodPort struct {
	Name   string
	Number uint32
}

// TargetPort is the workload's port behind one of a service, 0 when it has none.
// The pod may be nil.
func (o *Pod) TargetPort(s *ServicePort) uint32 {
	name := s.TargetName
	if o != nil && o.External {
		name = cmp.Or(name, s.Name)
	}
	if o != nil && name != "" {
		for _, port := range o.Ports {
			if port.Name == name {
				return port.Number
			}
		}
	}
	if s.TargetName != "" {
		return 0
	}
	return cmp.Or(s.Target, s.Number)
}

// WorkloadEntry is a workload that Kubernetes does not run, such as a virtual
// machine: what services see of it is as of a pod.
type WorkloadEntry struct {
	Pod
	Network  mesh.NetworkID // of the spec, else empty
	Locality mesh.Locality  // likewise
	// Weight is its part of the load beside the others; 0 is 1.
	Weight uint32
	// HealthChecked entries are healthy only where it is said that they are.
	HealthChecked bool
	// Health is what the status of the object says.
	Health Condition
}

// Key implements Object.
func (o *WorkloadEntry) Key() Key { return o.key(KindWorkloadEntry) }

// HealthChecked reports whether annotations have an entry be health-checked.
func HealthChecked(annotations map[string]string) bool {
	return strings.EqualFold(annotations[mesh.AnnotationHealthChecks], "true")
}

// Condition is what is known of something that holds or not.
type Condition uint8

// The conditions.
const (
	Unknown Condition = iota
	True
	False
)

// Service is a Kubernetes Service of one cluster.
type Service struct {
	Meta
	VIPs         []netip.Addr // cluster IPs
	Headless     bool
	NodeLocal    bool // internalTrafficPolicy Local
	ExternalName string
	Selector     map[string]string
	Ports        []ServicePort
	// External are the addresses under which other networks reach the
	// service: load-balancer ingress and externalIPs, IP addresses or host
	// names.
	External []string
	ExportTo []string // from the annotation; nil means everywhere
}

// Key implements Object.
func (o *Service) Key() Key { return o.key(KindService) }

// ServicePort is one port of a Service.
type ServicePort struct {
	Name     string
	Number   uint32
	Protocol mesh.Protocol
	// Target is the numeric target port, or 0 when it is a name, which then
	// stands in TargetName.
	Target     uint32
	TargetName string
}

// EndpointSlice is a Kubernetes EndpointSlice.
type EndpointSlice struct {
	Meta
	Service   string
	Ports     []SlicePort
	Endpoints []SliceEndpoint
}

// Key implements Object.
func (o *EndpointSlice) Key() Key { return o.key(KindEndpointSlice) }

// SlicePort is one port of an EndpointSlice; Name is that of the service port.
type SlicePort struct {
	Name   string
	Number uint32
}

// SliceEndpoint is one endpoint of an EndpointSlice.
type SliceEndpoint struct {
	Addresses   []netip.Addr
	Ready       bool
	Terminating bool
	Pod         string // name of the pod behind it, in the slice's namespace
	Hostname    string // its DNS label below the service's name, if it has one
	Node        string
	Zone        string
}

// KubeGateway is a Gateway of the Kubernetes Gateway API that is labelled as a
// way into a network.
type KubeGateway struct {
	Meta
	Network   mesh.NetworkID
	Addresses []string // IP addresses or host names
	Ports     []uint32 // on which it passes mutual TLS through
	// Remote is set when it stands for a gateway of another cluster, which
	// counts only in the own cluster.
	Remote bool
}

// Key implements Object.
func (o *KubeGateway) Key() Key { return o.key(KindKubeGateway) }

// MeshSettings is the content of the ConfigMap istio: MeshConfig on top of
// its defaults, and MeshNetworks.
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
		*networkingv1alpha3.DestinationRule | *networkingv1alpha3.VirtualService | *networkingv1alpha3.ServiceEntry
}

// Config is an Istio configuration object: a validated proto with its place.
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
	// Sidecar says what a workload is sent and where it is called.
	Sidecar = Config[*networkingv1alpha3.Sidecar]
	// PeerAuthentication decides who must use mTLS.
	PeerAuthentication = Config[*securityv1beta1.PeerAuthentication]
	// DestinationRule has no effect yet.
	DestinationRule = Config[*networkingv1alpha3.DestinationRule]
	// VirtualService has no effect yet.
	VirtualService = Config[*networkingv1alpha3.VirtualService]
	// ServiceEntry has no effect yet.
	ServiceEntry = Config[*networkingv1alpha3.ServiceEntry]
)

func (m *Meta) key(k Kind) Key {
	return Key{Kind: k, Cluster: m.Cluster, Namespace: m.Namespace, Name: m.Name}
}
