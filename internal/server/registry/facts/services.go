package facts

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// addServices adds the tables of services.
func (t *Tables) addServices() {
	g := t.Graph
	t.vipUsers = derive.New(g, "users of addresses", netip.Addr.Compare, maps.Equal[map[mesh.ClusterID]string], t.usersOf, t.servicesAt)
	t.MeshServices = derive.New(g, "services", strings.Compare, equalService, t.service, t.servicesOf, t.entriesOf, t.importsOf)
	t.servicesIn = derive.NewIndex(t.MeshServices, func(into []string, _ string, s *snapshot.MeshService) []string { return append(into, s.Namespace) })
	t.servicesOn = derive.NewIndex(t.MeshServices, tcpPorts)
	t.special = derive.NewIndex(t.MeshServices, traitsOf)
	t.hashedIn = derive.NewIndex(t.MeshServices, func(into []string, _ string, s *snapshot.MeshService) []string {
		return slices.AppendSeq(into, maps.Keys(s.HashedIn))
	})
	t.Ports = derive.New(g, "ports", cmp.Compare[uint32], equalPorts, t.portServices, t.servicesOn)
	t.Traits = derive.Single(g, "traits", same, t.findTraits)
	t.Conflicts = derive.Single(g, "address conflicts", equalConflicts, t.findConflicts)
}

// service returns the service with a key, or false if there is none.
func (t *Tables) service(r *derive.Reads, key string) (*snapshot.MeshService, bool) {
	d, host, rivals, ok := t.define(r, key)
	if !ok {
		return nil, false
	}
	var out *snapshot.MeshService
	if d.entry != nil {
		out = t.entryService(r, key, host, d)
	} else {
		out = t.kubeService(r, host, d)
	}
	out.Rivals = rivals
	t.setHashed(r, out)
	return out, true
}

// kubeService joins the Services of one host.
func (t *Tables) kubeService(r *derive.Reads, host string, d definition) *snapshot.MeshService {
	first := d.services[0]
	root, own := t.mtlsPolicies(r, first.Namespace)
	backends, _ := t.backends.Get(r, host)
	out := &snapshot.MeshService{
		Key: host, Host: host, Name: first.Name, Namespace: first.Namespace, Created: first.Created,
		Headless: first.Headless, NodeLocal: first.NodeLocal && !first.Headless, Sticky: first.Sticky, Distribution: t.distribution(r, first.Cluster, first.Namespace, first.Distribution), ExternalName: first.ExternalName,
		ClusterLocal: t.isClusterLocal(r, host), Ports: first.Ports, ExportTo: d.exportTo,
		Accounts: t.accounts(r, host, first.Namespace, backends.accounts), AllTLS: backends.allTLS, AllDirectTLS: backends.allDirectTLS,
		PlainPorts: backends.plainPorts, Plaintext: snapshot.AllPlaintext(root, own),
	}
	if _, _, out.Imported = snapshot.ExportedName(host); out.Imported {
		out.Clusters = t.importedParts(r, host, d)
	} else {
		out.Clusters = t.serviceParts(r, d.services)
	}
	if out.ExternalName == "" {
		out.Aliases = t.aliases(r, host, first.Namespace)
	}
	out.Contested = t.contested(r, out)
	return out
}

// distribution returns the preference for near endpoints of a service: its own, else that of its
// namespace.
func (t *Tables) distribution(r *derive.Reads, cluster mesh.ClusterID, namespace string, own snapshot.Distribution) snapshot.Distribution {
	ofNamespace, _ := t.distributions.Get(r, ObjectKey{cluster, "", namespace})
	return own.Of(ofNamespace)
}

// serviceParts returns the parts of a service that differ by cluster.
func (t *Tables) serviceParts(r *derive.Reads, services []*snapshot.Service) []snapshot.ClusterService {
	services = slices.Clone(services)
	slices.SortFunc(services, func(x, y *snapshot.Service) int { return cmp.Compare(x.Cluster, y.Cluster) })
	out := make([]snapshot.ClusterService, 0, len(services))
	for _, svc := range services {
		out = append(out, snapshot.ClusterService{
			Cluster: svc.Cluster, VIPs: svc.VIPs, Selector: svc.Selector, Ports: svc.Ports, ExportTo: t.exportTo(r, svc.Cluster, svc.ExportTo),
		})
	}
	return out
}

func equalService(a, b *snapshot.MeshService) bool {
	return equalEntryService(a, b) && a.Host == b.Host && a.Created.Equal(b.Created) && a.Headless == b.Headless && a.NodeLocal == b.NodeLocal && a.Sticky == b.Sticky && equalHashed(a, b) && a.Distribution == b.Distribution && a.ExternalName == b.ExternalName && a.ClusterLocal == b.ClusterLocal &&
		a.Plaintext == b.Plaintext && a.AllTLS == b.AllTLS && a.AllDirectTLS == b.AllDirectTLS && slices.Equal(a.PlainPorts, b.PlainPorts) && slices.Equal(a.Ports, b.Ports) && slices.Equal(a.ExportTo, b.ExportTo) &&
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
func (t *Tables) portServices(r *derive.Reads, number uint32) (*snapshot.PortServices, bool) {
	list := values(t.servicesOn.Lookup(r, number))
	slices.SortFunc(list, snapshot.CompareServices)
	out := &snapshot.PortServices{Number: number, Services: list}
	for _, s := range list {
		if s.DiffersByClient() {
			out.Different = append(out.Different, s)
		}
	}
	out.Pods = t.podsInRanges(r, list, number)
	return out, true
}

// podsInRanges returns the addresses of the pods of headless Services with HTTP that are in a range of
// another service with the port.
func (t *Tables) podsInRanges(r *derive.Reads, services []*snapshot.MeshService, number uint32) []netip.Addr {
	var ranges snapshot.Ranges
	for _, s := range services {
		ranges.Add(s.RangesOf(number)...)
	}
	if ranges.Empty() {
		return nil
	}
	var out []netip.Addr
	for _, s := range services {
		if !s.Headless || !s.Port(number).Protocol.IsHTTP() {
			continue
		}
		if j, ok := t.Joins.Get(r, s.Key); ok {
			out = slices.AppendSeq(out, ranges.Within(j.pods))
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

func equalPorts(a, b *snapshot.PortServices) bool {
	return slices.Equal(a.Services, b.Services) && slices.Equal(a.Pods, b.Pods)
}

// serviceTrait is a property of a service that concerns the whole mesh.
type serviceTrait uint8

const (
	privateService     serviceTrait = iota // not visible in all namespaces
	nodeLocalService                       // NodeLocal
	contestedService                       // some proxies use an address for another service
	dnsService                             // proxies resolve its endpoints
	allocatedService                       // it has allocated addresses
	distributedService                     // has a Distribution; those of one follow, by number
)

// traitsOf indexes a service by its traits.
func traitsOf(into []serviceTrait, _ string, s *snapshot.MeshService) []serviceTrait {
	if s.Private() {
		into = append(into, privateService)
	}
	if s.NodeLocal {
		into = append(into, nodeLocalService)
	}
	if len(s.Contested) > 0 {
		into = append(into, contestedService)
	}
	if s.Resolution.DNS() {
		into = append(into, dnsService)
	}
	if len(s.Allocated) > 0 {
		into = append(into, allocatedService)
	}
	if s.Distribution != snapshot.NoDistribution {
		into = append(into, distributedService+serviceTrait(s.Distribution))
	}
	return into
}

// traits reports which traits some service has.
type traits struct {
	Private, NodeLocal, DNS, Allocated bool
	// collectors names the services that take spans and logs, or authorize requests, and exist,
	// with their visibility.
	collectors string
}

func (t *Tables) findTraits(r *derive.Reads) traits {
	has := func(trait serviceTrait) bool { return t.special.Len(r, trait) > 0 }
	return traits{has(privateService), has(nodeLocalService), has(dnsService), has(allocatedService), t.foundCollectors(r)}
}
