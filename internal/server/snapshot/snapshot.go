// Package snapshot is the vocabulary of the control plane: objects, facts, and the
// snapshots and changes that consist of facts.
//
// An object is what a source read from one cluster, such as a Pod or a Gateway. A
// fact is what the registry derives from the objects of all clusters, such as a
// MeshService: the Services of one name in all clusters. A Snapshot holds the facts
// of one moment; Changes name the facts that differ from the snapshot before.
//
// No type of Kubernetes occurs here. Sources translate their objects, and all later
// stages read only this package. A published value is never written again.
package snapshot

import (
	"github.com/meshctl/meshctl/internal/mesh"
)

// Snapshot holds the facts about the whole mesh at one moment. It is immutable, and
// so is everything that it points to. A fact that did not change keeps its address
// from one snapshot to the next, so facts may be compared by pointer.
type Snapshot struct {
	// Seq is the sequence number of the snapshot. The first one has 1.
	Seq uint64
	// Mesh holds the facts without a narrower scope.
	Mesh *Mesh
	// Networks holds the network of each cluster: the network label of its system
	// namespace, else a flag of the control plane, else "".
	Networks *Table[mesh.ClusterID, mesh.NetworkID]
	// Gateways holds the east-west gateways of all networks.
	Gateways *Gateways
	// Services holds the services by MeshService.Key.
	Services *Table[string, MeshService]
	// Endpoints holds the endpoints of services by MeshService.Key.
	Endpoints *Table[string, Endpoints]
	// Rules holds the DestinationRules of services by MeshService.Key.
	Rules *Table[string, HostRules]
	// Routes holds the VirtualServices of hosts by HostRoutes.Host, and PortRoutes by port
	// number.
	Routes     *Table[string, HostRoutes]
	PortRoutes *Table[uint32, PortRoutes]
	// Referrers holds the VirtualServices that route to a host, by host.
	Referrers *Table[string, Referrers]
	// GatewayRoutes holds the VirtualServices of Gateway objects by GatewayServer.GatewayName.
	GatewayRoutes *Table[string, ClientRoutes]
	// RouteClients holds the conditions of VirtualServices on clients.
	RouteClients *ClientMatches
	// Ports holds the services of each TCP port number.
	Ports *Table[uint32, PortServices]
	// Pods holds pods by PodKey.String, and the workloads of WorkloadEntries by
	// WorkloadEntryKey.
	Pods *Table[string, Pod]
	// Secrets holds the Secrets of all clusters by SecretKey. Readers must check the
	// authenticated identity of the client that they serve.
	Secrets *Table[string, Secret]
	// ConfigMaps holds the ConfigMaps with CA certificates of the local cluster by
	// ConfigMapKey.
	ConfigMaps *Table[string, ConfigMap]
	// TrustBundle is nil until the roots of the mesh are known.
	TrustBundle *TrustBundle
	// Namespaces holds the policies and services of namespaces by name.
	Namespaces *Table[string, NamespaceFacts]
	// Private reports whether some service is not visible in all namespaces.
	Private bool
	// NodeLocal reports whether some service is NodeLocal.
	NodeLocal bool
	// DNS reports whether proxies resolve the endpoints of some service, and Allocated
	// whether some service has allocated addresses.
	DNS, Allocated bool
	// RuleTraits reports which settings of DestinationRules are in use.
	RuleTraits RuleTraits
	// Localities holds the localities of Kubernetes nodes by NodeKey, and of
	// WorkloadEntries by WorkloadEntryKey.
	Localities *Table[string, mesh.Locality]
	// GatewayConfigs holds the Gateway objects of the local cluster, oldest first.
	GatewayConfigs []*Gateway
}

// NetworkOf returns the network of a cluster, or "".
func (s *Snapshot) NetworkOf(c mesh.ClusterID) mesh.NetworkID {
	if n := s.Networks.Get(c); n != nil {
		return *n
	}
	return ""
}
