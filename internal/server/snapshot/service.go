package snapshot

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// MeshService is one service of the mesh: the Services of one name and namespace in
// all clusters, or a host of a ServiceEntry. The local cluster's Service, else the
// first one by cluster id, decides the fields that do not differ by cluster.
type MeshService struct {
	// Key is the key in Snapshot.Services: the host. If several namespaces define a
	// service of the host, all but the first have the key host/namespace.
	Key string
	// Host is a name in lower case. The host of a ServiceEntry may start with "*.".
	Host      string
	Name      string // of a ServiceEntry: the host
	Namespace string
	Created   time.Time
	// Rivals holds the other services of the host. A namespace sees at most one.
	Rivals []Rival
	// Entry reports whether the service comes from a ServiceEntry.
	Entry bool
	// External reports whether the service is outside the mesh, so that it has no
	// automatic mTLS.
	External   bool
	Resolution Resolution
	// Targets holds the endpoints if the Resolution is by DNS, else nil.
	Targets *Endpoints
	// CIDRs holds the address ranges of the service.
	CIDRs []netip.Prefix
	// AnyAddress reports whether the ServiceEntry names no address, so that connections to any
	// address that no service has are for its ports.
	AnyAddress bool
	// Places holds the places of the ports, if several ServiceEntries define the service. Nil
	// means that all ports are at all addresses of the service.
	Places []PortPlace
	// SubjectAltNames holds names of the certificates of servers outside the mesh, for TLS
	// that a DestinationRule sets.
	SubjectAltNames []string
	// Allocated holds the addresses to which only the DNS proxy of an agent resolves the
	// host, because the service has no others.
	Allocated []netip.Addr
	// Headless reports whether the host resolves to the addresses of pods.
	Headless bool
	// NodeLocal reports whether clients may call only endpoints on their own node
	// (internalTrafficPolicy Local).
	NodeLocal bool
	// Imported reports whether this is a service of clusterset.local, whose endpoints are those
	// of Services in the clusters that export them.
	Imported bool
	// Sticky reports whether all connections of a client go to one endpoint
	// (sessionAffinity ClientIP), unless a DestinationRule sets a load balancer.
	Sticky bool
	// Hashed holds the ports at which a DestinationRule sends requests with the same hash to
	// the same endpoint. HashedIn holds those of the clients' namespaces that differ.
	Hashed   []uint32
	HashedIn map[string][]uint32
	// Distribution, which is never AnyPlace, sets which endpoints clients prefer by their place, unless a
	// DestinationRule does.
	Distribution Distribution
	// ClusterLocal reports whether clients call only endpoints of their own cluster.
	ClusterLocal bool
	// ExternalName is the host that an ExternalName service stands for. It may be
	// outside the mesh. Such a service has no endpoints and no Envoy clusters.
	ExternalName string
	// Aliases holds the ExternalName services that stand for this one, sorted.
	Aliases  []Alias
	Ports    []ServicePort
	ExportTo []string
	// Clusters holds the parts that differ by cluster, sorted by cluster id.
	Clusters []ClusterService
	// Contested replaces the part of each cluster whose proxies use some of the
	// service's addresses for another service. It has only the remaining addresses.
	Contested []ClusterService
	// Accounts holds the SPIFFE ids of the pods of the service in all clusters and
	// trust domains, sorted.
	Accounts []string
	// AllTLS reports whether there are endpoints and all have TLSMode.
	AllTLS bool
	// PlainPorts holds the names of ports with an endpoint on which a PeerAuthentication
	// disables mTLS, sorted.
	PlainPorts []string
	// AllDirectTLS reports whether there are endpoints and all have DirectTLS.
	AllDirectTLS bool
	// Plaintext reports whether PeerAuthentication disables mTLS for all workloads of the
	// service's namespace.
	Plaintext bool
}

// PortPlace is what the ServiceEntries with a port say about the port. Its fields are those of a
// MeshService.
type PortPlace struct {
	Number          uint32
	VIPs            []netip.Addr
	CIDRs           []netip.Prefix
	AnyAddress      bool
	SubjectAltNames []string
}

// place returns the place of a port.
func (s *MeshService) place(number uint32) PortPlace {
	if s.Places == nil {
		return PortPlace{CIDRs: s.CIDRs, AnyAddress: s.AnyAddress, SubjectAltNames: s.SubjectAltNames}
	}
	for i := range s.Places {
		if s.Places[i].Number == number {
			return s.Places[i]
		}
	}
	return PortPlace{}
}

// AddressesOf returns the addresses of a part of the service that a port has. The part may be nil.
func (s *MeshService) AddressesOf(part *ClusterService, number uint32) []netip.Addr {
	switch {
	case part == nil:
		return nil
	case s.Places == nil:
		return part.VIPs
	}
	own := s.place(number).VIPs
	return slices.DeleteFunc(slices.Clone(part.VIPs), func(vip netip.Addr) bool { return !slices.Contains(own, vip) })
}

// RangesOf returns the address ranges of a port.
func (s *MeshService) RangesOf(number uint32) []netip.Prefix { return s.place(number).CIDRs }

// HasAnyAddress reports whether connections to a port may have any address that no service has.
func (s *MeshService) HasAnyAddress(number uint32) bool { return s.place(number).AnyAddress }

// NamesOf returns SubjectAltNames for a port.
func (s *MeshService) NamesOf(number uint32) []string { return s.place(number).SubjectAltNames }

// In returns the part of a cluster, or nil.
func (s *MeshService) In(c mesh.ClusterID) *ClusterService { return partOf(s.Clusters, c) }

// For returns the part whose addresses proxies of a cluster use: the part of their
// own cluster, else of the first cluster. Addresses that they use for another service
// are left out. It returns nil if no cluster has the service.
func (s *MeshService) For(c mesh.ClusterID) *ClusterService {
	return cmp.Or(partOf(s.Contested, c), s.In(c), s.first())
}

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

// Port returns the TCP port of that number, or nil. A UDP port, which proxies ignore,
// may have the same number.
func (s *MeshService) Port(number uint32) *ServicePort {
	for i := range s.Ports {
		if s.Ports[i].Number == number && s.Ports[i].Protocol != mesh.UDP {
			return &s.Ports[i]
		}
	}
	return nil
}

// Rival is another service of the same host.
type Rival struct {
	Namespace string
	ExportTo  []string
	// Kubernetes reports whether the rival is a Service of Kubernetes.
	Kubernetes bool
	// Earlier reports whether the rival precedes this service.
	Earlier bool
}

// FurtherKey returns the key of the service of a host that a namespace defines, if it is not
// the first one of the host.
func FurtherKey(host, namespace string) string { return host + "/" + namespace }

// VisibleTo reports whether the namespace sees the service: exportTo includes the
// namespace, and no rival takes precedence. A Service of Kubernetes precedes all
// rivals, then comes the client's own namespace, then the earlier service.
func (s *MeshService) VisibleTo(namespace string) bool {
	if !exported(s.ExportTo, s.Namespace, namespace) {
		return false
	}
	for i := range s.Rivals {
		r := &s.Rivals[i]
		near := s.Namespace == namespace
		wins := r.Kubernetes || r.Namespace == namespace && !near || r.Earlier && !near
		if s.Entry && wins && exported(r.ExportTo, r.Namespace, namespace) {
			return false
		}
	}
	return true
}

// Private reports whether not all namespaces see the service.
func (s *MeshService) Private() bool {
	return len(s.ExportTo) > 0 && !slices.Contains(s.ExportTo, "*") || len(s.Rivals) > 0
}

// DiffersByClient reports whether the visibility, the names or the hashed ports of the
// service depend on the client's namespace, apart from the short names in its own namespace.
func (s *MeshService) DiffersByClient() bool {
	return s.Private() || len(s.Aliases) > 0 || len(s.HashedIn) > 0
}

// HashedFor reports whether requests of clients in a namespace to a port go to the endpoint
// of their hash.
func (s *MeshService) HashedFor(client string, port uint32) bool {
	ports, own := s.HashedIn[client]
	if !own {
		ports = s.Hashed
	}
	return slices.Contains(ports, port)
}

// CompareServices orders services by precedence in conflicts: oldest first, then by key.
func CompareServices(x, y *MeshService) int {
	return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Key, y.Key))
}

// IsWildcard reports whether the host stands for all names below a domain.
func (s *MeshService) IsWildcard() bool { return strings.HasPrefix(s.Host, "*") }

// KubernetesName returns the name and namespace of a host that has the form of the hosts
// of Kubernetes, so that clients may use short names.
func (s *MeshService) KubernetesName() (name, namespace string, ok bool) {
	if !s.Entry && !s.Imported {
		return s.Name, s.Namespace, true
	}
	short, ok := strings.CutSuffix(s.Host, ".svc."+mesh.DefaultDomain)
	name, namespace, two := strings.Cut(short, ".")
	return name, namespace, ok && two && name != "*" && !strings.Contains(namespace, ".")
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

// PassedOnBy reports whether a gateway passes on calls to the service's endpoints in
// a cluster. The control plane of the gateway's cluster configures the gateway, so
// the exportTo of its own Service must include the gateway's namespace.
func (s *MeshService) PassedOnBy(g *NetworkGateway, c mesh.ClusterID) bool {
	to := s.ExportTo
	if part := cmp.Or(s.In(cmp.Or(g.Cluster, c)), s.first()); part != nil {
		to = part.ExportTo
	}
	return exported(to, s.Namespace, g.Namespace)
}

// IsControlPlane reports whether a Service of a namespace stands for control planes: istiod, or that of
// a revision. One without a selector leads to the control plane of another cluster. root is the
// namespace of control planes.
func IsControlPlane(namespace, name, root string) bool {
	return namespace == root && strings.HasPrefix(name, "istiod")
}

// ClusterService is the part of a service that the Service of one cluster decides.
type ClusterService struct {
	Cluster  mesh.ClusterID
	VIPs     []netip.Addr
	Selector map[string]string
	Ports    []ServicePort
	ExportTo []string
}

// Alias is an ExternalName service that stands for another service of the mesh.
type Alias struct {
	Host, Name, Namespace string
	ExportTo              []string
}

// VisibleTo reports whether exportTo lets the namespace see the alias.
func (a *Alias) VisibleTo(namespace string) bool {
	return exported(a.ExportTo, a.Namespace, namespace)
}

// PortServices holds the services with a TCP port of one number, oldest first. If
// two services conflict, the earlier one wins.
type PortServices struct {
	Number   uint32
	Services []*MeshService
	// Different holds the services that DiffersByClient.
	Different []*MeshService
	// Pods holds the addresses of the pods of headless Services with HTTP that are in a range of
	// another service, sorted.
	Pods []netip.Addr
}
