package registry

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// state holds all data of the registry's goroutine.
type state struct {
	*tables
	cfg   Config
	trust *snapshot.TrustBundle
	// resolved reports whether the addresses of host names have come once, and fetched
	// whether key sets have.
	resolved, fetched bool

	report     report
	duplicates []duplicateExtension
	servers    []serverConflict
	providers  []unknownProvider
	warnings   []warning // about gateways
}

func newState(cfg Config) *state {
	s := &state{cfg: cfg, tables: newTables(tableConfig{
		Local: cfg.Local, Network: cfg.Network, TrustDomain: cfg.TrustDomain, SystemNamespace: cfg.SystemNamespace,
		ResolvesHosts: cfg.Resolve != nil, Log: cfg.Log,
	})}
	for _, c := range append(cfg.Clusters, cfg.Local) {
		s.clusters.Set(c, struct{}{})
	}
	return s
}

// setHosts sets the addresses of all host names of gateways.
func (s *state) setHosts(of map[string][]netip.Addr) {
	s.resolved = true
	replaceAll(s.hosts, of)
}

// build computes the facts. It returns the next snapshot and its differences from before,
// which is nil for the first one. If the context ends, it returns nothing.
func (s *state) build(ctx context.Context, before *snapshot.Snapshot) (*snapshot.Snapshot, *snapshot.Changes) {
	if !s.graph.CommitWhile(func() bool { return ctx.Err() == nil }) {
		return nil, nil
	}
	s.logFaults()
	s.report.computed = s.graph.Computed()
	next := &snapshot.Snapshot{Seq: 1}
	if before != nil {
		*next = *before
		next.Seq++
	}
	changes := &snapshot.Changes{
		Services: map[string]struct{}{}, Endpoints: map[string]struct{}{}, Rules: map[string]struct{}{},
		Routes: map[string]struct{}{}, RoutePorts: map[uint32]struct{}{}, Referrers: map[string]struct{}{}, GatewayRoutes: map[string]struct{}{},
		Ports: map[uint32]struct{}{}, Pods: map[string]struct{}{}, Secrets: map[string]struct{}{}, Namespaces: map[string]struct{}{},
		Networks: map[mesh.ClusterID]struct{}{}, Gateways: map[mesh.NetworkID]struct{}{},
	}
	changes.Everywhere = before == nil
	s.singles(next, changes)
	s.networks(next, changes)
	next.Services = changed(next.Services, s.meshServices, changes.Services)
	oldRules := next.Rules
	next.Rules = changed(next.Rules, s.usedRules, changes.Rules)
	for key := range changes.Rules {
		// A connection pool also limits the service's own workloads.
		if svc := next.Services.Get(key); svc != nil && (limitsInbound(oldRules.Get(key)) || limitsInbound(next.Rules.Get(key))) {
			changes.Namespaces[svc.Namespace] = struct{}{}
		}
	}
	oldRoutes := next.Routes
	next.Routes = changed(next.Routes, s.hostRoutes, changes.Routes)
	next.PortRoutes = changed(next.PortRoutes, s.portRoutes, changes.RoutePorts)
	next.Referrers = changed(next.Referrers, s.referrers, changes.Referrers)
	routesOfServices(oldRoutes, next, changes)
	addRivals(next, changes.Routes)
	addRivals(next, changes.Referrers)
	next.GatewayRoutes = changed(next.GatewayRoutes, s.gatewayRoutes, changes.GatewayRoutes)
	next.Ports = changed(next.Ports, s.ports, changes.Ports)
	next.Namespaces = changed(next.Namespaces, s.facts, changes.Namespaces)
	s.endpoints(next, changes)
	s.objects(next, changes)
	s.localities(next, changes)
	if old := next.TrustBundle; s.trust != nil && (old == nil || !slices.Equal(old.Roots, s.trust.Roots)) {
		next.TrustBundle = s.trust
		changes.TrustBundle = true
	}
	s.reports()
	return next, changes
}

// routesOfServices records the ports of the hosts with changed VirtualServices.
func routesOfServices(old *snapshot.Table[string, snapshot.HostRoutes], next *snapshot.Snapshot, changes *snapshot.Changes) {
	for host := range changes.Routes {
		for _, h := range []*snapshot.HostRoutes{old.Get(host), next.Routes.Get(host)} {
			if h == nil {
				continue
			}
			for _, number := range h.Ports {
				changes.RoutePorts[number] = struct{}{}
			}
		}
	}
}

// addRivals adds to hosts the keys of their further services.
func addRivals(s *snapshot.Snapshot, hosts map[string]struct{}) {
	for _, host := range slices.Collect(maps.Keys(hosts)) {
		if svc := s.Services.Get(host); svc != nil {
			for i := range svc.Rivals {
				hosts[snapshot.FurtherKey(host, svc.Rivals[i].Namespace)] = struct{}{}
			}
		}
	}
}

// logFaults logs the facts that could not be computed, each once.
func (s *state) logFaults() {
	faults := s.graph.Faults()
	for _, f := range faults {
		if !slices.ContainsFunc(s.report.faults, func(old derive.Fault) bool { return old.Table == f.Table && old.Key == f.Key }) {
			s.cfg.Log.Error("panic: the last good value of a fact stays", "table", f.Table, "key", f.Key, "panic", f.Panic, "stack", f.Stack)
		}
	}
	s.report.faults = faults
}

// singles sets the facts without a key.
func (s *state) singles(next *snapshot.Snapshot, changes *snapshot.Changes) {
	changes.Mesh, changes.GatewayConfigs = s.mesh.Changed(), s.configs.Changed()
	changes.Traits = s.traits.Changed() || s.ruleTraits.Changed() || s.routeClients.Changed()
	next.Mesh, next.GatewayConfigs, next.RuleTraits = s.mesh.Get(nil), s.configs.Get(nil), s.ruleTraits.Get(nil)
	next.RouteClients = s.routeClients.Get(nil)
	is := s.traits.Get(nil)
	next.Private, next.NodeLocal, next.DNS, next.Allocated = is.private, is.nodeLocal, is.dns, is.allocated
}

// networks sets the networks of clusters, and the gateways of networks.
func (s *state) networks(next *snapshot.Snapshot, changes *snapshot.Changes) {
	update := make(map[mesh.ClusterID]*mesh.NetworkID)
	for id, c := range s.tables.networks.Changed() {
		changes.Networks[id] = struct{}{}
		if update[id] = nil; c.Present {
			update[id] = &c.Value
		}
	}
	next.Networks = next.Networks.With(update)
	if !s.meshGateways.Changed() {
		return
	}
	old, now := next.Gateways, s.meshGateways.Get(nil)
	next.Gateways = now
	if old == nil {
		old = &snapshot.Gateways{}
	} else {
		s.cfg.Log.Info("gateways changed, triggering push", "networks", len(now.ByNetwork))
	}
	for _, networks := range []*snapshot.Gateways{old, now} {
		for n := range networks.ByNetwork {
			if !slices.Equal(old.ByNetwork[n], now.ByNetwork[n]) {
				changes.Gateways[n] = struct{}{}
			}
		}
	}
}

// changed returns a table of the snapshot with the changes of a derived table.
func changed[K cmp.Ordered, V any](before *snapshot.Table[K, V], t *derive.Table[K, *V], keys map[K]struct{}) *snapshot.Table[K, V] {
	update := make(map[K]*V)
	for k, c := range t.Changed() {
		update[k] = c.Value
		keys[k] = struct{}{}
	}
	return before.With(update)
}

// endpoints sets the endpoints of hosts, and the omitted ones.
func (s *state) endpoints(next *snapshot.Snapshot, changes *snapshot.Changes) {
	update, omitted := make(map[string]*snapshot.Endpoints), make(map[string]*Omitted)
	for host, c := range s.joins.Changed() {
		old := next.Endpoints.Get(host)
		if !c.Present {
			update[host], omitted[host] = nil, nil
		} else {
			if omitted[host] = nil; c.Value.omitted.Number > 0 {
				omitted[host] = &c.Value.omitted
			}
			if old != nil && equalEndpoints(old, c.Value.Endpoints) {
				continue
			}
			update[host] = c.Value.Endpoints
		}
		changes.Endpoints[host] = struct{}{}
		if svc := next.Services.Get(host); svc != nil && c.Present && c.Value.backends.selectorless {
			changes.Namespaces[svc.Namespace] = struct{}{}
		}
	}
	next.Endpoints = next.Endpoints.With(update)
	s.report.omitted = s.report.omitted.With(omitted)
}

// objects sets the objects that proxies get as they are.
func (s *state) objects(next *snapshot.Snapshot, changes *snapshot.Changes) {
	pods := make(map[string]*snapshot.Pod)
	for k, c := range s.pods.Changed() {
		key := snapshot.PodKey{Cluster: k.cluster, Namespace: k.namespace, Name: k.name}.String()
		if old := next.Pods.Get(key); c.Present && old != nil { // not only its readiness
			now := *c.Value
			if now.Unready = old.Unready; reflect.DeepEqual(*old, now) {
				continue
			}
		}
		pods[key] = c.Value
	}
	for k, c := range s.entries.Changed() {
		key := snapshot.WorkloadEntryKey(k.cluster, k.namespace, k.name)
		if !c.Present {
			pods[key] = nil
		} else if old := next.Pods.Get(key); old == nil || !reflect.DeepEqual(*old, c.Value.Pod) { // not only its health
			pods[key] = &c.Value.Pod
		}
	}
	next.Pods = next.Pods.With(pods)
	for k := range pods {
		changes.Pods[k] = struct{}{}
	}
	secrets := make(map[string]*snapshot.Secret)
	for k, c := range s.secrets.Changed() {
		secrets[snapshot.SecretKey(k.cluster, k.namespace, k.name)] = c.Value
	}
	next.Secrets = next.Secrets.With(secrets)
	configMaps := make(map[string]*snapshot.ConfigMap)
	for k, c := range s.configMaps.Changed() {
		configMaps[snapshot.ConfigMapKey(k.namespace, k.name)] = c.Value
	}
	next.ConfigMaps = next.ConfigMaps.With(configMaps)
	for k := range secrets {
		changes.Secrets[k] = struct{}{}
	}
	for k := range configMaps {
		changes.Secrets[k] = struct{}{}
	}
}

// localities sets the localities of nodes and WorkloadEntries. If clients prefer endpoints
// by their own place, their pods count as changed.
func (s *state) localities(next *snapshot.Snapshot, changes *snapshot.Changes) {
	update := make(map[string]*mesh.Locality)
	set := func(key string, l mesh.Locality) (differs bool) {
		var old mesh.Locality
		if known := next.Localities.Get(key); known != nil {
			old = *known
		}
		if l == old {
			return false
		}
		if update[key] = nil; l != (mesh.Locality{}) {
			update[key] = &l
		}
		return true
	}
	for k, c := range s.nodes.Changed() {
		var now mesh.Locality
		if c.Present {
			now = c.Value.Locality
		}
		set(snapshot.NodeKey(k.cluster, k.name), now)
	}
	moved := len(update) > 0
	for k, c := range s.entries.Changed() {
		var now mesh.Locality
		if c.Present {
			now = c.Value.Locality
		}
		if key := snapshot.WorkloadEntryKey(k.cluster, k.namespace, k.name); set(key, now) {
			changes.Pods[key] = struct{}{}
		}
	}
	next.Localities = next.Localities.With(update)
	changes.Localities = len(update) > 0
	if !moved || !next.RuleTraits.Localities {
		return
	}
	for key, pod := range next.Pods.All() {
		if _, differs := update[snapshot.NodeKey(pod.Cluster, pod.Node)]; differs && pod.Node != "" {
			changes.Pods[key] = struct{}{}
		}
	}
}

// reports updates the problems that status pages show, and logs new ones.
func (s *state) reports() {
	rules := make(map[string]*snapshot.DestinationRule)
	for k, c := range s.rules.Changed() {
		rules[snapshot.Key{Kind: snapshot.KindDestinationRule, Cluster: k.cluster, Namespace: k.namespace, Name: k.name}.String()] = c.Value
	}
	s.report.rules = s.report.rules.With(rules)
	if s.found.Changed() {
		found := s.found.Get(nil)
		s.report.refused = found.refused
		s.report.gateways = describeGateways(s.report.gateways, found.described, s.cfg.Now())
		for _, w := range found.warnings {
			if !slices.ContainsFunc(s.warnings, func(old warning) bool { return reflect.DeepEqual(old, w) }) {
				s.cfg.Log.Warn(w.message, w.attrs...) //nolint:sloglint // each call of warn has a constant
			}
		}
		s.warnings = found.warnings
	}
	s.reportLimits()
	if s.unreachable.Changed() {
		now := s.unreachable.Get(nil)
		s.logUnreachable(s.report.unreachable, now)
		s.report.unreachable = now
	}
	if s.conflicts.Changed() {
		now := s.conflicts.Get(nil)
		s.logConflicts(s.report.conflicts, now)
		s.report.conflicts = now
	}
	if s.hostConflicts.Changed() {
		now := s.hostConflicts.Get(nil)
		s.logHostConflicts(s.report.hostConflicts, now)
		s.report.hostConflicts = now
	}
	if now := s.routeProblems.Get(nil); s.routeProblems.Changed() {
		s.logRouteProblems(s.report.routes, now)
		s.report.routes = now
	}
	s.report.unwritten = s.unwritten.Get(nil)
	s.report.injection = s.injection.Get(nil)
	if now := s.serverConflicts.Get(nil); s.serverConflicts.Changed() {
		s.report.serverConflicts = s.describeServerConflicts(s.servers, now)
		s.servers = now
	}
	if now := s.tables.duplicates.Get(nil); s.tables.duplicates.Changed() {
		s.report.duplicates = s.describeDuplicates(s.duplicates, now)
		s.duplicates = now
	}
	if s.unknownProviders.Changed() {
		now := s.unknownProviders.Get(nil)
		s.report.unknownProviders = s.describeUnknownProviders(s.providers, now)
		s.providers = now
	}
}
