package registry

import (
	"cmp"
	"maps"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// service joins the Services of one host. It returns false if no cluster has one.
func (t *tables) service(r *derive.Reads, host string) (*snapshot.MeshService, bool) {
	services := t.servicesNamed(r, host)
	if len(services) == 0 {
		return nil, false
	}
	first := services[0]
	root, own := t.mtlsPolicies(r, first.Namespace)
	backends, _ := t.backends.Get(r, host)
	out := &snapshot.MeshService{
		Host: host, Name: first.Name, Namespace: first.Namespace, Created: first.Created,
		Headless: first.Headless, NodeLocal: first.NodeLocal && !first.Headless, ExternalName: first.ExternalName,
		Ports: first.Ports, ExportTo: first.ExportTo,
		Accounts: backends.accounts, AllTLS: backends.allTLS, AllDirectTLS: backends.allDirectTLS,
		Plaintext: snapshot.NamespaceMTLS(root, own) == snapshot.Disable,
	}
	for _, svc := range services {
		out.Clusters = append(out.Clusters, snapshot.ClusterService{
			Cluster: svc.Cluster, VIPs: svc.VIPs, Selector: svc.Selector, Ports: svc.Ports, ExportTo: svc.ExportTo,
		})
	}
	if out.ExternalName == "" {
		out.Aliases = t.aliases(r, host)
	}
	slices.SortFunc(out.Clusters, func(x, y snapshot.ClusterService) int { return cmp.Compare(x.Cluster, y.Cluster) })
	out.Contested = t.contested(r, out)
	return out, true
}

func equalService(a, b *snapshot.MeshService) bool {
	return a.Host == b.Host && a.Created.Equal(b.Created) && a.Headless == b.Headless && a.NodeLocal == b.NodeLocal && a.ExternalName == b.ExternalName &&
		a.Plaintext == b.Plaintext && a.AllTLS == b.AllTLS && a.AllDirectTLS == b.AllDirectTLS && slices.Equal(a.Ports, b.Ports) && slices.Equal(a.ExportTo, b.ExportTo) &&
		slices.Equal(a.Accounts, b.Accounts) && slices.EqualFunc(a.Aliases, b.Aliases, equalAlias) &&
		slices.EqualFunc(a.Clusters, b.Clusters, equalPart) && slices.EqualFunc(a.Contested, b.Contested, equalPart)
}

func equalPart(x, y snapshot.ClusterService) bool {
	return x.Cluster == y.Cluster && slices.Equal(x.VIPs, y.VIPs) && maps.Equal(x.Selector, y.Selector) && slices.Equal(x.Ports, y.Ports) &&
		slices.Equal(x.ExportTo, y.ExportTo)
}

// tcpPorts indexes a service by its TCP ports.
func tcpPorts(into []uint32, _ string, s *snapshot.MeshService) []uint32 {
	for i := range s.Ports {
		if s.Ports[i].Protocol != mesh.UDP {
			into = append(into, s.Ports[i].Number)
		}
	}
	return into
}

// portServices returns the services with a TCP port of a number.
func (t *tables) portServices(r *derive.Reads, number uint32) (*snapshot.PortServices, bool) {
	list := values(t.servicesOn.Lookup(r, number))
	sortServices(list)
	return &snapshot.PortServices{Number: number, Services: list}, true
}

func equalPorts(a, b *snapshot.PortServices) bool { return slices.Equal(a.Services, b.Services) }

// serviceTrait is a property of a service that concerns the whole mesh.
type serviceTrait uint8

const (
	privateService   serviceTrait = iota // not exported to all namespaces
	nodeLocalService                     // NodeLocal
	contestedService                     // some proxies use an address for another service
)

// traitsOf indexes a service by its traits.
func traitsOf(into []serviceTrait, _ string, s *snapshot.MeshService) []serviceTrait {
	if len(s.ExportTo) > 0 && !slices.Contains(s.ExportTo, "*") {
		into = append(into, privateService)
	}
	if s.NodeLocal {
		into = append(into, nodeLocalService)
	}
	if len(s.Contested) > 0 {
		into = append(into, contestedService)
	}
	return into
}

// traits reports which traits some service has.
type traits struct{ private, nodeLocal bool }

func (t *tables) findTraits(r *derive.Reads) traits {
	return traits{t.special.Len(r, privateService) > 0, t.special.Len(r, nodeLocalService) > 0}
}

// sortServices sorts services by precedence in conflicts: oldest first, then by host.
func sortServices(list []*snapshot.MeshService) {
	slices.SortFunc(list, func(x, y *snapshot.MeshService) int {
		return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Host, y.Host))
	})
}
