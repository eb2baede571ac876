package snapshot

import (
	"cmp"
	"net/netip"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
)

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

// PodKey names a pod of one cluster.
type PodKey struct {
	Cluster   mesh.ClusterID
	Namespace string
	Name      string
}

func (k PodKey) String() string {
	return string(k.Cluster) + "/" + k.Namespace + "/" + k.Name
}

// WorkloadEntryKey names a WorkloadEntry of one cluster among the pods, whose names
// have no colon.
func WorkloadEntryKey(c mesh.ClusterID, namespace, name string) string {
	return PodKey{c, namespace, "entry:" + name}.String()
}

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
