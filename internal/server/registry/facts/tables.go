// Package facts has the tables of the registry: the objects of all clusters, and the facts that pure
// functions derive from them. The goroutine of package registry owns the tables.
package facts

import (
	"cmp"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Config has what facts depend on beside objects.
type Config struct {
	// Local, Network, TrustDomain and SystemNamespace are those of the registry.
	Local           mesh.ClusterID
	Network         map[mesh.ClusterID]mesh.NetworkID
	TrustDomain     string
	SystemNamespace string
	// ResolvesHosts is set if the host names of gateways get addresses.
	ResolvesHosts bool
	Log           *slog.Logger
}

// Tables holds the objects of all clusters and the facts that are derived from them. A
// table reads only tables above it.
type Tables struct {
	Cfg       Config
	Graph     *derive.Graph
	Inputs    map[snapshot.Kind]inputTable
	Discovery discovery

	// Input.
	Clusters   derive.Input[mesh.ClusterID, struct{}]
	withPods   derive.Input[mesh.ClusterID, struct{}] // clusters that have had a pod
	balancing  derive.Input[mesh.ClusterID, snapshot.Balancing]
	Health     derive.Input[HealthReporter, snapshot.Condition]
	Hosts      derive.Input[string, []netip.Addr]       // resolved host names
	KeySets    derive.Input[snapshot.KeySource, string] // fetched
	KeptKeys   derive.Input[KeptKeys, string]           // of rules with a new source
	namespaces objects[*snapshot.Namespace]
	Nodes      objects[*snapshot.Node]
	Pods       objects[*snapshot.Pod]
	services   objects[*snapshot.Service]
	slices     objects[*snapshot.EndpointSlice]
	Entries    objects[*snapshot.WorkloadEntry]
	Secrets    objects[*snapshot.Secret]
	ConfigMaps objects[*snapshot.ConfigMap]
	kubeGW     objects[*snapshot.KubeGateway]
	exports    objects[*snapshot.ServiceExport]
	imports    objects[*snapshot.ServiceImport]
	settings   objects[*snapshot.MeshSettings]
	injectors  objects[*snapshot.InjectorSettings]
	gateways   objects[*snapshot.Gateway]
	filters    objects[*snapshot.EnvoyFilter]
	external   objects[*snapshot.ServiceEntry]
	Rules      objects[*snapshot.DestinationRule]
	virtual    objects[*snapshot.VirtualService]

	// Limits are the limits of namespaces. usedVirtual and others hold the objects within them.
	Limits []*namespaceLimit

	// Indexes of objects. An index by struct{} lists all of a kind.
	allClusters     *derive.Index[struct{}, mesh.ClusterID, struct{}]
	allInjectors    *derive.Index[struct{}, ObjectKey, *snapshot.InjectorSettings]
	allBalancing    *derive.Index[struct{}, mesh.ClusterID, snapshot.Balancing]
	settingsIn      *derive.Index[mesh.ClusterID, ObjectKey, *snapshot.MeshSettings]
	nodesIn         *derive.Index[mesh.ClusterID, ObjectKey, *snapshot.Node]  // with external addresses
	servicesOf      *derive.Index[string, ObjectKey, *snapshot.Service]       // by host
	servicesNamedBy *derive.Index[string, ObjectKey, *snapshot.Service]       // by name, in all namespaces
	importsOf       *derive.Index[string, ObjectKey, *snapshot.ServiceImport] // by host
	servicesAt      *derive.Index[netip.Addr, ObjectKey, *snapshot.Service]   // by cluster IP
	aliasesOf       *derive.Index[string, ObjectKey, *snapshot.Service]       // ExternalName services by the host they stand for
	labelled        *derive.Index[struct{}, ObjectKey, *snapshot.Service]     // services with a network label
	slicesOf        *derive.Index[ObjectKey, ObjectKey, *snapshot.EndpointSlice]
	podsAt          *derive.Index[clusterAddress, ObjectKey, *snapshot.Pod]
	entriesWith     *derive.Index[entryLabel, ObjectKey, *snapshot.WorkloadEntry]
	allKubeGW       *derive.Index[struct{}, ObjectKey, *snapshot.KubeGateway]
	allGateways     *derive.Index[struct{}, ObjectKey, *snapshot.Gateway]
	policyIndex     map[snapshot.Kind]*derive.Index[string, ObjectKey, snapshot.Policy] // by namespace
	// allTelemetries lists the Telemetries; the others list the objects of their kind.
	allTelemetries, allRequestAuthentications, allProxyConfigs, allAuthorizations *derive.Index[struct{}, ObjectKey, snapshot.Policy]
	RequestAuthentications                                                        objects[snapshot.Policy]

	filtersIn  *derive.Index[string, ObjectKey, *snapshot.EnvoyFilter]
	allFilters *derive.Index[struct{}, ObjectKey, *snapshot.EnvoyFilter]
	entriesOf  *derive.Index[string, ObjectKey, *snapshot.ServiceEntry]     // by keys of services
	EntriesAt  *derive.Index[netip.Addr, ObjectKey, *snapshot.ServiceEntry] // by address
	allocating *derive.Index[struct{}, ObjectKey, *snapshot.ServiceEntry]   // those whose hosts get addresses
	podsIn     *derive.Index[string, ObjectKey, *snapshot.Pod]              // of the local cluster, by namespace
	// workloadsIn finds WorkloadEntries by namespace.
	workloadsIn *derive.Index[string, ObjectKey, *snapshot.WorkloadEntry]
	rulesFor    *derive.Index[ruleKey, ObjectKey, *snapshot.DestinationRule]
	// selectingRules finds the DestinationRules with a workload selector by namespace.
	selectingRules *derive.Index[string, ObjectKey, *snapshot.DestinationRule]
	rulesUsing     *derive.Index[ruleUse, ObjectKey, *snapshot.DestinationRule]

	// Facts.
	MeshSettings  *derive.Value[*snapshot.MeshSettings]
	Injection     *derive.Value[Injection]
	defaultPolicy *derive.Value[*networkingv1alpha3.TrafficPolicy]
	networkRules  *derive.Value[networkRules]
	Networks      *derive.Table[mesh.ClusterID, mesh.NetworkID]
	allNetworks   *derive.Index[struct{}, mesh.ClusterID, mesh.NetworkID]
	Mesh          *derive.Value[*snapshot.Mesh]
	trustDomains  *derive.Table[mesh.ClusterID, []string] // of the pods of a cluster
	rootNamespace *derive.Value[string]
	localHosts    *derive.Value[[]localRule]
	// exportDefaults holds the visibility of services without an annotation.
	exportDefaults  *derive.Table[mesh.ClusterID, []string]
	entryVisibility *derive.Value[*meshv1alpha1.ServiceEntryVisibility] // of the mesh, or nil
	shares          *derive.Table[mesh.ClusterID, share]
	distributions   *derive.Table[ObjectKey, snapshot.Distribution] // of namespaces
	policies        *derive.Table[string, *snapshot.NamespaceFacts] // only PeerAuth
	Found           *derive.Value[*foundGateways]
	MeshGateways    *derive.Value[*snapshot.Gateways]
	Configs         *derive.Value[[]*snapshot.Gateway]
	allocation      *derive.Value[map[string][]netip.Addr] // by host
	allocated       *derive.Table[string, []netip.Addr]    // by keys of services
	Unwritten       *derive.Value[[]UnwrittenAddresses]
	contended       *derive.Table[string, HostConflict] // by host
	allContended    *derive.Index[struct{}, string, HostConflict]
	HostConflicts   *derive.Value[[]HostConflict]
	Joins           *derive.Table[string, *hostEndpoints]             // by keys of services
	headlessAt      *derive.Index[netip.Addr, string, *hostEndpoints] // headless Services by the addresses of their pods
	backends        *derive.Table[string, backends]                   // by keys of services
	backendsIn      *derive.Index[mesh.NetworkID, string, backends]
	usedNetworks    *derive.Table[mesh.NetworkID, struct{}]
	allUsed         *derive.Index[struct{}, mesh.NetworkID, struct{}]
	Unreachable     *derive.Value[[]UnreachableNetwork]
	vipUsers        *derive.Table[netip.Addr, map[mesh.ClusterID]string] // hosts; only of shared addresses
	MeshServices    *derive.Table[string, *snapshot.MeshService]         // by MeshService.Key
	servicesIn      *derive.Index[string, string, *snapshot.MeshService] // by namespace
	servicesOn      *derive.Index[uint32, string, *snapshot.MeshService] // by port
	special         *derive.Index[serviceTrait, string, *snapshot.MeshService]
	hashedIn        *derive.Index[string, string, *snapshot.MeshService] // by namespaces in HashedIn
	Ports           *derive.Table[uint32, *snapshot.PortServices]
	Traits          *derive.Value[traits]
	Conflicts       *derive.Value[[]AddressConflict]
	MergedRules     *derive.Table[ruleKey, []hostRule]
	CutRules        *derive.Index[struct{}, ruleKey, []hostRule] // with more subsets than are used
	ruleGroups      *derive.Index[string, ruleKey, []hostRule]   // by host
	HostRules       *derive.Table[string, *snapshot.HostRules]   // by MeshService.Key
	// usedRules holds the hostRules within the limits of namespaces. The tables before decide what
	// is beyond.
	subsetClusters *derive.Table[string, map[string]int] // by namespaces of rules
	subsetsBy      *derive.Index[string, string, map[string]int]
	BeyondSubsets  *derive.Table[string, []string] // by namespace
	UsedRules      *derive.Table[string, *snapshot.HostRules]
	ruledHosts     *derive.Index[string, string, *snapshot.HostRules]   // by namespaces of clients
	tunnelled      *derive.Index[struct{}, string, *snapshot.HostRules] // services whose rules have tunnels
	ruleScopes     *derive.Table[string, *snapshot.RuleScope]           // by namespace
	RuleTraits     *derive.Value[snapshot.RuleTraits]

	destinations *derive.Table[string, destination] // by host
	// portsOfHosts holds the ports of the services of a VirtualService's hosts that route requests.
	portsOfHosts *derive.Table[ObjectKey, []uint32]
	// destinationsBelow finds destinations by the wildcards that match their hosts.
	destinationsBelow *derive.Index[string, string, destination]
	// usedVirtual holds the VirtualServices within the limits of their namespaces.
	usedVirtual  *derive.Table[ObjectKey, *snapshot.VirtualService]
	routed       *derive.Table[ObjectKey, routedService]
	allRouted    *derive.Index[struct{}, ObjectKey, routedService]
	routedTo     *derive.Index[string, ObjectKey, routedService] // by host, and a part of a wildcard by its whole labels
	streamsBelow *derive.Index[string, ObjectKey, routedService] // with TLS or TCP, by wildcards that match a host
	Eldest       *derive.Table[string, eldestServices]
	Crowded      *derive.Index[struct{}, string, eldestServices]
	// wildcardServices holds the services for all names of a domain.
	wildcardServices *derive.Index[string, string, destination]
	expanded         *derive.Table[string, []string]             // hosts of services by wildcard
	expandedTo       *derive.Index[string, string, []string]     // by host of a service
	HostRoutes       *derive.Table[string, *snapshot.HostRoutes] // by host
	routesAt         *derive.Index[uint32, string, *snapshot.HostRoutes]
	PortRoutes       *derive.Table[uint32, *snapshot.PortRoutes]
	routedHosts      *derive.Index[string, string, *snapshot.HostRoutes] // by namespaces of clients
	routeScopes      *derive.Table[string, *snapshot.RouteScope]         // by namespace
	RouteClients     *derive.Value[*snapshot.ClientMatches]
	referrersOf      *derive.Index[string, ObjectKey, routedService] // by host of a destination
	Referrers        *derive.Table[string, *snapshot.Referrers]      // by host of a destination
	RouteProblems    *derive.Value[[]RouteProblem]
	routedBy         *derive.Index[string, ObjectKey, routedService] // by the names of Gateways
	GatewayRoutes    *derive.Table[string, *snapshot.ClientRoutes]   // by the names of Gateways

	Facts      *derive.Table[string, *snapshot.NamespaceFacts] // by namespace
	Duplicates *derive.Value[[]DuplicateExtension]
	// ServerConflicts holds the conflicts between servers of Gateways.
	ServerConflicts  *derive.Value[[]ServerConflict]
	UnknownProviders *derive.Value[[]UnknownProvider]
	Wanted           *derive.Value[[]snapshot.WantedKeys]
}

// New returns the tables without objects.
func New(cfg Config) *Tables {
	t := &Tables{Cfg: cfg, Graph: derive.NewGraph(), Inputs: make(map[snapshot.Kind]inputTable)}
	t.addInputs()
	t.addIndexes()
	g := t.Graph

	t.defaultPolicy = derive.Single(g, "default traffic policy", equalPolicy, t.defaultTrafficPolicy)
	t.networkRules = derive.Single(g, "meshNetworks", networkRules.equal, t.meshNetworks)
	t.Networks = derive.New(g, "networks", compareIDs, same, t.clusterNetwork, t.Clusters)
	t.allNetworks = list(t.Networks)
	t.Injection = derive.Single(g, "injection", Injection.Equal, t.findInjection)
	t.Mesh = derive.Single(g, "mesh", equalMesh, t.meshFacts)
	t.trustDomains = derive.New(g, "trust domains", compareIDs, slices.Equal[[]string], t.clusterTrustDomains, t.Clusters)
	t.rootNamespace = derive.Single(g, "root namespace", same, func(r *derive.Reads) string { return t.Mesh.Get(r).RootNamespace })
	t.localHosts = derive.Single(g, "cluster-local hosts", slices.Equal[[]localRule], t.localRules)
	t.exportDefaults = derive.New(g, "export defaults", compareIDs, slices.Equal[[]string], t.exportDefault, t.Clusters)
	t.entryVisibility = derive.Single(g, "visibility of service entries", equalVisibility, func(r *derive.Reads) *meshv1alpha1.ServiceEntryVisibility {
		return meshConfig(t.MeshSettings.Get(r)).GetServiceEntryVisibility()
	})
	t.distributions = derive.New(g, "distributions of namespaces", ObjectKey.Compare, same, func(r *derive.Reads, key ObjectKey) (snapshot.Distribution, bool) {
		ns, ok := t.namespaces.Get(r, key)
		return ns.Distribution, ok && ns.Distribution != snapshot.NoDistribution
	}, t.namespaces.Table)
	t.shares = derive.New(g, "shares", compareIDs, same, t.clusterShare, t.Clusters)

	t.policies = derive.New(g, "policies", strings.Compare, equalFacts, t.namespacePolicies, t.policyIndex[snapshot.KindPeerAuthentication])
	t.Found = derive.Single(g, "found gateways", (*foundGateways).equal, t.findGateways)
	t.MeshGateways = derive.Single(g, "gateways", equalGateways, func(r *derive.Reads) *snapshot.Gateways {
		return &snapshot.Gateways{ByNetwork: t.Found.Get(r).usable}
	})

	t.allocation = derive.Single(g, "allocation", equalAllocation, t.allocate)
	t.allocated = derive.New(g, "allocated addresses", strings.Compare, slices.Equal[[]netip.Addr], func(r *derive.Reads, host string) ([]netip.Addr, bool) {
		ips := t.allocation.Get(r)[host]
		return ips, len(ips) > 0
	}, t.entriesOf)
	t.Unwritten = derive.Single(g, "unwritten addresses", func(a, b []UnwrittenAddresses) bool { return slices.EqualFunc(a, b, UnwrittenAddresses.equal) }, t.findUnwritten)
	t.contended = derive.New(g, "contended hosts", strings.Compare, HostConflict.Equal, t.hostConflict, t.entriesOf)
	t.allContended = list(t.contended)
	t.HostConflicts = derive.Single(g, "host conflicts", func(a, b []HostConflict) bool { return slices.EqualFunc(a, b, HostConflict.Equal) },
		func(r *derive.Reads) []HostConflict { return values(t.allContended.Lookup(r, struct{}{})) })

	t.Joins = derive.New(g, "endpoints", strings.Compare, (*hostEndpoints).equal, t.join, t.servicesOf, t.entriesOf, t.importsOf)
	t.headlessAt = derive.NewIndex(t.Joins, func(into []netip.Addr, _ string, h *hostEndpoints) []netip.Addr { return append(into, h.pods...) })
	t.backends = derive.New(g, "backends", strings.Compare, backends.equal, func(r *derive.Reads, host string) (backends, bool) {
		j, ok := t.Joins.Get(r, host)
		if !ok {
			return backends{}, false
		}
		return j.Backends, true
	}, t.Joins)
	t.backendsIn = derive.NewIndex(t.backends, func(into []mesh.NetworkID, _ string, b backends) []mesh.NetworkID { return append(into, b.networks...) })
	t.usedNetworks = derive.New(g, "used networks", compareIDs, same, func(*derive.Reads, mesh.NetworkID) (struct{}, bool) { return struct{}{}, true }, t.backendsIn)
	t.allUsed = list(t.usedNetworks)
	t.Unreachable = derive.Single(g, "unreachable networks", slices.Equal[[]UnreachableNetwork], t.findUnreachable)

	t.addRules()
	t.addServices()
	t.addUsedRules()
	t.ruleScopes = derive.New(g, "namespaces with own rules", strings.Compare, equalScope, t.ruleScope, t.ruledHosts)
	t.RuleTraits = derive.Single(g, "rule traits", same, t.findRuleTraits)
	t.addRoutes()
	t.addGateways()

	namespaces := []derive.Keys[string]{t.servicesIn, t.filtersIn, t.ruleScopes, t.routeScopes}
	for _, x := range t.policyIndex {
		namespaces = append(namespaces, x)
	}
	t.Facts = derive.New(g, "namespaces", strings.Compare, equalFacts, t.namespaceFacts, namespaces...)
	t.Wanted = derive.Single(g, "wanted key sets", slices.Equal[[]snapshot.WantedKeys], t.wantedKeys)
	t.Duplicates = derive.Single(g, "duplicate extensions", slices.Equal[[]DuplicateExtension], t.findDuplicateExtensions)
	t.UnknownProviders = derive.Single(g, "unknown providers", slices.Equal[[]UnknownProvider], t.findUnknownProviders)
	return t
}

func (t *Tables) addInputs() {
	t.Clusters = derive.NewInput(t.Graph, "clusters", compareIDs[mesh.ClusterID], same[struct{}])
	t.withPods = derive.NewInput(t.Graph, "clusters with pods", compareIDs[mesh.ClusterID], same[struct{}])
	t.balancing = derive.NewInput(t.Graph, "balancing", compareIDs[mesh.ClusterID], same[snapshot.Balancing])
	t.Health = derive.NewInput(t.Graph, "health", HealthReporter.compare, same[snapshot.Condition])
	t.Hosts = derive.NewInput(t.Graph, "resolved hosts", strings.Compare, slices.Equal[[]netip.Addr])
	t.KeySets = derive.NewInput(t.Graph, "key sets", snapshot.KeySource.Compare, same[string])
	t.KeptKeys = derive.NewInput(t.Graph, "kept keys", KeptKeys.compare, same[string])
	t.namespaces = input(t, snapshot.KindNamespace, equalObject[*snapshot.Namespace])
	t.Nodes = input(t, snapshot.KindNode, func(a, b *snapshot.Node) bool {
		return a.Locality == b.Locality && slices.Equal(a.External, b.External) && (len(a.External) == 0 || maps.Equal(a.Labels, b.Labels))
	})
	t.Pods = input(t, snapshot.KindPod, equalObject[*snapshot.Pod])
	t.services = input(t, snapshot.KindService, equalObject[*snapshot.Service])
	t.slices = input(t, snapshot.KindEndpointSlice, equalObject[*snapshot.EndpointSlice])
	t.Entries = input(t, snapshot.KindWorkloadEntry, equalObject[*snapshot.WorkloadEntry])
	t.Secrets = input(t, snapshot.KindSecret, equalObject[*snapshot.Secret])
	t.kubeGW = input(t, snapshot.KindKubeGateway, equalObject[*snapshot.KubeGateway])
	t.exports = input(t, snapshot.KindServiceExport, equalObject[*snapshot.ServiceExport])
	t.imports = input(t, snapshot.KindServiceImport, equalObject[*snapshot.ServiceImport])
	t.settings = input(t, snapshot.KindMeshSettings, equalSettings)
	input(t, snapshot.KindReplicaSet, equalObject[*snapshot.CreationFailure])
	input(t, snapshot.KindEvent, equalObject[*snapshot.CreationFailure])
	input(t, snapshot.KindInjector, equalObject[*snapshot.Injector])
	t.injectors = localInput(t, snapshot.KindInjectorSettings, equalObject[*snapshot.InjectorSettings])
	t.ConfigMaps = localInput(t, snapshot.KindConfigMap, equalObject[*snapshot.ConfigMap])
	t.gateways = localInput(t, snapshot.KindGateway, equalConfig[*networkingv1alpha3.Gateway])
	t.Rules = localInput(t, snapshot.KindDestinationRule, equalConfig[*networkingv1alpha3.DestinationRule])
	t.virtual = localInput(t, snapshot.KindVirtualService, (*snapshot.VirtualService).SameAs)
	t.filters = localInput(t, snapshot.KindEnvoyFilter, equalFilter)
	t.external = localInput(t, snapshot.KindServiceEntry, equalServiceEntry)
}

func (t *Tables) addIndexes() {
	t.allClusters = list(t.Clusters.Table)
	t.allInjectors = list(t.injectors.Table)
	t.allBalancing = list(t.balancing.Table)
	t.settingsIn = derive.NewIndex(t.settings.Table, func(into []mesh.ClusterID, k ObjectKey, _ *snapshot.MeshSettings) []mesh.ClusterID {
		return append(into, k.Cluster)
	})
	t.MeshSettings = derive.Single(t.Graph, "settings", same, func(r *derive.Reads) *snapshot.MeshSettings { return t.settingsOf(r, t.Cfg.Local) })
	t.podsIn = derive.NewIndex(t.Pods.Table, t.podNamespaces)
	t.workloadsIn = byNamespace(t.Entries.Table)
	t.nodesIn = derive.NewIndex(t.Nodes.Table, func(into []mesh.ClusterID, k ObjectKey, n *snapshot.Node) []mesh.ClusterID {
		if len(n.External) > 0 {
			into = append(into, k.Cluster)
		}
		return into
	})
	t.servicesOf = derive.NewIndex(t.services.Table, func(into []string, k ObjectKey, _ *snapshot.Service) []string {
		return append(into, mesh.ServiceHost(k.Name, k.Namespace, mesh.DefaultDomain))
	})
	t.servicesNamedBy = derive.NewIndex(t.services.Table, func(into []string, k ObjectKey, _ *snapshot.Service) []string { return append(into, k.Name) })
	t.importsOf = derive.NewIndex(t.imports.Table, func(into []string, _ ObjectKey, i *snapshot.ServiceImport) []string {
		return append(into, i.Host())
	})
	t.servicesAt = derive.NewIndex(t.services.Table, func(into []netip.Addr, _ ObjectKey, s *snapshot.Service) []netip.Addr {
		return append(into, s.VIPs...)
	})
	t.aliasesOf = derive.NewIndex(t.services.Table, func(into []string, _ ObjectKey, s *snapshot.Service) []string {
		if target := aliasTarget(s); target != "" {
			into = append(into, target)
		}
		return into
	})
	t.labelled = derive.NewIndex(t.services.Table, func(into []struct{}, _ ObjectKey, s *snapshot.Service) []struct{} {
		if s.Labels[mesh.LabelNetwork] != "" {
			into = append(into, struct{}{})
		}
		return into
	})
	t.slicesOf = derive.NewIndex(t.slices.Table, func(into []ObjectKey, k ObjectKey, s *snapshot.EndpointSlice) []ObjectKey {
		return append(into, ObjectKey{k.Cluster, k.Namespace, s.Service})
	})
	t.podsAt = derive.NewIndex(t.Pods.Table, podAddresses)
	t.entriesWith = derive.NewIndex(t.Entries.Table, entryLabels)
	t.allKubeGW = list(t.kubeGW.Table)
	t.allGateways = list(t.limitedGateways())
	t.addPolicyIndexes()
	t.filtersIn = byNamespace(t.filters.Table)
	t.allFilters = list(t.filters.Table)
	entries := t.limitedEntries()
	t.entriesOf = derive.NewIndex(entries, serviceKeys)
	t.EntriesAt = derive.NewIndex(entries, func(into []netip.Addr, _ ObjectKey, e *snapshot.ServiceEntry) []netip.Addr {
		return append(into, e.VIPs...)
	})
	t.allocating = derive.NewIndex(entries, func(into []struct{}, _ ObjectKey, e *snapshot.ServiceEntry) []struct{} {
		if e.Allocate {
			into = append(into, struct{}{})
		}
		return into
	})
	t.rulesFor = derive.NewIndex(t.Rules.Table, func(into []ruleKey, k ObjectKey, d *snapshot.DestinationRule) []ruleKey {
		return append(into, ruleKey{k.Namespace, snapshot.RuledHost(d)})
	})
	t.selectingRules = derive.NewIndex(t.Rules.Table, func(into []string, k ObjectKey, d *snapshot.DestinationRule) []string {
		if d.Spec.GetWorkloadSelector() != nil {
			into = append(into, k.Namespace)
		}
		return into
	})
	t.rulesUsing = derive.NewIndex(t.Rules.Table, ruleUses)
}

func (t *Tables) addPolicyIndexes() {
	t.policyIndex = make(map[snapshot.Kind]*derive.Index[string, ObjectKey, snapshot.Policy])
	for _, kind := range snapshot.PolicyKinds {
		input := localInput(t, kind, snapshot.Policy.SameAs)
		policies := t.limitedPolicies(kind, input.Table)
		t.policyIndex[kind] = byNamespace(policies)
		switch kind {
		case snapshot.KindTelemetry:
			t.allTelemetries = list(policies)
		case snapshot.KindRequestAuthentication:
			t.RequestAuthentications, t.allRequestAuthentications = input, list(policies)
		case snapshot.KindProxyConfig:
			t.allProxyConfigs = list(policies)
		case snapshot.KindAuthorizationPolicy:
			t.allAuthorizations = list(policies)
		}
	}
}

// list returns an index with all entries of a table.
func list[K comparable, V any](t *derive.Table[K, V]) *derive.Index[struct{}, K, V] {
	return derive.NewIndex(t, func(into []struct{}, _ K, _ V) []struct{} { return append(into, struct{}{}) })
}

func byNamespace[O snapshot.Object](t *derive.Table[ObjectKey, O]) *derive.Index[string, ObjectKey, O] {
	return derive.NewIndex(t, func(into []string, k ObjectKey, _ O) []string { return append(into, k.Namespace) })
}

func same[V comparable](a, b V) bool { return a == b }

func compareIDs[ID ~string](a, b ID) int { return cmp.Compare(a, b) }

// Remove removes a cluster and its objects.
func (t *Tables) Remove(id mesh.ClusterID) {
	for _, k := range t.Keys(id) {
		t.enter(snapshot.Event{Key: k})
	}
	maps.DeleteFunc(t.Discovery.Held, func(at clusterNamespace, _ map[snapshot.Key]snapshot.Event) bool { return at.cluster == id })
	t.Clusters.Delete(id)
	t.withPods.Delete(id)
}

// Keys returns the keys of all objects of a cluster.
func (t *Tables) Keys(id mesh.ClusterID) []snapshot.Key {
	var out []snapshot.Key
	for _, input := range t.Inputs {
		for e := range input.Events {
			if e.Key.Cluster == id {
				out = append(out, e.Key)
			}
		}
	}
	for at, held := range t.Discovery.Held {
		if at.cluster == id {
			out = slices.AppendSeq(out, maps.Keys(held))
		}
	}
	return out
}

// enter sets the object of an event in its table, or removes it.
func (t *Tables) enter(e snapshot.Event) {
	if input := t.Inputs[e.Key.Kind]; input != nil {
		input.apply(e)
	}
	if e.Key.Kind == snapshot.KindPod && e.Object != nil {
		t.withPods.Set(e.Key.Cluster, struct{}{})
	}
}

func keys[K, V any](seq iter.Seq2[K, V]) (out []K) {
	for k := range seq {
		out = append(out, k)
	}
	return out
}

func values[K, V any](seq iter.Seq2[K, V]) (out []V) {
	for _, v := range seq {
		out = append(out, v)
	}
	return out
}
