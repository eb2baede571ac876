package registry

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// build makes the next snapshot from what is dirty and says what differs.
// before is nil for the first.
func (s *state) build(before *snapshot.Snapshot) (*snapshot.Snapshot, *snapshot.Changes) {
	next := &snapshot.Snapshot{Seq: 1}
	if before != nil {
		*next = *before
		next.Seq++
	}
	b := &builder{state: s, next: next, changes: newChanges()}
	b.mesh()
	b.gateways()
	b.policies()
	b.endpoints()
	b.unreachableNetworks()
	b.services()
	b.pods()
	b.secrets()
	b.caConfigMaps()
	b.trustBundle()
	s.dirty = newDirty()
	return next, b.changes
}

func newChanges() *snapshot.Changes {
	return &snapshot.Changes{
		Services: map[string]struct{}{}, Endpoints: map[string]struct{}{},
		Ports: map[uint32]struct{}{}, Pods: map[string]struct{}{}, Secrets: map[string]struct{}{}, Namespaces: map[string]struct{}{},
	}
}

// builder holds one build.
type builder struct {
	*state
	next    *snapshot.Snapshot
	changes *snapshot.Changes

	weight      map[mesh.ClusterID]uint32 // of endpoints, where it is not usualWeight
	usualWeight uint32
	omitting    map[string]*Omitted // what changes of omitted

	users            map[usedAt]name // of addresses that several services have
	conflictsChanged bool
	newConflicts     int
}

// everything marks all services and endpoints dirty.
func (b *builder) everything() {
	for _, c := range b.clusters {
		for n := range c.services {
			b.dirty.services.add(n)
			b.dirty.endpoints.add(n)
		}
	}
}

func (b *builder) mesh() {
	if !b.dirty.mesh {
		return
	}
	m := b.meshFacts()
	if b.next.Mesh != nil && equalMesh(b.next.Mesh, m) {
		b.dirty.gateways = true // meshNetworks may have changed alone
		b.everything()
		return
	}
	b.next.Mesh = m
	b.changes.Everywhere = true
	b.dirty.gateways = true
	b.everything()
}

func (b *builder) meshFacts() *snapshot.Mesh {
	local := b.cluster(b.cfg.Local)
	var mc *meshv1alpha1.MeshConfig
	if local.settings != nil {
		mc = local.settings.Mesh
	}
	m := &snapshot.Mesh{
		LocalCluster:   b.cfg.Local,
		TrustDomain:    trustDomain(b.cfg.TrustDomain, mc),
		Aliases:        slices.Sorted(slices.Values(mc.GetTrustDomainAliases())),
		Domain:         mesh.DefaultDomain,
		RootNamespace:  cmp.Or(mc.GetRootNamespace(), b.cfg.SystemNamespace),
		RegistryOnly:   mc.GetOutboundTrafficPolicy() != nil && mc.GetOutboundTrafficPolicy().GetMode() == meshv1alpha1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY,
		ConnectTimeout: 10 * time.Second,
		AutoMTLS:       mc.GetEnableAutoMtls() == nil || mc.GetEnableAutoMtls().GetValue(),
		KeyExchanges:   slices.Clone(mc.GetMeshMTLS().GetEcdhCurves()),
		Listeners: snapshot.ListenerSettings{
			AccessLogFile: mc.GetAccessLogFile(), AccessLogFormat: mc.GetAccessLogFormat(),
			AccessLogJSON:    mc.GetAccessLogEncoding() == meshv1alpha1.MeshConfig_JSON,
			Tracing:          mc == nil || mc.GetEnableTracing(),
			DetectionTimeout: mc.GetProtocolDetectionTimeout().AsDuration(),
		},
		Networks: make(map[mesh.ClusterID]mesh.NetworkID),
	}
	for _, c := range mc.GetCaCertificates() {
		m.CACertificates = append(m.CACertificates, snapshot.CACertificate{
			PEM: c.GetPem(), BundleURL: c.GetSpiffeBundleUrl(), TrustDomains: c.GetTrustDomains(),
		})
	}
	if d := mc.GetConnectTimeout(); d.AsDuration() > 0 {
		m.ConnectTimeout = d.AsDuration()
	}
	for id, c := range b.clusters {
		network := b.cfg.Network[id]
		if ns := c.namespaces[b.cfg.SystemNamespace]; ns != nil && ns.Labels[mesh.LabelNetwork] != "" {
			network = mesh.NetworkID(ns.Labels[mesh.LabelNetwork])
		}
		m.Networks[id] = network
	}
	return m
}

func trustDomain(flag string, mc *meshv1alpha1.MeshConfig) string {
	return cmp.Or(flag, mc.GetTrustDomain(), mesh.DefaultTrustDomain)
}

// trustDomainOf is the trust domain of the pods of a cluster.
func (b *builder) trustDomainOf(c *clusterState) string {
	if c.id == b.cfg.Local || c.settings == nil {
		return b.next.Mesh.TrustDomain
	}
	return trustDomain("", c.settings.Mesh)
}

func equalMesh(a, b *snapshot.Mesh) bool {
	x, y := *a, *b
	same := slices.Equal(x.Aliases, y.Aliases) && slices.Equal(x.KeyExchanges, y.KeyExchanges) && maps.Equal(x.Networks, y.Networks) &&
		slices.EqualFunc(x.CACertificates, y.CACertificates, func(a, b snapshot.CACertificate) bool {
			return a.PEM == b.PEM && a.BundleURL == b.BundleURL && slices.Equal(a.TrustDomains, b.TrustDomains)
		})
	return same && x.LocalCluster == y.LocalCluster && x.TrustDomain == y.TrustDomain &&
		x.Domain == y.Domain && x.RootNamespace == y.RootNamespace && x.RegistryOnly == y.RegistryOnly &&
		x.ConnectTimeout == y.ConnectTimeout && x.AutoMTLS == y.AutoMTLS &&
		x.Listeners == y.Listeners
}

// policies rebuilds the policies of the dirty namespaces and marks what reads
// PeerAuthentication: endpoints and services of the namespace, or all for the
// root one.
func (b *builder) policies() {
	if b.dirty.configs {
		configs := oldestFirst(b.state.gateways, nil)
		if !slices.EqualFunc(b.next.GatewayConfigs, configs, equalConfig) {
			b.changes.Everywhere = true
			b.next.GatewayConfigs = configs
		}
	}
	update := make(map[string]*snapshot.NamespaceFacts)
	for ns := range b.dirty.namespaces {
		old := cmp.Or(b.next.Namespaces.Get(ns), &snapshot.NamespaceFacts{})
		facts := &snapshot.NamespaceFacts{
			Name:         ns,
			Sidecars:     oldestFirst(b.sidecars, &ns),
			PeerAuth:     oldestFirst(b.peerAuth, &ns),
			EnvoyFilters: b.envoyFilters(ns),
			Services:     old.Services,
		}
		mtls := !slices.EqualFunc(old.PeerAuth, facts.PeerAuth, equalConfig)
		if !mtls && slices.EqualFunc(old.Sidecars, facts.Sidecars, equalConfig) && slices.EqualFunc(old.EnvoyFilters, facts.EnvoyFilters, equalFilter) {
			continue // the old facts keep their address
		}
		update[ns] = orNone(facts)
		b.changes.Namespaces[ns] = struct{}{}
		switch {
		case !mtls:
		case ns == b.next.Mesh.RootNamespace:
			b.everything()
		default:
			for _, c := range b.clusters {
				for n := range c.servicesIn[ns] {
					b.dirty.services.add(n)
					b.dirty.endpoints.add(n)
				}
			}
		}
	}
	b.next.Namespaces = b.next.Namespaces.With(update)
	if b.dirty.filters {
		b.tellClaims()
	}
}

// orNone returns nil for facts of a namespace that has nothing.
func orNone(f *snapshot.NamespaceFacts) *snapshot.NamespaceFacts {
	if len(f.Sidecars)+len(f.PeerAuth)+len(f.EnvoyFilters)+len(f.Services) == 0 {
		return nil
	}
	return f
}

// equalConfig and equalFilter compare objects but for the place where they were
// read.
func equalConfig[S snapshot.Spec](a, b *snapshot.Config[S]) bool {
	return equalMeta(&a.Meta, &b.Meta) && proto.Equal(a.Spec, b.Spec)
}

func equalFilter(a, b *snapshot.EnvoyFilter) bool {
	x := *a
	x.Meta = b.Meta
	return equalMeta(&a.Meta, &b.Meta) && reflect.DeepEqual(&x, b)
}

func equalMeta(a, b *snapshot.Meta) bool {
	return a.Namespace == b.Namespace && a.Name == b.Name && a.Created.Equal(b.Created) && maps.Equal(a.Labels, b.Labels)
}

// oldestFirst are the objects of one namespace, or of all when ns is nil, by
// creation time, then namespace and name.
func oldestFirst[S snapshot.Spec](all map[name]*snapshot.Config[S], ns *string) []*snapshot.Config[S] {
	var out []*snapshot.Config[S]
	for n, o := range all {
		if ns == nil || n.namespace == *ns {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(x, y *snapshot.Config[S]) int {
		return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return out
}

func (b *builder) services() {
	b.touchAliased()
	services := make(map[string]*snapshot.MeshService)
	ports := set[uint32]{}
	namespaces := set[string]{}
	b.sharers()
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

// service joins the services of one name, or returns nil when there is none.
func (b *builder) service(n name, host string) *snapshot.MeshService {
	var out *snapshot.MeshService
	for _, c := range b.ordered() {
		svc := c.services[n]
		if svc == nil {
			continue
		}
		if out == nil {
			root := b.next.Namespaces.Get(b.next.Mesh.RootNamespace)
			out = &snapshot.MeshService{
				Host: host, Name: n.name, Namespace: n.namespace, Created: svc.Created,
				Headless: svc.Headless, NodeLocal: svc.NodeLocal && !svc.Headless, ExternalName: svc.ExternalName, Ports: svc.Ports, ExportTo: svc.ExportTo,
				Accounts: b.backing[n].accounts,
				AllTLS:   b.backing[n].allTLS, AllDirectTLS: b.backing[n].allDirectTLS,
				Plaintext: snapshot.NamespaceMTLS(root, b.next.Namespaces.Get(n.namespace)) == snapshot.Disable,
			}
		}
		out.Clusters = append(out.Clusters, snapshot.ClusterService{
			Cluster: c.id, VIPs: svc.VIPs, Selector: svc.Selector, Ports: svc.Ports, ExportTo: svc.ExportTo,
		})
	}
	if out == nil {
		b.noteConflicts(n, nil)
		return nil
	}
	if out.ExternalName == "" {
		out.Aliases = b.aliasesOf(n)
	}
	slices.SortFunc(out.Clusters, func(x, y snapshot.ClusterService) int { return cmp.Compare(x.Cluster, y.Cluster) })
	out.Contested = b.contested(n, out)
	return out
}

// created is when a service was created, by the first cluster that has it.
func (b *builder) created(n name) time.Time {
	for _, c := range b.ordered() {
		if svc := c.services[n]; svc != nil {
			return svc.Created
		}
	}
	return time.Time{}
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

// portServices replaces, in the lists of the touched ports, the services that
// changed.
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

// kept are the services that did not change.
func kept(list []*snapshot.MeshService, changed map[string]*snapshot.MeshService) []*snapshot.MeshService {
	out := make([]*snapshot.MeshService, 0, len(list)+1)
	for _, svc := range list {
		if _, ok := changed[svc.Host]; !ok {
			out = append(out, svc)
		}
	}
	return out
}

// sortServices puts services in the order in which they win conflicts: oldest
// first, then by host name.
func sortServices(list []*snapshot.MeshService) {
	slices.SortFunc(list, func(x, y *snapshot.MeshService) int {
		return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Host, y.Host))
	})
}

func (b *builder) pods() {
	update := make(map[string]*snapshot.Pod, len(b.dirty.pods))
	for k := range b.dirty.pods {
		update[k.String()] = nil
		if c := b.clusters[k.Cluster]; c != nil {
			update[k.String()] = c.pods[name{k.Namespace, k.Name}]
		}
		b.changes.Pods[k.String()] = struct{}{}
	}
	for k := range b.dirty.entries {
		key := snapshot.WorkloadEntryKey(k.Cluster, k.Namespace, k.Name)
		update[key] = nil
		if c := b.clusters[k.Cluster]; c != nil {
			if w := c.entries[name{k.Namespace, k.Name}]; w != nil {
				update[key] = &w.Pod
			}
		}
		b.changes.Pods[key] = struct{}{}
	}
	b.next.Pods = b.next.Pods.With(update)
}

func (b *builder) trustBundle() {
	if old := b.next.TrustBundle; b.trust == nil || old != nil && slices.Equal(old.Roots, b.trust.Roots) {
		return
	}
	b.next.TrustBundle = b.trust
	b.changes.TrustBundle = true
}

func (b *builder) secrets() {
	update := make(map[string]*snapshot.Secret, len(b.dirty.secrets))
	for k := range b.dirty.secrets {
		key := snapshot.SecretKey(k.cluster, k.name.namespace, k.name.name)
		update[key] = nil
		if c := b.clusters[k.cluster]; c != nil {
			update[key] = c.secrets[k.name]
		}
		b.changes.Secrets[key] = struct{}{}
	}
	b.next.Secrets = b.next.Secrets.With(update)
}

func (b *builder) caConfigMaps() {
	update := make(map[string]*snapshot.ConfigMap, len(b.dirty.configMaps))
	for n := range b.dirty.configMaps {
		key := snapshot.ConfigMapKey(n.namespace, n.name)
		update[key] = b.configMaps[n]
		b.changes.Secrets[key] = struct{}{}
	}
	b.next.ConfigMaps = b.next.ConfigMaps.With(update)
}
