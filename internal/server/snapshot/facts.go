package snapshot

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Snapshot is one consistent set of facts about the whole mesh. It and all it
// points to are immutable; a fact that did not change keeps its address from
// one snapshot to the next, so comparing pointers tells what changed.
type Snapshot struct {
	// Seq counts snapshots from 1.
	Seq uint64
	// Mesh holds what applies everywhere.
	Mesh *Mesh
	// Gateways are the east-west gateways by network.
	Gateways *Gateways
	// Services by host name.
	Services *Table[string, MeshService]
	// Endpoints by host name.
	Endpoints *Table[string, Endpoints]
	// Ports holds, for each TCP port number, the services that have it.
	Ports *Table[uint32, PortServices]
	// Pods by PodKey.String(), and the workloads of WorkloadEntries by
	// WorkloadEntryKey.
	Pods *Table[string, Pod]
	// Secrets of all clusters by SecretKey. Who reads them decides by an
	// authenticated identity who is given what.
	Secrets *Table[string, Secret]
	// ConfigMaps with CA certificates of the configuration cluster by
	// ConfigMapKey.
	ConfigMaps *Table[string, ConfigMap]
	// TrustBundle is nil until the roots are known.
	TrustBundle *TrustBundle
	// Namespaces by name.
	Namespaces *Table[string, NamespaceFacts]
	// Private is set when some service is not exported to every namespace.
	Private bool
	// NodeLocal is set when some service has NodeLocal.
	NodeLocal bool
	// GatewayConfigs are the Gateway objects of the configuration cluster,
	// oldest first.
	GatewayConfigs []*Gateway
}

// Changes names what differs between a snapshot and the one before it.
type Changes struct {
	Services   map[string]struct{} // hosts whose MeshService changed, came or went
	Endpoints  map[string]struct{} // hosts whose Endpoints changed, came or went
	Ports      map[uint32]struct{} // numbers whose PortServices changed, came or went
	Pods       map[string]struct{} // keys of Pods that changed, came or went
	Secrets    map[string]struct{} // SecretKey or ConfigMapKey of those that changed, came or went
	Namespaces map[string]struct{} // namespaces whose NamespaceFacts changed
	// TrustBundle is set when the TrustBundle changed.
	TrustBundle bool
	// Everywhere is set when Mesh, Gateways, Private, NodeLocal or GatewayConfigs
	// changed.
	Everywhere bool
	// Causes are a few of the objects behind the change, for logs and traces,
	// Events is how many there are.
	Causes []Cause
	Events int
	// Since is when the first event of the batch arrived, Taken when the batch was
	// closed, Built when the snapshot was made of it.
	Since, Taken, Built time.Time
}

// Cause is an object that changed.
type Cause struct {
	Key
	Place Place // zero for an object that is gone
	Gone  bool
}

// Kinds is a set of kinds of facts.
type Kinds uint8

// The kinds of facts that lists of resources are made of. By pods and
// namespaces it is only chosen which lists a proxy is given.
const (
	ServiceFacts Kinds = 1 << iota
	EndpointFacts
	PortFacts
	SecretFacts
	TrustFacts
)

// Kinds is what kinds of facts changed; Everywhere is none of them.
func (c *Changes) Kinds() Kinds {
	var k Kinds
	add := func(kind Kinds, changed int) {
		if changed > 0 {
			k |= kind
		}
	}
	add(ServiceFacts, len(c.Services))
	add(EndpointFacts, len(c.Endpoints))
	add(PortFacts, len(c.Ports))
	add(SecretFacts, len(c.Secrets))
	if c.TrustBundle {
		k |= TrustFacts
	}
	return k
}

// Empty reports whether nothing changed.
func (c *Changes) Empty() bool {
	return !c.Everywhere && !c.TrustBundle && len(c.Services) == 0 && len(c.Endpoints) == 0 && len(c.Ports) == 0 &&
		len(c.Pods) == 0 && len(c.Secrets) == 0 && len(c.Namespaces) == 0
}

// Mesh holds the facts that apply to the whole mesh.
type Mesh struct {
	LocalCluster mesh.ClusterID
	TrustDomain  string
	Aliases      []string // trust-domain aliases, sorted
	// CACertificates are caCertificates.
	CACertificates []CACertificate
	Domain         string // DNS suffix of services
	RootNamespace  string
	// RegistryOnly is outboundTrafficPolicy REGISTRY_ONLY.
	RegistryOnly   bool
	ConnectTimeout time.Duration
	// AutoMTLS is enableAutoMtls.
	AutoMTLS bool
	// KeyExchanges is meshMTLS.ecdhCurves: what Envoys use with each other, by
	// Envoy's names, what is preferred coming first; empty leaves it to them.
	KeyExchanges []string
	// Listeners is what MeshConfig sets for the listeners of all proxies.
	Listeners ListenerSettings
	// Networks maps each cluster to the network of its system namespace.
	Networks map[mesh.ClusterID]mesh.NetworkID
}

// ListenerSettings are settings of MeshConfig that count for all listeners.
type ListenerSettings struct {
	// AccessLogFile is accessLogFile, the path at which Envoy logs requests and
	// connections; empty is no log.
	AccessLogFile string
	// AccessLogFormat is accessLogFormat, a text or, with AccessLogJSON, an
	// object of JSON; empty is the default.
	AccessLogFormat string
	AccessLogJSON   bool
	// Tracing is enableTracing.
	Tracing bool
	// DetectionTimeout is protocolDetectionTimeout: how long to wait for the first
	// bytes of a connection; 0 is without end.
	DetectionTimeout time.Duration
}

// CACertificate is a further source of roots, that MeshConfig names.
type CACertificate struct {
	PEM, BundleURL string // one of them
	// TrustDomains are whose roots they are; none means the mesh's own and its
	// aliases.
	TrustDomains []string
}

// TrustBundle is what workloads of the mesh check each other with.
type TrustBundle struct {
	// Roots are PEM texts of one certificate each, sorted.
	Roots []string
}

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

// MeshService is one service of the mesh: the services of the same name and
// namespace in all clusters.
type MeshService struct {
	Host      string
	Name      string
	Namespace string
	Created   time.Time
	// Headless services resolve to pod addresses.
	Headless bool
	// NodeLocal services are reached on the client's own node alone
	// (internalTrafficPolicy Local).
	NodeLocal bool
	// ExternalName services are other names, of services of the mesh or not. They
	// have no clusters.
	ExternalName string
	// Aliases are the ExternalName services that stand for this one, sorted.
	Aliases  []Alias
	Ports    []ServicePort
	ExportTo []string
	// Clusters holds what differs by cluster, sorted by cluster id.
	Clusters []ClusterService
	// Contested holds, for clusters whose proxies use some of the service's
	// addresses for another service, the addresses that are left.
	Contested []ClusterService
	// Accounts are the SPIFFE ids of the pods behind the service, of all
	// clusters and trust-domain aliases, sorted.
	Accounts []string
	// AllTLS is set when there are endpoints and all have the tlsMode label.
	AllTLS bool
	// AllDirectTLS is set when there are endpoints and all have DirectTLS.
	AllDirectTLS bool
	// Plaintext is set when PeerAuthentication disables mTLS in the
	// service's namespace.
	Plaintext bool
}

// ClusterService is the part of a service that one cluster decides.
type ClusterService struct {
	Cluster  mesh.ClusterID
	VIPs     []netip.Addr
	Selector map[string]string
	Ports    []ServicePort
	ExportTo []string
}

// In returns the part of the cluster, or nil.
func (s *MeshService) In(c mesh.ClusterID) *ClusterService { return partOf(s.Clusters, c) }

// For returns the part whose addresses count for proxies of a cluster: of their
// own cluster, else of the first cluster that has the service, without what they
// use for another service; nil when no cluster has the service.
func (s *MeshService) For(c mesh.ClusterID) *ClusterService {
	return cmp.Or(partOf(s.Contested, c), s.In(c), s.first())
}

// first returns the part of the first cluster that has the service, or nil.
func (s *MeshService) first() *ClusterService {
	if len(s.Clusters) == 0 {
		return nil
	}
	return &s.Clusters[0]
}

func partOf(parts []ClusterService, c mesh.ClusterID) *ClusterService {
	for i := range parts {
		if parts[i].Cluster == c {
			return &parts[i]
		}
	}
	return nil
}

// Port returns the TCP port of that number, or nil. A UDP port may have the
// same number; proxies do not take UDP.
func (s *MeshService) Port(number uint32) *ServicePort {
	for i := range s.Ports {
		if s.Ports[i].Number == number && s.Ports[i].Protocol != mesh.UDP {
			return &s.Ports[i]
		}
	}
	return nil
}

// VisibleTo reports whether exportTo lets the namespace see the service.
func (s *MeshService) VisibleTo(namespace string) bool {
	return exported(s.ExportTo, s.Namespace, namespace)
}

// exported reports whether the exportTo of an object lets a namespace see it.
func exported(exportTo []string, own, namespace string) bool {
	if len(exportTo) == 0 {
		return true
	}
	for _, e := range exportTo {
		if e == "*" || e == namespace || e == "." && namespace == own {
			return true
		}
	}
	return false
}

// PassedOnBy reports whether a gateway passes on calls to the service's endpoints of
// a cluster: whether the gateway's namespace sees the service, as the control plane
// of the gateway's cluster has it.
func (s *MeshService) PassedOnBy(g *NetworkGateway, c mesh.ClusterID) bool {
	to := s.ExportTo
	if part := cmp.Or(s.In(cmp.Or(g.Cluster, c)), s.first()); part != nil {
		to = part.ExportTo
	}
	return exported(to, s.Namespace, g.Namespace)
}

// Alias is another name of a service.
type Alias struct {
	Host, Name, Namespace string
	ExportTo              []string
}

// VisibleTo reports whether exportTo lets the namespace see the alias.
func (a *Alias) VisibleTo(namespace string) bool {
	return exported(a.ExportTo, a.Namespace, namespace)
}

// ClusterLocal reports whether the service of that name is reached only within its
// own cluster: Kubernetes' own services.
func ClusterLocal(namespace, name string) bool {
	return namespace == "kube-system" || namespace == "default" && name == "kubernetes"
}

// PortServices are the services that have a TCP port of one number, oldest
// first: in the order in which they win conflicts.
type PortServices struct {
	Number   uint32
	Services []*MeshService
}

// Endpoints are the endpoints of one service in all clusters, by service port
// name, each list sorted by cluster and address.
type Endpoints struct {
	Host   string
	ByPort map[string][]Endpoint
}

// Health of an endpoint.
type Health uint8

// Endpoints that terminate are left out of the facts.
const (
	Healthy Health = iota
	Unhealthy
)

// Endpoint is one address of one service port.
type Endpoint struct {
	Address  netip.Addr
	Port     uint32
	Cluster  mesh.ClusterID
	Network  mesh.NetworkID
	Locality mesh.Locality
	Health   Health
	// MTLS is set when the pod has a proxy that accepts mTLS on the port:
	// its tlsMode label says istio and PeerAuthentication does not disable
	// it.
	MTLS bool
	// TLSMode says that the pod's tlsMode label is istio.
	TLSMode bool
	// DirectTLS says that mTLS is accepted whatever protocol the client offers
	// by ALPN: plaintext is refused (STRICT), or gRPC serves without a proxy. A
	// permissive proxy takes for mTLS only what offers one of Istio's protocols.
	DirectTLS bool
	Labels    map[string]string
	// Workload is "<workload>;<namespace>;<canonical name>;<canonical
	// revision>;<cluster>", Istio's endpoint metadata.
	Workload string
	Pod      string // key of Pods, empty when no pod is known
	Node     string // the Kubernetes node, empty when it is not known
	// Hostname is the DNS label of the endpoint below the service's host, as
	// the pods of a StatefulSet have; mostly empty.
	Hostname string
	// Drained says that the endpoint is left out where others can take its
	// load, Demoted that it comes after the others, both because of its cluster.
	Drained, Demoted bool
	// Weight is its part of the load beside the others; 0 is 1.
	Weight uint32
}

// Standing is how the endpoints of a cluster take part in load balancing.
// The zero value is that of a cluster with nothing special.
type Standing struct {
	// Drained endpoints get load only where no other cluster has healthy ones.
	Drained bool
	// Demoted endpoints get the next lower priority.
	Demoted bool
	// Weight is the share of an endpoint in percent of the usual one, 1 to
	// mesh.MaxWeight; 0 is 100.
	Weight uint32
}

// Gateways are the east-west gateways of the mesh. The zero value means that
// there is one network.
type Gateways struct {
	ByNetwork map[mesh.NetworkID][]NetworkGateway
}

// NetworkGateway is one address under which a network is reached.
type NetworkGateway struct {
	Network mesh.NetworkID
	Cluster mesh.ClusterID // empty for gateways of meshNetworks
	// Namespace is that of the gateway's Service or Gateway, empty where it is not
	// known: for addresses in meshNetworks.
	Namespace string
	Address   netip.Addr
	Port      uint32
}

// For returns the gateways of the network, those of the cluster if it has
// its own. The list is sorted by address and port. g may be nil.
func (g *Gateways) For(n mesh.NetworkID, c mesh.ClusterID) []NetworkGateway {
	if g == nil {
		return nil
	}
	all := g.ByNetwork[n]
	var own []NetworkGateway
	for _, gw := range all {
		if gw.Cluster == c {
			own = append(own, gw)
		}
	}
	if len(own) > 0 {
		return own
	}
	return all
}

// NamespaceFacts are the policies of one namespace of the configuration
// cluster and the services in it, oldest policy first.
type NamespaceFacts struct {
	Name     string
	Sidecars []*Sidecar
	PeerAuth []*PeerAuthentication
	// EnvoyFilters by priority, then oldest first.
	EnvoyFilters []*EnvoyFilter
	Services     []*MeshService
}
