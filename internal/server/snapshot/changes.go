package snapshot

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Changes names the facts that differ between a snapshot and the one before. A key
// stands for a fact that was added, changed or removed.
type Changes struct {
	Services      map[string]struct{}         // keys of Snapshot.Services
	Endpoints     map[string]struct{}         // keys of Snapshot.Endpoints
	Rules         map[string]struct{}         // keys of Snapshot.Rules
	Routes        map[string]struct{}         // keys of Snapshot.Routes, and of the services of these hosts
	RoutePorts    map[uint32]struct{}         // port numbers at which VirtualServices changed
	Referrers     map[string]struct{}         // keys of Snapshot.Referrers, and of the services of these hosts
	GatewayRoutes map[string]struct{}         // keys of Snapshot.GatewayRoutes
	Ports         map[uint32]struct{}         // keys of Snapshot.Ports
	Pods          map[string]struct{}         // keys of Snapshot.Pods
	Secrets       map[string]struct{}         // keys of Snapshot.Secrets and ConfigMaps
	Namespaces    map[string]struct{}         // keys of Snapshot.Namespaces
	Networks      map[mesh.ClusterID]struct{} // keys of Snapshot.Networks
	Gateways      map[mesh.NetworkID]struct{} // keys of Snapshot.Gateways
	// TrustBundle reports whether Snapshot.TrustBundle changed, and Localities whether
	// Snapshot.Localities did. The pods that these concern are in Pods.
	TrustBundle, Localities bool
	// Mesh reports whether Snapshot.Mesh changed, GatewayConfigs whether
	// Snapshot.GatewayConfigs did, and Traits whether Private, NodeLocal, DNS, Allocated,
	// RuleTraits or RouteClients did.
	Mesh, GatewayConfigs, Traits bool
	// Everywhere reports whether any fact may have changed.
	Everywhere bool
	// Causes names a few of the objects behind the change, for logs and traces.
	// Events is the number of all of them.
	Causes []Cause
	Events int
	// Since is when the first event of the batch arrived, Taken when the batch was
	// closed, and Built when the snapshot was ready.
	Since, Taken, Built time.Time
}

// Cause is an object whose change led to a snapshot.
type Cause struct {
	Key
	Place Place // zero if the object is gone
	Gone  bool
}

// Kinds is a set of kinds of facts.
type Kinds uint16

// The kinds of facts from which resources are generated. Other facts, such as pods and
// namespaces, only decide which resources a proxy gets.
const (
	ServiceFacts Kinds = 1 << iota
	EndpointFacts
	RuleFacts
	RouteFacts        // VirtualServices
	ReferrerFacts     // VirtualServices that route to a service
	GatewayRouteFacts // VirtualServices of gateways
	PortFacts
	SecretFacts
	GatewayFacts // east-west gateways
	// These have no keys.
	TrustFacts
	MeshFacts
)

// Kinds returns the kinds of facts that changed, without those behind Everywhere.
func (c *Changes) Kinds() Kinds {
	var k Kinds
	add := func(kind Kinds, changed bool) {
		if changed {
			k |= kind
		}
	}
	add(ServiceFacts, len(c.Services) > 0)
	add(EndpointFacts, len(c.Endpoints) > 0)
	add(RuleFacts, len(c.Rules) > 0)
	add(RouteFacts, len(c.Routes)+len(c.RoutePorts) > 0)
	add(ReferrerFacts, len(c.Referrers) > 0)
	add(GatewayRouteFacts, len(c.GatewayRoutes) > 0)
	add(PortFacts, len(c.Ports) > 0)
	add(SecretFacts, len(c.Secrets) > 0)
	add(GatewayFacts, len(c.Gateways) > 0)
	add(TrustFacts, c.TrustBundle)
	add(MeshFacts, c.Mesh)
	return k
}

// ServiceKeys iterates over the keys of services with changed facts of some kinds. It may
// repeat a key. s is the snapshot after the changes.
func (c *Changes) ServiceKeys(s *Snapshot, kinds Kinds) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, of := range []struct {
			kind Kinds
			keys map[string]struct{}
		}{{ServiceFacts, c.Services}, {EndpointFacts, c.Endpoints}, {RuleFacts, c.Rules}, {RouteFacts, c.Routes}, {ReferrerFacts, c.Referrers}} {
			if kinds&of.kind == 0 {
				continue
			}
			for key := range of.keys {
				if !yield(key) {
					return
				}
			}
		}
		if kinds&GatewayFacts == 0 || len(c.Gateways) == 0 {
			return
		}
		changed := func(n mesh.NetworkID) bool { _, ok := c.Gateways[n]; return ok }
		for key, e := range s.Endpoints.All() {
			if slices.ContainsFunc(e.Networks, changed) && !yield(key) {
				return
			}
		}
	}
}

// PortNumbers iterates over the port numbers of services with changed facts of some kinds.
// It may repeat a number. s is the snapshot after the changes.
func (c *Changes) PortNumbers(s *Snapshot, kinds Kinds) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		if kinds&PortFacts != 0 {
			for number := range c.Ports {
				if !yield(number) {
					return
				}
			}
		}
		if kinds&RouteFacts != 0 {
			for number := range c.RoutePorts {
				if !yield(number) {
					return
				}
			}
		}
		for key := range c.ServiceKeys(s, kinds&^RouteFacts) {
			svc := s.Services.Get(key)
			if svc == nil {
				continue // its ports have changed
			}
			for i := range svc.Ports {
				if !yield(svc.Ports[i].Number) {
					return
				}
			}
		}
	}
}

// maxCauses is the largest number of causes in a merged change.
const maxCauses = 16

// Merge combines the changes with later ones and modifies neither. Nil changes are
// empty.
func (c *Changes) Merge(later *Changes) *Changes {
	if c == nil {
		return later
	}
	causes := append(slices.Clip(c.Causes), later.Causes...)
	out := &Changes{
		Services:       union(c.Services, later.Services),
		Endpoints:      union(c.Endpoints, later.Endpoints),
		Rules:          union(c.Rules, later.Rules),
		Routes:         union(c.Routes, later.Routes),
		Referrers:      union(c.Referrers, later.Referrers),
		GatewayRoutes:  union(c.GatewayRoutes, later.GatewayRoutes),
		RoutePorts:     union(c.RoutePorts, later.RoutePorts),
		Ports:          union(c.Ports, later.Ports),
		Pods:           union(c.Pods, later.Pods),
		Secrets:        union(c.Secrets, later.Secrets),
		Namespaces:     union(c.Namespaces, later.Namespaces),
		Networks:       union(c.Networks, later.Networks),
		Gateways:       union(c.Gateways, later.Gateways),
		TrustBundle:    c.TrustBundle || later.TrustBundle,
		Localities:     c.Localities || later.Localities,
		Mesh:           c.Mesh || later.Mesh,
		GatewayConfigs: c.GatewayConfigs || later.GatewayConfigs,
		Traits:         c.Traits || later.Traits,
		Everywhere:     c.Everywhere || later.Everywhere,
		Causes:         causes[:min(len(causes), maxCauses)],
		Events:         c.Events + later.Events,
		Since:          c.Since, Taken: c.Taken, Built: later.Built,
	}
	if c.Since.IsZero() || !later.Since.IsZero() && later.Since.Before(c.Since) {
		out.Since, out.Taken = later.Since, later.Taken
	}
	return out
}

func union[K comparable](a, b map[K]struct{}) map[K]struct{} {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// OnlyEndpoints reports whether no facts changed but endpoints, and pods behind them.
func (c *Changes) OnlyEndpoints() bool {
	return !c.Everywhere && !c.GatewayConfigs && !c.Traits && c.Kinds() == EndpointFacts && len(c.Namespaces)+len(c.Networks) == 0
}

// Empty reports whether nothing changed.
func (c *Changes) Empty() bool {
	return !c.Everywhere && !c.Localities && !c.GatewayConfigs && !c.Traits && c.Kinds() == 0 &&
		len(c.Pods)+len(c.Namespaces)+len(c.Networks) == 0
}
