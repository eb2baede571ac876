package xdsgen

import (
	"iter"
	"slices"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// portServices holds the visible services with a TCP port of a number, in the order of
// precedence. It is comparable. If a scope sees few services, it holds them alone, so that
// changes of other services do not matter, and scopes that see the same services share
// the result.
type portServices struct {
	number uint32
	few    list[*snapshot.MeshService]
	// Otherwise it holds all services of the port, of which the scope sees some.
	of    *snapshot.PortServices
	scope scope
}

// at returns the visible services with a TCP port of a number.
func (sc scope) at(s *snapshot.Snapshot, number uint32) portServices {
	namespaces := sc.namespaces()
	if namespaces == nil {
		return portServices{number: number, of: s.Ports.Get(number), scope: sc}
	}
	var services []*snapshot.MeshService
	for svc := range servicesIn(s, namespaces) {
		if p := svc.Port(number); p != nil && svc.ExternalName == "" && sc.sees(svc) {
			services = append(services, svc)
		}
	}
	return portServices{number: number, few: listServices(services)}
}

// listServices returns the list of services in the order of precedence.
func listServices(services []*snapshot.MeshService) list[*snapshot.MeshService] {
	slices.SortFunc(services, snapshot.CompareServices)
	return listOf(services)
}

// all iterates over the services.
func (p portServices) all(yield func(*snapshot.MeshService) bool) {
	if p.of != nil {
		for _, svc := range p.of.Services {
			if svc.ExternalName == "" && p.scope.sees(svc) && !yield(svc) {
				return
			}
		}
		return
	}
	p.few.All(yield)
}

// any reports whether is holds for the port of some service.
func (p portServices) any(is func(*snapshot.MeshService, *snapshot.ServicePort) bool) bool {
	for svc := range p.all {
		if is(svc, svc.Port(p.number)) {
			return true
		}
	}
	return false
}

// none reports whether there are no services.
func (p portServices) none() bool {
	return !p.any(func(*snapshot.MeshService, *snapshot.ServicePort) bool { return true })
}

// size returns the number of services, or more.
func (p portServices) size() int {
	if p.of != nil {
		return len(p.of.Services)
	}
	n := 0
	for range p.all {
		n++
	}
	return n
}

// servicesIn iterates over the services of namespaces.
func servicesIn(s *snapshot.Snapshot, namespaces []string) iter.Seq[*snapshot.MeshService] {
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
