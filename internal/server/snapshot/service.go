package snapshot

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

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

// ClusterService is the part of a service that one cluster decides.
type ClusterService struct {
	Cluster  mesh.ClusterID
	VIPs     []netip.Addr
	Selector map[string]string
	Ports    []ServicePort
	ExportTo []string
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
