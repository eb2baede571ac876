package registry

import (
	"cmp"
	"maps"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

func (b *builder) services() {
	b.markAliased()
	services := make(map[string]*snapshot.MeshService)
	ports := set[uint32]{}
	namespaces := set[string]{}
	b.markSharers()
	for n := range b.dirty.services {
		host := mesh.ServiceHost(n.name, n.namespace, b.next.Mesh.Domain)
		old := b.next.Services.Get(host)
		svc := b.service(n, host)
		if old == nil && svc == nil || old != nil && svc != nil && equalService(old, svc) {
			continue
		}
		services[host] = svc
		b.changes.Services[host] = struct{}{}
		namespaces.add(n.namespace)
		for _, s := range []*snapshot.MeshService{old, svc} {
			if s != nil {
				for _, p := range s.Ports {
					ports.add(p.Number)
				}
			}
		}
	}
	b.listConflicts()
	if len(services) == 0 {
		return
	}
	b.next.Services = b.next.Services.With(services)
	private, nodeLocal := false, false
	for _, svc := range b.next.Services.All() {
		private = private || len(svc.ExportTo) > 0 && !slices.Contains(svc.ExportTo, "*")
		nodeLocal = nodeLocal || svc.NodeLocal
	}
	if private != b.next.Private || nodeLocal != b.next.NodeLocal {
		b.next.Private, b.next.NodeLocal = private, nodeLocal
		b.changes.Everywhere = true
	}
	b.portServices(ports, services)
	b.namespaceServices(namespaces, services)
}

// service joins the Services of one name. It returns nil if no cluster has one.
func (b *builder) service(n name, host string) *snapshot.MeshService {
	first := b.decisive(n)
	if first == nil {
		b.noteConflicts(n, nil)
		return nil
	}
	root, backends := b.next.Namespaces.Get(b.next.Mesh.RootNamespace), b.backends[n]
	out := &snapshot.MeshService{
		Host: host, Name: n.name, Namespace: n.namespace, Created: first.Created,
		Headless: first.Headless, NodeLocal: first.NodeLocal && !first.Headless, ExternalName: first.ExternalName,
		Ports: first.Ports, ExportTo: first.ExportTo,
		Accounts: backends.accounts, AllTLS: backends.allTLS, AllDirectTLS: backends.allDirectTLS,
		Plaintext: snapshot.NamespaceMTLS(root, b.next.Namespaces.Get(n.namespace)) == snapshot.Disable,
	}
	for _, c := range b.order {
		if svc := c.services[n]; svc != nil {
			out.Clusters = append(out.Clusters, snapshot.ClusterService{
				Cluster: c.id, VIPs: svc.VIPs, Selector: svc.Selector, Ports: svc.Ports, ExportTo: svc.ExportTo,
			})
		}
	}
	if out.ExternalName == "" {
		out.Aliases = b.aliasesOf(n)
	}
	slices.SortFunc(out.Clusters, func(x, y snapshot.ClusterService) int { return cmp.Compare(x.Cluster, y.Cluster) })
	out.Contested = b.contested(n, out)
	return out
}

// decisive returns the Service that decides the fields which do not differ by cluster,
// or nil if no cluster has one.
func (b *builder) decisive(n name) *snapshot.Service {
	for _, c := range b.order {
		if svc := c.services[n]; svc != nil {
			return svc
		}
	}
	return nil
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

// portServices updates the lists of ports for the changed services.
func (b *builder) portServices(ports set[uint32], changed map[string]*snapshot.MeshService) {
	update := make(map[uint32]*snapshot.PortServices, len(ports))
	for number := range ports {
		var list []*snapshot.MeshService
		if old := b.next.Ports.Get(number); old != nil {
			list = kept(old.Services, changed)
		}
		for _, svc := range changed {
			if svc != nil && svc.Port(number) != nil {
				list = append(list, svc)
			}
		}
		update[number] = nil
		if len(list) > 0 {
			sortServices(list)
			update[number] = &snapshot.PortServices{Number: number, Services: list}
		}
		b.changes.Ports[number] = struct{}{}
	}
	b.next.Ports = b.next.Ports.With(update)
}

// namespaceServices updates the lists of namespaces for the changed services.
func (b *builder) namespaceServices(namespaces set[string], changed map[string]*snapshot.MeshService) {
	update := make(map[string]*snapshot.NamespaceFacts, len(namespaces))
	for ns := range namespaces {
		facts := snapshot.NamespaceFacts{Name: ns}
		if old := b.next.Namespaces.Get(ns); old != nil {
			facts = *old
		}
		list := kept(facts.Services, changed)
		for _, svc := range changed {
			if svc != nil && svc.Namespace == ns {
				list = append(list, svc)
			}
		}
		sortServices(list)
		facts.Services = list
		update[ns] = orNone(&facts)
		b.changes.Namespaces[ns] = struct{}{}
	}
	b.next.Namespaces = b.next.Namespaces.With(update)
}

// kept returns the services of a list that did not change.
func kept(list []*snapshot.MeshService, changed map[string]*snapshot.MeshService) []*snapshot.MeshService {
	out := make([]*snapshot.MeshService, 0, len(list)+1)
	for _, svc := range list {
		if _, ok := changed[svc.Host]; !ok {
			out = append(out, svc)
		}
	}
	return out
}

// sortServices sorts services by precedence in conflicts: oldest first, then by host.
func sortServices(list []*snapshot.MeshService) {
	slices.SortFunc(list, func(x, y *snapshot.MeshService) int {
		return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Host, y.Host))
	})
}
