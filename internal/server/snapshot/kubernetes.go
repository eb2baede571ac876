package snapshot

import (
	"cmp"
	"net/netip"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Namespace is a Kubernetes Namespace.
type Namespace struct {
	Meta
	Distribution Distribution // of its services without one
}

// Key implements Object.
func (o *Namespace) Key() Key { return o.key(KindNamespace) }

// Node is a Kubernetes Node.
type Node struct {
	Meta     // with labels only if External has addresses
	Locality mesh.Locality
	External []netip.Addr // addresses for clients outside the cluster
}

// Key implements Object.
func (o *Node) Key() Key { return o.key(KindNode) }

// Pod is a Kubernetes Pod that has not ended.
type Pod struct {
	Meta
	IPs            []netip.Addr // empty before the pod runs, and for most pods in files
	Node           string
	ServiceAccount string
	Workload       string // name of the Deployment, StatefulSet … that owns the pod
	HostNetwork    bool
	// Proxyless reports whether gRPC in the application takes the place of a proxy.
	Proxyless bool
	// Unready reports whether the pod is terminating or not ready. For the pods of Services,
	// EndpointSlices decide that.
	Unready bool
	// Ports holds the ports that services may target by name.
	Ports []PodPort
	// External reports whether this is the workload of a WorkloadEntry. Its port of
	// the service port's name is used even if the service targets a number.
	External bool
	// Injection is nil unless the mesh is read for an analysis.
	Injection *Injection `json:",omitzero"`
}

// Key implements Object.
func (o *Pod) Key() Key { return o.key(KindPod) }

// PodPort is a named port of a workload.
type PodPort struct {
	Name   string
	Number uint32
}

// TargetPort returns the number of the workload's port that a service port targets, or
// 0 if the workload has no such port. The pod may be nil.
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

// WorkloadEntry is a workload outside Kubernetes, such as a virtual machine. Services
// select its Pod like any other.
type WorkloadEntry struct {
	Pod
	// Target is the host name of the workload if its IP address is unknown. Only a
	// ServiceEntry that is resolved by DNS has such an endpoint.
	Target   string
	Network  mesh.NetworkID // from the spec; may be empty
	Locality mesh.Locality  // from the spec; may be empty
	// Weight is the weight relative to other endpoints; 0 means 1.
	Weight uint32
	// HealthChecked reports whether the entry is unhealthy until it is reported
	// healthy.
	HealthChecked bool
	// Health is the health in the status of the object.
	Health Condition
}

// Key implements Object.
func (o *WorkloadEntry) Key() Key { return o.key(KindWorkloadEntry) }

// HealthChecked reports whether the annotations of a WorkloadEntry enable health
// checks.
func HealthChecked(annotations map[string]string) bool {
	return strings.EqualFold(annotations[mesh.AnnotationHealthChecks], "true")
}

// Condition is the status of a condition of an object.
type Condition uint8

// The values of Condition.
const (
	Unknown Condition = iota
	True
	False
)

// PodKey names a pod of one cluster.
type PodKey struct {
	Cluster   mesh.ClusterID
	Namespace string
	Name      string
}

func (k PodKey) String() string {
	return string(k.Cluster) + "/" + k.Namespace + "/" + k.Name
}

// NodeKey returns the key of a Kubernetes node in Snapshot.Localities.
func NodeKey(c mesh.ClusterID, node string) string { return PodKey{Cluster: c, Name: node}.String() }

// WorkloadEntryKey returns the key of a WorkloadEntry in Snapshot.Pods. It differs
// from the key of every pod by a colon.
func WorkloadEntryKey(c mesh.ClusterID, namespace, name string) string {
	return PodKey{c, namespace, "entry:" + name}.String()
}

// Service is a Kubernetes Service of one cluster.
type Service struct {
	Meta
	VIPs         []netip.Addr // cluster IPs
	Headless     bool
	NodeLocal    bool // internalTrafficPolicy Local
	Sticky       bool // sessionAffinity ClientIP
	Distribution Distribution
	ExternalName string
	Selector     map[string]string
	Ports        []ServicePort
	// External holds the addresses for clients outside the cluster: the IP addresses
	// and host names of the load balancer, and externalIPs.
	External []string
	// NodePorts replaces External if nodes are the addresses of the service.
	NodePorts *NodePorts
	ExportTo  []string // from the annotation; nil means all namespaces
}

// Key implements Object.
func (o *Service) Key() Key { return o.key(KindService) }

// NodePorts describes how clients outside the cluster reach a Service at nodes.
type NodePorts struct {
	Selector map[string]string // labels of the nodes
	Ports    map[uint32]uint32 // ports of nodes by the number of the service's port
}

// ServicePort is one port of a Service.
type ServicePort struct {
	Name       string
	Number     uint32
	Protocol   mesh.Protocol
	Target     uint32 // target port, if it is a number
	TargetName string // target port, if it is a name
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

// SlicePort is one port of an EndpointSlice.
type SlicePort struct {
	Name   string // of the service port
	Number uint32
}

// SliceEndpoint is one endpoint of an EndpointSlice.
type SliceEndpoint struct {
	Addresses   []netip.Addr
	Ready       bool
	Terminating bool
	Pod         string // name of the pod behind it, in the slice's namespace
	Hostname    string // DNS label below the service's name; may be empty
	Node        string
	Zone        string
}

// KubeGateway is a Gateway of the Kubernetes Gateway API with a network label: an
// east-west gateway of that network.
type KubeGateway struct {
	Meta
	Network   mesh.NetworkID
	Addresses []string // IP addresses or host names
	Ports     []uint32 // of its listeners that pass mTLS through
	// Remote reports whether the object describes a gateway of another cluster. Such
	// an object counts only in the local cluster.
	Remote bool
}

// Key implements Object.
func (o *KubeGateway) Key() Key { return o.key(KindKubeGateway) }
