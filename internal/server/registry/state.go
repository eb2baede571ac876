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
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// state holds all data of the registry's goroutine.
type state struct {
	*facts.Tables
	cfg   Config
	trust *snapshot.TrustBundle
	// resolved reports whether the addresses of host names have come once, and fetched
	// whether key sets have.
	resolved, fetched bool

	report     report
	duplicates []facts.DuplicateExtension
	servers    []facts.ServerConflict
	providers  []facts.UnknownProvider
	warnings   []facts.Warning // about gateways
}

func newState(cfg Config) *state {
	s := &state{cfg: cfg, Tables: facts.New(facts.Config{
		Local: cfg.Local, Network: cfg.Network, TrustDomain: cfg.TrustDomain, SystemNamespace: cfg.SystemNamespace,
		ResolvesHosts: cfg.Resolve != nil, Log: cfg.Log,
	})}
	for _, c := range append(cfg.Clusters, cfg.Local) {
		s.Clusters.Set(c, struct{}{})
	}
	return s
}

// setHosts sets the addresses of all host names of gateways.
func (s *state) setHosts(of map[string][]netip.Addr) {
	s.resolved = true
	facts.ReplaceAll(s.Hosts, of)
}

// build computes the facts. It returns the next snapshot and its differences from before,
// which is nil for the first one. If the context ends, it returns nothing.
func (s *state) build(ctx context.Context, before *snapshot.Snapshot) (*snapshot.Snapshot, *snapshot.Changes) {
	if !s.Graph.CommitWhile(func() bool { return ctx.Err() == nil }) {
		return nil, nil
	}
	s.logFaults()
	s.report.computed = s.Graph.Computed()
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
	next.Services = changed(next.Services, s.MeshServices, changes.Services)
	oldRules := next.Rules
	next.Rules = changed(next.Rules, s.UsedRules, changes.Rules)
	for key := range changes.Rules {
		// A connection pool also limits the service's own workloads.
		if svc := next.Services.Get(key); svc != nil && (facts.LimitsInbound(oldRules.Get(key)) || facts.LimitsInbound(next.Rules.Get(key))) {
			changes.Namespaces[svc.Namespace] = struct{}{}
		}
	}
	oldRoutes := next.Routes
	next.Routes = changed(next.Routes, s.HostRoutes, changes.Routes)
	next.PortRoutes = changed(next.PortRoutes, s.PortRoutes, changes.RoutePorts)
	next.Referrers = changed(next.Referrers, s.Referrers, changes.Referrers)
	routesOfServices(oldRoutes, next, changes)
	addRivals(next, changes.Routes)
	addRivals(next, changes.Referrers)
	next.GatewayRoutes = changed(next.GatewayRoutes, s.GatewayRoutes, changes.GatewayRoutes)
	next.Ports = changed(next.Ports, s.Ports, changes.Ports)
	next.Namespaces = changed(next.Namespaces, s.Facts, changes.Namespaces)
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
	faults := s.Graph.Faults()
	for _, f := range faults {
		if !slices.ContainsFunc(s.report.faults, func(old derive.Fault) bool { return old.Table == f.Table && old.Key == f.Key }) {
			s.cfg.Log.Error("panic: the last good value of a fact stays", "table", f.Table, "key", f.Key, "panic", f.Panic, "stack", f.Stack)
		}
	}
	s.report.faults = faults
}

// singles sets the facts without a key.
func (s *state) singles(next *snapshot.Snapshot, changes *snapshot.Changes) {
	changes.Mesh, changes.GatewayConfigs = s.Mesh.Changed(), s.Configs.Changed()
	changes.Traits = s.Traits.Changed() || s.RuleTraits.Changed() || s.RouteClients.Changed()
	next.Mesh, next.GatewayConfigs, next.RuleTraits = s.Mesh.Get(nil), s.Configs.Get(nil), s.RuleTraits.Get(nil)
	next.RouteClients = s.RouteClients.Get(nil)
	is := s.Traits.Get(nil)
	next.Private, next.NodeLocal, next.DNS, next.Allocated = is.Private, is.NodeLocal, is.DNS, is.Allocated
}

// networks sets the networks of clusters, and the gateways of networks.
func (s *state) networks(next *snapshot.Snapshot, changes *snapshot.Changes) {
	update := make(map[mesh.ClusterID]*mesh.NetworkID)
	for id, c := range s.Networks.Changed() {
		changes.Networks[id] = struct{}{}
		if update[id] = nil; c.Present {
			update[id] = &c.Value
		}
	}
	next.Networks = next.Networks.With(update)
	if !s.MeshGateways.Changed() {
		return
	}
	old, now := next.Gateways, s.MeshGateways.Get(nil)
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
	update, omitted := make(map[string]*snapshot.Endpoints), make(map[string]*facts.Omitted)
	for host, c := range s.Joins.Changed() {
		old := next.Endpoints.Get(host)
		if !c.Present {
			update[host], omitted[host] = nil, nil
		} else {
			if omitted[host] = nil; c.Value.Omitted.Number > 0 {
				omitted[host] = &c.Value.Omitted
			}
			if old != nil && facts.EqualEndpoints(old, c.Value.Endpoints) {
				continue
			}
			update[host] = c.Value.Endpoints
		}
		changes.Endpoints[host] = struct{}{}
		if svc := next.Services.Get(host); svc != nil && c.Present && c.Value.Backends.Selectorless {
			changes.Namespaces[svc.Namespace] = struct{}{}
		}
	}
	next.Endpoints = next.Endpoints.With(update)
	s.report.omitted = s.report.omitted.With(omitted)
}

// objects sets the objects that proxies get as they are.
func (s *state) objects(next *snapshot.Snapshot, changes *snapshot.Changes) {
	pods := make(map[string]*snapshot.Pod)
	for k, c := range s.Pods.Changed() {
		key := snapshot.PodKey{Cluster: k.Cluster, Namespace: k.Namespace, Name: k.Name}.String()
		if old := next.Pods.Get(key); c.Present && old != nil { // not only its readiness
			now := *c.Value
			if now.Unready = old.Unready; reflect.DeepEqual(*old, now) {
				continue
			}
		}
		pods[key] = c.Value
	}
	for k, c := range s.Entries.Changed() {
		key := snapshot.WorkloadEntryKey(k.Cluster, k.Namespace, k.Name)
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
	for k, c := range s.Secrets.Changed() {
		secrets[snapshot.SecretKey(k.Cluster, k.Namespace, k.Name)] = c.Value
	}
	next.Secrets = next.Secrets.With(secrets)
	configMaps := make(map[string]*snapshot.ConfigMap)
	for k, c := range s.ConfigMaps.Changed() {
		configMaps[snapshot.ConfigMapKey(k.Namespace, k.Name)] = c.Value
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
	for k, c := range s.Nodes.Changed() {
		var now mesh.Locality
		if c.Present {
			now = c.Value.Locality
		}
		set(snapshot.NodeKey(k.Cluster, k.Name), now)
	}
	moved := len(update) > 0
	for k, c := range s.Entries.Changed() {
		var now mesh.Locality
		if c.Present {
			now = c.Value.Locality
		}
		if key := snapshot.WorkloadEntryKey(k.Cluster, k.Namespace, k.Name); set(key, now) {
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
	for k, c := range s.Rules.Changed() {
		rules[snapshot.Key{Kind: snapshot.KindDestinationRule, Cluster: k.Cluster, Namespace: k.Namespace, Name: k.Name}.String()] = c.Value
	}
	s.report.rules = s.report.rules.With(rules)
	if s.Found.Changed() {
		found := s.Found.Get(nil)
		s.report.refused = found.Refused
		s.report.gateways = facts.DescribeGateways(s.report.gateways, found.Described, s.cfg.Now())
		for _, w := range found.Warnings {
			if !slices.ContainsFunc(s.warnings, func(old facts.Warning) bool { return reflect.DeepEqual(old, w) }) {
				s.cfg.Log.Warn(w.Message, w.Attrs...) //nolint:sloglint // each call of warn has a constant
			}
		}
		s.warnings = found.Warnings
	}
	s.reportLimits()
	if s.Unreachable.Changed() {
		now := s.Unreachable.Get(nil)
		s.logUnreachable(s.report.unreachable, now)
		s.report.unreachable = now
	}
	if s.Conflicts.Changed() {
		now := s.Conflicts.Get(nil)
		s.logConflicts(s.report.conflicts, now)
		s.report.conflicts = now
	}
	if s.HostConflicts.Changed() {
		now := s.HostConflicts.Get(nil)
		s.logHostConflicts(s.report.hostConflicts, now)
		s.report.hostConflicts = now
	}
	if now := s.RouteProblems.Get(nil); s.RouteProblems.Changed() {
		s.logRouteProblems(s.report.routes, now)
		s.report.routes = now
	}
	s.report.unwritten = s.Unwritten.Get(nil)
	s.report.injection = s.Injection.Get(nil)
	if now := s.ServerConflicts.Get(nil); s.ServerConflicts.Changed() {
		s.report.serverConflicts = s.describeServerConflicts(s.servers, now)
		s.servers = now
	}
	if now := s.Duplicates.Get(nil); s.Duplicates.Changed() {
		s.report.duplicates = s.describeDuplicates(s.duplicates, now)
		s.duplicates = now
	}
	if s.UnknownProviders.Changed() {
		now := s.UnknownProviders.Get(nil)
		s.report.unknownProviders = s.describeUnknownProviders(s.providers, now)
		s.providers = now
	}
}
