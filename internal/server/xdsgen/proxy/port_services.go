package proxy

import (
	"iter"
	"slices"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// PortServices holds the visible services with a TCP port of a number, in the order of
// precedence. It is comparable. If a scope sees few services, it holds them alone, so that
// changes of other services do not matter, and scopes that see the same services share
// the result.
type PortServices struct {
	Number uint32
	Few    wire.List[*snapshot.MeshService]
	// Otherwise it holds all services of the port, of which the scope sees some.
	Of    *snapshot.PortServices
	scope Scope
}

// At returns the visible services with a TCP port of a number.
func (sc Scope) At(s *snapshot.Snapshot, number uint32) PortServices {
	namespaces := sc.Namespaces()
	if namespaces == nil {
		return PortServices{Number: number, Of: s.Ports.Get(number), scope: sc}
	}
	var services []*snapshot.MeshService
	for svc := range ServicesIn(s, namespaces) {
		if p := svc.Port(number); p != nil && svc.ExternalName == "" && sc.Sees(svc) {
			services = append(services, svc)
		}
	}
	return PortServices{Number: number, Few: ListServices(services)}
}

// ListServices returns the list of services in the order of precedence.
func ListServices(services []*snapshot.MeshService) wire.List[*snapshot.MeshService] {
	slices.SortFunc(services, snapshot.CompareServices)
	return wire.ListOf(services)
}

// All iterates over the services.
func (p PortServices) All(yield func(*snapshot.MeshService) bool) {
	if p.Of != nil {
		for _, svc := range p.Of.Services {
			if svc.ExternalName == "" && p.scope.Sees(svc) && !yield(svc) {
				return
			}
		}
		return
	}
	p.Few.All(yield)
}

// Any reports whether is holds for the port of some service.
func (p PortServices) Any(is func(*snapshot.MeshService, *snapshot.ServicePort) bool) bool {
	for svc := range p.All {
		if is(svc, svc.Port(p.Number)) {
			return true
		}
	}
	return false
}

// None reports whether there are no services.
func (p PortServices) None() bool {
	return !p.Any(func(*snapshot.MeshService, *snapshot.ServicePort) bool { return true })
}

// Size returns the number of services, or more.
func (p PortServices) Size() int {
	if p.Of != nil {
		return len(p.Of.Services)
	}
	n := 0
	for range p.All {
		n++
	}
	return n
}

// ServicesIn iterates over the services of namespaces.
func ServicesIn(s *snapshot.Snapshot, namespaces []string) iter.Seq[*snapshot.MeshService] {
	return func(yield func(*snapshot.MeshService) bool) {
		for _, namespace := range namespaces {
			facts := s.Namespaces.Get(namespace)
			if facts == nil {
				continue
			}
			for _, svc := range facts.Services {
				if !yield(svc) {
					return
				}
			}
		}
	}
}
