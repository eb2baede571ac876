package registry

import (
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// AddressConflicts returns all conflicts, sorted by address and hosts. The caller must
// not change the result.
func (r *Registry) AddressConflicts() []facts.AddressConflict { return r.report.Load().conflicts }

// UnwrittenAddresses returns the addresses that must be written for hosts to keep them. The
// caller must not change the result.
func (r *Registry) UnwrittenAddresses() []facts.UnwrittenAddresses { return r.report.Load().unwritten }

// Gateways returns all gateways of networks, sorted by network and cluster. The caller must
// not change the result.
func (r *Registry) Gateways() []facts.Gateway { return r.report.Load().gateways }

// DuplicateExtensions describes, sorted, the extensions of EnvoyFilters that some
// proxies get from another EnvoyFilter.
func (r *Registry) DuplicateExtensions() []string { return r.report.Load().duplicates }

// ServerConflicts describes the servers of Gateways that proxies do not open because of
// others, sorted.
func (r *Registry) ServerConflicts() []string { return r.report.Load().serverConflicts }

// HostConflicts returns the hosts that several objects define, sorted. The caller must
// not change the result.
func (r *Registry) HostConflicts() []facts.HostConflict { return r.report.Load().hostConflicts }

// Injection returns the settings of injected pods.
func (r *Registry) Injection() facts.Injection { return r.report.Load().injection }

// BeyondLimits describes the objects that limits of their namespaces leave out, sorted.
func (r *Registry) BeyondLimits() []string {
	report := r.report.Load()
	out := make([]string, len(report.beyond))
	for i, b := range report.beyond {
		out[i] = b.String()
	}
	return out
}

// Omitted returns the endpoints of a service that no proxy gets. The caller must not
// change the result.
func (r *Registry) Omitted(host string) facts.Omitted {
	if o := r.report.Load().omitted.Get(host); o != nil {
		return *o
	}
	return facts.Omitted{}
}

// RefusedGateways returns the refused gateways of each cluster that has any. The caller
// must not change the result.
func (r *Registry) RefusedGateways() map[mesh.ClusterID]facts.RefusedGateways {
	return r.report.Load().refused
}

// RouteProblems returns the problems of VirtualServices, sorted. The caller must not change
// the result.
func (r *Registry) RouteProblems() []facts.RouteProblem { return r.report.Load().routes }

// UnknownProviders describes the providers that policies name and that do not work, sorted. The caller must not change the result.
func (r *Registry) UnknownProviders() []string { return r.report.Load().unknownProviders }

// UnreachableNetworks returns the networks that other networks cannot reach, sorted by
// name. The caller must not change the result.
func (r *Registry) UnreachableNetworks() []facts.UnreachableNetwork {
	return r.report.Load().unreachable
}

// problems returns all problems that status pages show.
func (s *state) problems() []facts.Problem {
	var out []facts.Problem
	local := func(kind snapshot.Kind, namespace, name string) snapshot.Key {
		return snapshot.Key{Kind: kind, Cluster: s.cfg.Local, Namespace: namespace, Name: name}
	}
	for _, p := range s.report.routes {
		out = append(out, facts.Problem{Kind: p.Kind, Object: local(snapshot.KindVirtualService, p.Namespace, p.Name), Field: p.Field, Refers: p.Refers, Text: p.Problem})
	}
	for _, c := range s.servers {
		out = append(out, facts.Problem{Kind: facts.UnopenedServer, Object: c.Gateway, Field: c.Field(), Text: c.Text()})
	}
	for _, c := range s.report.hostConflicts {
		for i, k := range c.Losers {
			out = append(out, facts.Problem{Kind: facts.SharedHost, Object: k, Text: c.Text(i)})
		}
	}
	for _, c := range s.report.conflicts {
		if svc, ok := s.MeshServices.Get(nil, c.Unused); ok && !svc.Entry {
			out = append(out, facts.Problem{Kind: facts.SharedAddress, Object: local(snapshot.KindService, svc.Namespace, svc.Name), Text: c.String()})
			continue
		}
		for k, e := range s.EntriesAt.Lookup(nil, c.Address) {
			if slices.Contains(e.Hosts, c.Unused) {
				out = append(out, facts.Problem{Kind: facts.SharedAddress, Object: local(snapshot.KindServiceEntry, k.Namespace, k.Name), Text: c.String()})
			}
		}
	}
	for _, d := range s.duplicates {
		out = append(out, facts.Problem{Kind: facts.RepeatedExtension, Object: d.Second, Text: d.Text()})
	}
	for _, u := range s.providers {
		out = append(out, facts.Problem{Kind: facts.MissingReference, Object: u.Policy, Text: u.Problem})
	}
	for _, b := range s.report.beyond {
		out = append(out, facts.Problem{Kind: facts.BeyondLimit, Object: b.object, Text: b.text})
	}
	for _, u := range s.report.unreachable {
		out = append(out, facts.Problem{Kind: facts.ClosedNetwork, Refers: string(u.Network), Text: u.String()})
	}
	return slices.Clip(out)
}
