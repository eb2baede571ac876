package xdsgen

import (
	"iter"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// scope determines the services that a proxy sees, by its namespace (exportTo) and its
// Sidecar. It is comparable. The namespace is empty if it makes no difference.
type scope struct {
	namespace string
	sidecar   *snapshot.Sidecar
	only      visibility
	// listener is the number of the only egress listener that counts, from 1; 0 means all.
	listener int
}

// visibility restricts a scope to some services.
type visibility uint8

const (
	allServices     visibility = iota
	publicServices             // those that all namespaces see
	privateServices            // all others
)

// egress returns the Sidecar's egress listeners.
func (sc scope) egress() []*networkingv1alpha3.IstioEgressListener {
	if sc.sidecar == nil {
		return nil
	}
	if sc.listener > 0 {
		return sc.sidecar.Spec.GetEgress()[sc.listener-1 : sc.listener]
	}
	return sc.sidecar.Spec.GetEgress()
}

// through returns the scope of an egress listener of the Sidecar.
func (sc scope) through(listener int) scope {
	sc.listener = listener + 1
	return sc
}

// atPort returns the scope of the egress listener that decides about a port number: the one with
// this port, else the one without a port. ok is false if the Sidecar has neither.
func (sc scope) atPort(number uint32) (at scope, ok bool) {
	egress := sc.egress()
	if len(egress) == 0 {
		return sc, true
	}
	i := slices.IndexFunc(egress, func(e *networkingv1alpha3.IstioEgressListener) bool { return ownsPort(e, number) })
	if i < 0 {
		i = slices.IndexFunc(egress, hasNoPort)
	}
	if i < 0 || len(egress) == 1 {
		return sc, i >= 0
	}
	return sc.through(i), true
}

// portsOf returns the port numbers of a service at which the proxy sees it.
func (sc scope) portsOf(svc *snapshot.MeshService) []uint32 {
	var out []uint32
	for i := range svc.Ports {
		number := svc.Ports[i].Number
		if at, ok := sc.atPort(number); ok && at.sees(svc) {
			out = append(out, number)
		}
	}
	return out
}

// hosts returns the hosts of an egress listener.
func (sc scope) hosts(e *networkingv1alpha3.IstioEgressListener) snapshot.EgressHosts {
	return snapshot.EgressHosts{Hosts: e.GetHosts(), Own: sc.namespace}
}

// imports reports whether an egress listener imports a VirtualService with hosts, or the Sidecar has none.
func (sc scope) imports(namespace string, routed []string) bool {
	egress := sc.egress()
	return len(egress) == 0 || slices.ContainsFunc(egress, func(e *networkingv1alpha3.IstioEgressListener) bool {
		return sc.hosts(e).ImportsSome(namespace, routed)
	})
}

// importsFor reports whether an egress listener imports a VirtualService and does not exclude
// a host of it, or the Sidecar has none.
func (sc scope) importsFor(host string, vs *snapshot.VirtualService) bool {
	egress := sc.egress()
	return len(egress) == 0 || slices.ContainsFunc(egress, func(e *networkingv1alpha3.IstioEgressListener) bool {
		hosts := sc.hosts(e)
		return hosts.ImportsSome(vs.Namespace, vs.Hosts) && !hosts.Excludes(vs.Namespace, host)
	})
}

// importsAll reports whether each egress listener imports all hosts, or the Sidecar has none.
func (sc scope) importsAll() bool {
	return !slices.ContainsFunc(sc.egress(), func(e *networkingv1alpha3.IstioEgressListener) bool { return !sc.hosts(e).ImportsAll() })
}

// anyPort returns the egress listener without a port, or nil.
func (sc scope) anyPort() *networkingv1alpha3.IstioEgressListener {
	egress := sc.egress()
	if i := slices.IndexFunc(egress, hasNoPort); i >= 0 {
		return egress[i]
	}
	return nil
}

// policy returns the Sidecar's policy for unknown destinations. Nil means the mesh's
// policy.
func (sc scope) policy() *networkingv1alpha3.OutboundTrafficPolicy {
	if sc.sidecar == nil {
		return nil
	}
	return sc.sidecar.Spec.GetOutboundTrafficPolicy()
}

// ownsPort reports whether the Sidecar has an egress listener at the port. Services then
// get no listeners there.
func (sc scope) ownsPort(number uint32) bool {
	return slices.ContainsFunc(sc.egress(), func(e *networkingv1alpha3.IstioEgressListener) bool { return ownsPort(e, number) })
}

// ownsPort reports whether an egress listener takes the connections to a port. One at a Unix socket
// takes none of them.
func ownsPort(e *networkingv1alpha3.IstioEgressListener, number uint32) bool {
	return e.GetPort().GetNumber() == number && !isUnixListener(e)
}

// reserved reports whether a wildcard listener at the port would conflict with a listener
// of every captured proxy.
func reserved(m *snapshot.Mesh, port uint32) bool {
	switch port {
	case m.OutboundPort, m.InboundPort, mesh.PortEnvoyReadiness, mesh.PortEnvoyPrometheus:
		return true
	}
	return false
}

// accepts reports whether a proxy accepts connections for a port of its workload. It accepts
// none for ports of its own: it would call its own listeners without end, or open its admin interface
// and its agent to other machines.
func accepts(m *snapshot.Mesh, n Node, port uint32) bool {
	return !reserved(m, port) && !mesh.IsProxyPort(port) && !slices.Contains(n.Ports, port)
}

// sees reports whether the proxy sees the service through any egress listener.
func (sc scope) sees(svc *snapshot.MeshService) bool {
	switch sc.only {
	case publicServices:
		if svc.Private() {
			return false
		}
	case privateServices:
		if !svc.Private() {
			return false
		}
	}
	if !svc.VisibleTo(sc.namespace) {
		return false
	}
	egress := sc.egress()
	if len(egress) == 0 {
		return true
	}
	for _, e := range egress {
		if sc.hosts(e).Imports(svc.Namespace, svc.Host) {
			return true
		}
	}
	return false
}

// importsRouteTo reports whether the Sidecar imports a VirtualService that routes to the service.
// The proxy then has clusters of the service, without seeing it.
func (sc scope) importsRouteTo(s *snapshot.Snapshot, svc *snapshot.MeshService) bool {
	r := s.Referrers.Get(svc.Host)
	if len(sc.egress()) == 0 || r == nil || !svc.VisibleTo(sc.namespace) {
		return false
	}
	for i := range r.Services {
		vs := &r.Services[i]
		if vs.VisibleTo(sc.namespace) && sc.imports(vs.Namespace, vs.Hosts) {
			return true
		}
	}
	return false
}

// namespaces returns the namespaces that have all visible services, each once. It returns
// nil if any namespace may have them.
func (sc scope) namespaces() []string {
	var out []string
	for _, e := range sc.egress() {
		for _, h := range e.GetHosts() {
			switch entry := snapshot.ParseEgressHost(h, sc.namespace); {
			case entry.Excludes || slices.Contains(out, entry.Namespace):
			case entry.Namespace == "*":
				return nil
			default:
				out = append(out, entry.Namespace)
			}
		}
	}
	return out
}

// chooseSidecar returns the Sidecar of a workload: the oldest in its namespace that
// selects it, else the oldest there without a selector, else the oldest without a
// selector in the root namespace.
func chooseSidecar(s *snapshot.Snapshot, namespace string, labels map[string]string) *snapshot.Sidecar {
	ns := s.Namespaces.Get(namespace)
	for sc := range sidecars(ns) {
		if sel := sc.Spec.GetWorkloadSelector().GetLabels(); len(sel) > 0 && snapshot.Selects(sel, labels) {
			return sc
		}
	}
	for _, facts := range []*snapshot.NamespaceFacts{ns, s.Namespaces.Get(s.Mesh.RootNamespace)} {
		for sc := range sidecars(facts) {
			if len(sc.Spec.GetWorkloadSelector().GetLabels()) == 0 {
				return sc
			}
		}
	}
	return nil
}

func sidecars(ns *snapshot.NamespaceFacts) iter.Seq[*snapshot.Sidecar] {
	return snapshot.Policies[*networkingv1alpha3.Sidecar](ns, snapshot.KindSidecar)
}

// Visibility determines the services that a proxy sees.
type Visibility struct {
	// Sidecar is the proxy's Sidecar, or nil.
	Sidecar *snapshot.Sidecar
	// Sees reports whether the proxy sees a service, or gets it as the destination of a
	// VirtualService.
	Sees func(*snapshot.MeshService) bool
}

// VisibilityOf returns the visibility of a proxy. Gateways have no Sidecar.
func VisibilityOf(s *snapshot.Snapshot, n Node) Visibility {
	sc := scope{namespace: n.Namespace}
	if n.ID.Type == mesh.Sidecar {
		_, labels := podOf(s, n)
		sc.sidecar = chooseSidecar(s, n.Namespace, labels)
	}
	return Visibility{Sidecar: sc.sidecar, Sees: func(svc *snapshot.MeshService) bool { return sc.sees(svc) || sc.importsRouteTo(s, svc) }}
}
