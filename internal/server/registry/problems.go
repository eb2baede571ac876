package registry

import (
	"slices"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// ProblemKind is a kind of Problem.
type ProblemKind uint8

// The kinds of problems.
const (
	MissingReference  ProblemKind = iota // a name that no object has
	UnusableDelegate                     // a delegate of a VirtualService without effect
	UnopenedServer                       // a server of a Gateway that another one precludes
	SharedHost                           // a host that several objects define
	SharedAddress                        // an address of two Services
	RepeatedExtension                    // an extension of two EnvoyFilters
	ClosedNetwork                        // a network without a usable gateway
	BeyondLimit                          // an object beyond a limit of its namespace
)

// Problem is a fault that only several objects together show.
type Problem struct {
	Kind ProblemKind
	// Object is the object at fault. It is zero for a fault of the whole mesh.
	Object snapshot.Key
	// Field is the path of the faulty field, or "". Refers is a missing host of
	// destinations, whose field is not known.
	Field, Refers string
	Text          string
}

// problems returns all problems that status pages show.
func (s *state) problems() []Problem {
	var out []Problem
	local := func(kind snapshot.Kind, namespace, name string) snapshot.Key {
		return snapshot.Key{Kind: kind, Cluster: s.cfg.Local, Namespace: namespace, Name: name}
	}
	for _, p := range s.report.routes {
		out = append(out, Problem{Kind: p.kind, Object: local(snapshot.KindVirtualService, p.Namespace, p.Name), Field: p.field, Refers: p.refers, Text: p.Problem})
	}
	for _, c := range s.servers {
		out = append(out, Problem{Kind: UnopenedServer, Object: c.gateway, Field: c.field(), Text: c.text()})
	}
	for _, c := range s.report.hostConflicts {
		for i, k := range c.losers {
			out = append(out, Problem{Kind: SharedHost, Object: k, Text: c.text(i)})
		}
	}
	for _, c := range s.report.conflicts {
		if svc, ok := s.meshServices.Get(nil, c.Unused); ok && !svc.Entry {
			out = append(out, Problem{Kind: SharedAddress, Object: local(snapshot.KindService, svc.Namespace, svc.Name), Text: c.String()})
			continue
		}
		for k, e := range s.entriesAt.Lookup(nil, c.Address) {
			if slices.Contains(e.Hosts, c.Unused) {
				out = append(out, Problem{Kind: SharedAddress, Object: local(snapshot.KindServiceEntry, k.namespace, k.name), Text: c.String()})
			}
		}
	}
	for _, d := range s.duplicates {
		out = append(out, Problem{Kind: RepeatedExtension, Object: d.second, Text: d.text()})
	}
	for _, u := range s.providers {
		out = append(out, Problem{Kind: MissingReference, Object: u.policy, Text: u.problem})
	}
	for _, b := range s.report.beyond {
		out = append(out, Problem{Kind: BeyondLimit, Object: b.object, Text: b.text})
	}
	for _, u := range s.report.unreachable {
		out = append(out, Problem{Kind: ClosedNetwork, Refers: string(u.Network), Text: u.String()})
	}
	return slices.Clip(out)
}
