package registry

import (
	"cmp"
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

// tables holds the objects of all clusters and the facts that are derived from them. A
// table reads only tables above it.
type tables struct {
	cfg       Config
	graph     *derive.Graph
	inputs    map[snapshot.Kind]inputTable
	discovery discovery

	// Input.
	clusters   derive.Input[mesh.ClusterID, struct{}]
	withPods   derive.Input[mesh.ClusterID, struct{}] // clusters that have had a pod
	balancing  derive.Input[mesh.ClusterID, snapshot.Balancing]
	health     derive.Input[healthReporter, snapshot.Condition]
	hosts      derive.Input[string, []netip.Addr]       // resolved host names
	keySets    derive.Input[snapshot.KeySource, string] // fetched
	keptKeys   derive.Input[keptKeys, string]           // of rules with a new source
	namespaces objects[*snapshot.Namespace]
	nodes      objects[*snapshot.Node]
	pods       objects[*snapshot.Pod]
	services   objects[*snapshot.Service]
	slices     objects[*snapshot.EndpointSlice]
	entries    objects[*snapshot.WorkloadEntry]
	secrets    objects[*snapshot.Secret]
	configMaps objects[*snapshot.ConfigMap]
	kubeGW     objects[*snapshot.KubeGateway]
	exports    objects[*snapshot.ServiceExport]
	imports    objects[*snapshot.ServiceImport]
	settings   objects[*snapshot.MeshSettings]
	injectors  objects[*snapshot.InjectorSettings]
	gateways   objects[*snapshot.Gateway]
	filters    objects[*snapshot.EnvoyFilter]
	external   objects[*snapshot.ServiceEntry]
	rules      objects[*snapshot.DestinationRule]
	virtual    objects[*snapshot.VirtualService]

	// limits are the limits of namespaces. usedVirtual and others hold the objects within them.
	limits []*namespaceLimit

	// Indexes of objects. An index by struct{} lists all of a kind.
	allClusters     *derive.Index[struct{}, mesh.ClusterID, struct{}]
	allInjectors    *derive.Index[struct{}, objectKey, *snapshot.InjectorSettings]
	allBalancing    *derive.Index[struct{}, mesh.ClusterID, snapshot.Balancing]
	settingsIn      *derive.Index[mesh.ClusterID, objectKey, *snapshot.MeshSettings]
	nodesIn         *derive.Index[mesh.ClusterID, objectKey, *snapshot.Node]  // with external addresses
	servicesOf      *derive.Index[string, objectKey, *snapshot.Service]       // by host
	servicesNamedBy *derive.Index[string, objectKey, *snapshot.Service]       // by name, in all namespaces
	importsOf       *derive.Index[string, objectKey, *snapshot.ServiceImport] // by host
	servicesAt      *derive.Index[netip.Addr, objectKey, *snapshot.Service]   // by cluster IP
	aliasesOf       *derive.Index[string, objectKey, *snapshot.Service]       // ExternalName services by the host they stand for
	labelled        *derive.Index[struct{}, objectKey, *snapshot.Service]     // services with a network label
	slicesOf        *derive.Index[objectKey, objectKey, *snapshot.EndpointSlice]
	podsAt          *derive.Index[clusterAddress, objectKey, *snapshot.Pod]
	entriesWith     *derive.Index[entryLabel, objectKey, *snapshot.WorkloadEntry]
	allKubeGW       *derive.Index[struct{}, objectKey, *snapshot.KubeGateway]
	allGateways     *derive.Index[struct{}, objectKey, *snapshot.Gateway]
	policyIndex     map[snapshot.Kind]*derive.Index[string, objectKey, snapshot.Policy] // by namespace
	// allTelemetries lists the Telemetries; the others list the objects of their kind.
	allTelemetries, allRequestAuthentications, allProxyConfigs, allAuthorizations *derive.Index[struct{}, objectKey, snapshot.Policy]
	requestAuthentications                                                        objects[snapshot.Policy]

	filtersIn  *derive.Index[string, objectKey, *snapshot.EnvoyFilter]
	allFilters *derive.Index[struct{}, objectKey, *snapshot.EnvoyFilter]
	entriesOf  *derive.Index[string, objectKey, *snapshot.ServiceEntry]     // by keys of services
	entriesAt  *derive.Index[netip.Addr, objectKey, *snapshot.ServiceEntry] // by address
	allocating *derive.Index[struct{}, objectKey, *snapshot.ServiceEntry]   // those whose hosts get addresses
	podsIn     *derive.Index[string, objectKey, *snapshot.Pod]              // of the local cluster, by namespace
	// workloadsIn finds WorkloadEntries by namespace.
	workloadsIn *derive.Index[string, objectKey, *snapshot.WorkloadEntry]
	rulesFor    *derive.Index[ruleKey, objectKey, *snapshot.DestinationRule]
	// selectingRules finds the DestinationRules with a workload selector by namespace.
	selectingRules *derive.Index[string, objectKey, *snapshot.DestinationRule]
	rulesUsing     *derive.Index[ruleUse, objectKey, *snapshot.DestinationRule]

	// Facts.
	meshSettings  *derive.Value[*snapshot.MeshSettings]
	injection     *derive.Value[Injection]
	defaultPolicy *derive.Value[*networkingv1alpha3.TrafficPolicy]
	networkRules  *derive.Value[networkRules]
	networks      *derive.Table[mesh.ClusterID, mesh.NetworkID]
	allNetworks   *derive.Index[struct{}, mesh.ClusterID, mesh.NetworkID]
	mesh          *derive.Value[*snapshot.Mesh]
	trustDomains  *derive.Table[mesh.ClusterID, []string] // of the pods of a cluster
	rootNamespace *derive.Value[string]
	localHosts    *derive.Value[[]localRule]
	// exportDefaults holds the visibility of services without an annotation.
	exportDefaults  *derive.Table[mesh.ClusterID, []string]
	entryVisibility *derive.Value[*meshv1alpha1.ServiceEntryVisibility] // of the mesh, or nil
	shares          *derive.Table[mesh.ClusterID, share]
	distributions   *derive.Table[objectKey, snapshot.Distribution] // of namespaces
	policies        *derive.Table[string, *snapshot.NamespaceFacts] // only PeerAuth
	found           *derive.Value[*foundGateways]
	meshGateways    *derive.Value[*snapshot.Gateways]
	configs         *derive.Value[[]*snapshot.Gateway]
	allocation      *derive.Value[map[string][]netip.Addr] // by host
	allocated       *derive.Table[string, []netip.Addr]    // by keys of services
	unwritten       *derive.Value[[]UnwrittenAddresses]
	contended       *derive.Table[string, HostConflict] // by host
	allContended    *derive.Index[struct{}, string, HostConflict]
	hostConflicts   *derive.Value[[]HostConflict]
	joins           *derive.Table[string, *hostEndpoints]             // by keys of services
	headlessAt      *derive.Index[netip.Addr, string, *hostEndpoints] // headless Services by the addresses of their pods
	backends        *derive.Table[string, backends]                   // by keys of services
	backendsIn      *derive.Index[mesh.NetworkID, string, backends]
	usedNetworks    *derive.Table[mesh.NetworkID, struct{}]
	allUsed         *derive.Index[struct{}, mesh.NetworkID, struct{}]
	unreachable     *derive.Value[[]UnreachableNetwork]
	vipUsers        *derive.Table[netip.Addr, map[mesh.ClusterID]string] // hosts; only of shared addresses
	meshServices    *derive.Table[string, *snapshot.MeshService]         // by MeshService.Key
	servicesIn      *derive.Index[string, string, *snapshot.MeshService] // by namespace
	servicesOn      *derive.Index[uint32, string, *snapshot.MeshService] // by port
	special         *derive.Index[serviceTrait, string, *snapshot.MeshService]
	hashedIn        *derive.Index[string, string, *snapshot.MeshService] // by namespaces in HashedIn
	ports           *derive.Table[uint32, *snapshot.PortServices]
	traits          *derive.Value[traits]
	conflicts       *derive.Value[[]AddressConflict]
	mergedRules     *derive.Table[ruleKey, []hostRule]
	cutRules        *derive.Index[struct{}, ruleKey, []hostRule] // with more subsets than are used
	ruleGroups      *derive.Index[string, ruleKey, []hostRule]   // by host
	hostRules       *derive.Table[string, *snapshot.HostRules]   // by MeshService.Key
	// usedRules holds the hostRules within the limits of namespaces. The tables before decide what
	// is beyond.
	subsetClusters *derive.Table[string, map[string]int] // by namespaces of rules
	subsetsBy      *derive.Index[string, string, map[string]int]
	beyondSubsets  *derive.Table[string, []string] // by namespace
	usedRules      *derive.Table[string, *snapshot.HostRules]
	ruledHosts     *derive.Index[string, string, *snapshot.HostRules]   // by namespaces of clients
	tunnelled      *derive.Index[struct{}, string, *snapshot.HostRules] // services whose rules have tunnels
	ruleScopes     *derive.Table[string, *snapshot.RuleScope]           // by namespace
	ruleTraits     *derive.Value[snapshot.RuleTraits]

	destinations *derive.Table[string, destination] // by host
	// portsOfHosts holds the ports of the services of a VirtualService's hosts that route requests.
	portsOfHosts *derive.Table[objectKey, []uint32]
	// destinationsBelow finds destinations by the wildcards that match their hosts.
	destinationsBelow *derive.Index[string, string, destination]
	// usedVirtual holds the VirtualServices within the limits of their namespaces.
	usedVirtual  *derive.Table[objectKey, *snapshot.VirtualService]
	routed       *derive.Table[objectKey, routedService]
	allRouted    *derive.Index[struct{}, objectKey, routedService]
	routedTo     *derive.Index[string, objectKey, routedService] // by host, and a part of a wildcard by its whole labels
	streamsBelow *derive.Index[string, objectKey, routedService] // with TLS or TCP, by wildcards that match a host
	eldest       *derive.Table[string, eldestServices]
	crowded      *derive.Index[struct{}, string, eldestServices]
	// wildcardServices holds the services for all names of a domain.
	wildcardServices *derive.Index[string, string, destination]
	expanded         *derive.Table[string, []string]             // hosts of services by wildcard
	expandedTo       *derive.Index[string, string, []string]     // by host of a service
	hostRoutes       *derive.Table[string, *snapshot.HostRoutes] // by host
	routesAt         *derive.Index[uint32, string, *snapshot.HostRoutes]
	portRoutes       *derive.Table[uint32, *snapshot.PortRoutes]
	routedHosts      *derive.Index[string, string, *snapshot.HostRoutes] // by namespaces of clients
	routeScopes      *derive.Table[string, *snapshot.RouteScope]         // by namespace
	routeClients     *derive.Value[*snapshot.ClientMatches]
	referrersOf      *derive.Index[string, objectKey, routedService] // by host of a destination
	referrers        *derive.Table[string, *snapshot.Referrers]      // by host of a destination
	routeProblems    *derive.Value[[]RouteProblem]
	routedBy         *derive.Index[string, objectKey, routedService] // by the names of Gateways
	gatewayRoutes    *derive.Table[string, *snapshot.ClientRoutes]   // by the names of Gateways

	facts      *derive.Table[string, *snapshot.NamespaceFacts] // by namespace
	duplicates *derive.Value[[]duplicateExtension]
	// serverConflicts holds the conflicts between servers of Gateways.
	serverConflicts  *derive.Value[[]serverConflict]
	unknownProviders *derive.Value[[]unknownProvider]
	wanted           *derive.Value[[]snapshot.WantedKeys]
}

// newTables returns the tables without objects.
func newTables(cfg Config) *tables {
	t := &tables{cfg: cfg, graph: derive.NewGraph(), inputs: make(map[snapshot.Kind]inputTable)}
	t.addInputs()
	t.addIndexes()
	g := t.graph

	t.defaultPolicy = derive.Single(g, "default traffic policy", equalPolicy, t.defaultTrafficPolicy)
	t.networkRules = derive.Single(g, "meshNetworks", networkRules.equal, t.meshNetworks)
	t.networks = derive.New(g, "networks", compareIDs, same, t.clusterNetwork, t.clusters)
	t.allNetworks = list(t.networks)
	t.injection = derive.Single(g, "injection", Injection.Equal, t.findInjection)
	t.mesh = derive.Single(g, "mesh", equalMesh, t.meshFacts)
	t.trustDomains = derive.New(g, "trust domains", compareIDs, slices.Equal[[]string], t.clusterTrustDomains, t.clusters)
	t.rootNamespace = derive.Single(g, "root namespace", same, func(r *derive.Reads) string { return t.mesh.Get(r).RootNamespace })
	t.localHosts = derive.Single(g, "cluster-local hosts", slices.Equal[[]localRule], t.localRules)
	t.exportDefaults = derive.New(g, "export defaults", compareIDs, slices.Equal[[]string], t.exportDefault, t.clusters)
	t.entryVisibility = derive.Single(g, "visibility of service entries", equalVisibility, func(r *derive.Reads) *meshv1alpha1.ServiceEntryVisibility {
		return meshConfig(t.meshSettings.Get(r)).GetServiceEntryVisibility()
	})
	t.distributions = derive.New(g, "distributions of namespaces", objectKey.compare, same, func(r *derive.Reads, key objectKey) (snapshot.Distribution, bool) {
		ns, ok := t.namespaces.Get(r, key)
		return ns.Distribution, ok && ns.Distribution != snapshot.NoDistribution
	}, t.namespaces.Table)
	t.shares = derive.New(g, "shares", compareIDs, same, t.clusterShare, t.clusters)

	t.policies = derive.New(g, "policies", strings.Compare, equalFacts, t.namespacePolicies, t.policyIndex[snapshot.KindPeerAuthentication])
	t.found = derive.Single(g, "found gateways", (*foundGateways).equal, t.findGateways)
	t.meshGateways = derive.Single(g, "gateways", equalGateways, func(r *derive.Reads) *snapshot.Gateways {
		return &snapshot.Gateways{ByNetwork: t.found.Get(r).usable}
	})

	t.allocation = derive.Single(g, "allocation", equalAllocation, t.allocate)
	t.allocated = derive.New(g, "allocated addresses", strings.Compare, slices.Equal[[]netip.Addr], func(r *derive.Reads, host string) ([]netip.Addr, bool) {
		ips := t.allocation.Get(r)[host]
		return ips, len(ips) > 0
	}, t.entriesOf)
	t.unwritten = derive.Single(g, "unwritten addresses", func(a, b []UnwrittenAddresses) bool { return slices.EqualFunc(a, b, UnwrittenAddresses.equal) }, t.findUnwritten)
	t.contended = derive.New(g, "contended hosts", strings.Compare, HostConflict.equal, t.hostConflict, t.entriesOf)
	t.allContended = list(t.contended)
	t.hostConflicts = derive.Single(g, "host conflicts", func(a, b []HostConflict) bool { return slices.EqualFunc(a, b, HostConflict.equal) },
		func(r *derive.Reads) []HostConflict { return values(t.allContended.Lookup(r, struct{}{})) })

	t.joins = derive.New(g, "endpoints", strings.Compare, (*hostEndpoints).equal, t.join, t.servicesOf, t.entriesOf, t.importsOf)
	t.headlessAt = derive.NewIndex(t.joins, func(into []netip.Addr, _ string, h *hostEndpoints) []netip.Addr { return append(into, h.pods...) })
	t.backends = derive.New(g, "backends", strings.Compare, backends.equal, func(r *derive.Reads, host string) (backends, bool) {
		j, ok := t.joins.Get(r, host)
		if !ok {
			return backends{}, false
		}
		return j.backends, true
	}, t.joins)
	t.backendsIn = derive.NewIndex(t.backends, func(into []mesh.NetworkID, _ string, b backends) []mesh.NetworkID { return append(into, b.networks...) })
	t.usedNetworks = derive.New(g, "used networks", compareIDs, same, func(*derive.Reads, mesh.NetworkID) (struct{}, bool) { return struct{}{}, true }, t.backendsIn)
	t.allUsed = list(t.usedNetworks)
	t.unreachable = derive.Single(g, "unreachable networks", slices.Equal[[]UnreachableNetwork], t.findUnreachable)

	t.addRules()
	t.addServices()
	t.addUsedRules()
	t.ruleScopes = derive.New(g, "namespaces with own rules", strings.Compare, equalScope, t.ruleScope, t.ruledHosts)
	t.ruleTraits = derive.Single(g, "rule traits", same, t.findRuleTraits)
	t.addRoutes()
	t.addGateways()

	namespaces := []derive.Keys[string]{t.servicesIn, t.filtersIn, t.ruleScopes, t.routeScopes}
	for _, x := range t.policyIndex {
		namespaces = append(namespaces, x)
	}
	t.facts = derive.New(g, "namespaces", strings.Compare, equalFacts, t.namespaceFacts, namespaces...)
	t.wanted = derive.Single(g, "wanted key sets", slices.Equal[[]snapshot.WantedKeys], t.wantedKeys)
	t.duplicates = derive.Single(g, "duplicate extensions", slices.Equal[[]duplicateExtension], t.findDuplicateExtensions)
	t.unknownProviders = derive.Single(g, "unknown providers", slices.Equal[[]unknownProvider], t.findUnknownProviders)
	return t
}

func (t *tables) addInputs() {
	t.clusters = derive.NewInput(t.graph, "clusters", compareIDs[mesh.ClusterID], same[struct{}])
	t.withPods = derive.NewInput(t.graph, "clusters with pods", compareIDs[mesh.ClusterID], same[struct{}])
	t.balancing = derive.NewInput(t.graph, "balancing", compareIDs[mesh.ClusterID], same[snapshot.Balancing])
	t.health = derive.NewInput(t.graph, "health", healthReporter.compare, same[snapshot.Condition])
	t.hosts = derive.NewInput(t.graph, "resolved hosts", strings.Compare, slices.Equal[[]netip.Addr])
	t.keySets = derive.NewInput(t.graph, "key sets", snapshot.KeySource.Compare, same[string])
	t.keptKeys = derive.NewInput(t.graph, "kept keys", keptKeys.compare, same[string])
	t.namespaces = input(t, snapshot.KindNamespace, equalObject[*snapshot.Namespace])
	t.nodes = input(t, snapshot.KindNode, func(a, b *snapshot.Node) bool {
		return a.Locality == b.Locality && slices.Equal(a.External, b.External) && (len(a.External) == 0 || maps.Equal(a.Labels, b.Labels))
	})
	t.pods = input(t, snapshot.KindPod, equalObject[*snapshot.Pod])
	t.services = input(t, snapshot.KindService, equalObject[*snapshot.Service])
	t.slices = input(t, snapshot.KindEndpointSlice, equalObject[*snapshot.EndpointSlice])
	t.entries = input(t, snapshot.KindWorkloadEntry, equalObject[*snapshot.WorkloadEntry])
	t.secrets = input(t, snapshot.KindSecret, equalObject[*snapshot.Secret])
	t.kubeGW = input(t, snapshot.KindKubeGateway, equalObject[*snapshot.KubeGateway])
	t.exports = input(t, snapshot.KindServiceExport, equalObject[*snapshot.ServiceExport])
	t.imports = input(t, snapshot.KindServiceImport, equalObject[*snapshot.ServiceImport])
	t.settings = input(t, snapshot.KindMeshSettings, equalSettings)
	input(t, snapshot.KindReplicaSet, equalObject[*snapshot.CreationFailure])
	input(t, snapshot.KindEvent, equalObject[*snapshot.CreationFailure])
	input(t, snapshot.KindInjector, equalObject[*snapshot.Injector])
	t.injectors = localInput(t, snapshot.KindInjectorSettings, equalObject[*snapshot.InjectorSettings])
	t.configMaps = localInput(t, snapshot.KindConfigMap, equalObject[*snapshot.ConfigMap])
	t.gateways = localInput(t, snapshot.KindGateway, equalConfig[*networkingv1alpha3.Gateway])
	t.rules = localInput(t, snapshot.KindDestinationRule, equalConfig[*networkingv1alpha3.DestinationRule])
	t.virtual = localInput(t, snapshot.KindVirtualService, (*snapshot.VirtualService).SameAs)
	t.filters = localInput(t, snapshot.KindEnvoyFilter, equalFilter)
	t.external = localInput(t, snapshot.KindServiceEntry, equalServiceEntry)
}

func (t *tables) addIndexes() {
	t.allClusters = list(t.clusters.Table)
	t.allInjectors = list(t.injectors.Table)
	t.allBalancing = list(t.balancing.Table)
	t.settingsIn = derive.NewIndex(t.settings.Table, func(into []mesh.ClusterID, k objectKey, _ *snapshot.MeshSettings) []mesh.ClusterID {
		return append(into, k.cluster)
	})
	t.meshSettings = derive.Single(t.graph, "settings", same, func(r *derive.Reads) *snapshot.MeshSettings { return t.settingsOf(r, t.cfg.Local) })
	t.podsIn = derive.NewIndex(t.pods.Table, t.podNamespaces)
	t.workloadsIn = byNamespace(t.entries.Table)
	t.nodesIn = derive.NewIndex(t.nodes.Table, func(into []mesh.ClusterID, k objectKey, n *snapshot.Node) []mesh.ClusterID {
		if len(n.External) > 0 {
			into = append(into, k.cluster)
		}
		return into
	})
	t.servicesOf = derive.NewIndex(t.services.Table, func(into []string, k objectKey, _ *snapshot.Service) []string {
		return append(into, mesh.ServiceHost(k.name, k.namespace, mesh.DefaultDomain))
	})
	t.servicesNamedBy = derive.NewIndex(t.services.Table, func(into []string, k objectKey, _ *snapshot.Service) []string { return append(into, k.name) })
	t.importsOf = derive.NewIndex(t.imports.Table, func(into []string, _ objectKey, i *snapshot.ServiceImport) []string {
		return append(into, i.Host())
	})
	t.servicesAt = derive.NewIndex(t.services.Table, func(into []netip.Addr, _ objectKey, s *snapshot.Service) []netip.Addr {
		return append(into, s.VIPs...)
	})
	t.aliasesOf = derive.NewIndex(t.services.Table, func(into []string, _ objectKey, s *snapshot.Service) []string {
		if target := aliasTarget(s); target != "" {
			into = append(into, target)
		}
		return into
	})
	t.labelled = derive.NewIndex(t.services.Table, func(into []struct{}, _ objectKey, s *snapshot.Service) []struct{} {
		if s.Labels[mesh.LabelNetwork] != "" {
			into = append(into, struct{}{})
		}
		return into
	})
	t.slicesOf = derive.NewIndex(t.slices.Table, func(into []objectKey, k objectKey, s *snapshot.EndpointSlice) []objectKey {
		return append(into, objectKey{k.cluster, k.namespace, s.Service})
	})
	t.podsAt = derive.NewIndex(t.pods.Table, podAddresses)
	t.entriesWith = derive.NewIndex(t.entries.Table, entryLabels)
	t.allKubeGW = list(t.kubeGW.Table)
	t.allGateways = list(t.limitedGateways())
	t.addPolicyIndexes()
	t.filtersIn = byNamespace(t.filters.Table)
	t.allFilters = list(t.filters.Table)
	entries := t.limitedEntries()
	t.entriesOf = derive.NewIndex(entries, serviceKeys)
	t.entriesAt = derive.NewIndex(entries, func(into []netip.Addr, _ objectKey, e *snapshot.ServiceEntry) []netip.Addr {
		return append(into, e.VIPs...)
	})
	t.allocating = derive.NewIndex(entries, func(into []struct{}, _ objectKey, e *snapshot.ServiceEntry) []struct{} {
		if e.Allocate {
			into = append(into, struct{}{})
		}
		return into
	})
	t.rulesFor = derive.NewIndex(t.rules.Table, func(into []ruleKey, k objectKey, d *snapshot.DestinationRule) []ruleKey {
		return append(into, ruleKey{k.namespace, snapshot.RuledHost(d)})
	})
	t.selectingRules = derive.NewIndex(t.rules.Table, func(into []string, k objectKey, d *snapshot.DestinationRule) []string {
		if d.Spec.GetWorkloadSelector() != nil {
			into = append(into, k.namespace)
		}
		return into
	})
	t.rulesUsing = derive.NewIndex(t.rules.Table, ruleUses)
}

func (t *tables) addPolicyIndexes() {
	t.policyIndex = make(map[snapshot.Kind]*derive.Index[string, objectKey, snapshot.Policy])
	for _, kind := range snapshot.PolicyKinds {
		input := localInput(t, kind, snapshot.Policy.SameAs)
		policies := t.limitedPolicies(kind, input.Table)
		t.policyIndex[kind] = byNamespace(policies)
		switch kind {
		case snapshot.KindTelemetry:
			t.allTelemetries = list(policies)
		case snapshot.KindRequestAuthentication:
			t.requestAuthentications, t.allRequestAuthentications = input, list(policies)
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

func byNamespace[O snapshot.Object](t *derive.Table[objectKey, O]) *derive.Index[string, objectKey, O] {
	return derive.NewIndex(t, func(into []string, k objectKey, _ O) []string { return append(into, k.namespace) })
}

func same[V comparable](a, b V) bool { return a == b }

func compareIDs[ID ~string](a, b ID) int { return cmp.Compare(a, b) }
