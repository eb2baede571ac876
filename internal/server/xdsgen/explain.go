package xdsgen

import (
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Target is a port of a service, on which a workload is called.
type Target struct {
	Service *snapshot.MeshService
	Port    snapshot.ServicePort
	Number  uint32 // of the workload's port
}

// Targets are those of a proxy, by the services of its own cluster.
func Targets(s *snapshot.Snapshot, n Node) []Target {
	pod, labels := podOf(s, n)
	var out []Target
	for _, t := range serviceTargets(s, n, pod, labels) {
		svc := s.Services.Get(t.Host)
		if svc == nil {
			continue
		}
		port := snapshot.ServicePort{Number: t.Service, Protocol: t.Protocol}
		if p := svc.Port(t.Service); p != nil {
			port = *p
		}
		out = append(out, Target{Service: svc, Port: port, Number: t.Port})
	}
	return out
}

// Sight is what a proxy may see.
type Sight struct {
	// Sidecar is the one that applies to it, nil without any.
	Sidecar *snapshot.Sidecar
	// Sees reports whether it is given a service.
	Sees func(*snapshot.MeshService) bool
}

// SightOf is that of a proxy. No Sidecar applies to gateways.
func SightOf(s *snapshot.Snapshot, n Node) Sight {
	sc := scope{namespace: n.Namespace}
	if n.ID.Type == mesh.Sidecar {
		_, labels := podOf(s, n)
		sc.sidecar = chooseSidecar(s, n.Namespace, labels)
	}
	return Sight{Sidecar: sc.sidecar, Sees: sc.sees}
}
