package proxy

import (
	"iter"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Scope determines the services that a proxy sees, by its namespace (exportTo) and its
// Sidecar. It is comparable. The namespace is empty if it makes no difference.
type Scope struct {
	Namespace string
	Sidecar   *snapshot.Sidecar
	Only      visibility
	// listener is the number of the only egress listener that counts, from 1; 0 means all.
	listener int
}

// visibility restricts a scope to some services.
type visibility uint8

// The services that a scope may be restricted to.
const (
	allServices     visibility = iota
	PublicServices             // those that all namespaces see
	PrivateServices            // all others
)

// Egress returns the Sidecar's egress listeners.
func (sc Scope) Egress() []*networkingv1alpha3.IstioEgressListener {
	if sc.Sidecar == nil {
		return nil
	}
	if sc.listener > 0 {
		return sc.Sidecar.Spec.GetEgress()[sc.listener-1 : sc.listener]
	}
	return sc.Sidecar.Spec.GetEgress()
}

// Through returns the scope of an egress listener of the Sidecar.
func (sc Scope) Through(listener int) Scope {
	sc.listener = listener + 1
	return sc
}

// AtPort returns the scope of the egress listener that decides about a port number: the one with
// this port, else the one without a port. ok is false if the Sidecar has neither.
func (sc Scope) AtPort(number uint32) (at Scope, ok bool) {
	egress := sc.Egress()
	if len(egress) == 0 {
		return sc, true
	}
	i := slices.IndexFunc(egress, func(e *networkingv1alpha3.IstioEgressListener) bool { return ownsPort(e, number) })
	if i < 0 {
		i = slices.IndexFunc(egress, HasNoPort)
	}
	if i < 0 || len(egress) == 1 {
		return sc, i >= 0
	}
	return sc.Through(i), true
}

// PortsOf returns the port numbers of a service at which the proxy sees it.
func (sc Scope) PortsOf(svc *snapshot.MeshService) []uint32 {
	var out []uint32
	for i := range svc.Ports {
		number := svc.Ports[i].Number
		if at, ok := sc.AtPort(number); ok && at.Sees(svc) {
			out = append(out, number)
		}
	}
	return out
}

// hosts returns the hosts of an egress listener.
func (sc Scope) hosts(e *networkingv1alpha3.IstioEgressListener) snapshot.EgressHosts {
	return snapshot.EgressHosts{Hosts: e.GetHosts(), Own: sc.Namespace}
}

// imports reports whether an egress listener imports a VirtualService with hosts, or the Sidecar has none.
func (sc Scope) imports(namespace string, routed []string) bool {
	egress := sc.Egress()
	return len(egress) == 0 || slices.ContainsFunc(egress, func(e *networkingv1alpha3.IstioEgressListener) bool {
		return sc.hosts(e).ImportsSome(namespace, routed)
	})
}

// ImportsFor reports whether an egress listener imports a VirtualService and does not exclude
// a host of it, or the Sidecar has none.
func (sc Scope) ImportsFor(host string, vs *snapshot.VirtualService) bool {
	egress := sc.Egress()
	return len(egress) == 0 || slices.ContainsFunc(egress, func(e *networkingv1alpha3.IstioEgressListener) bool {
		hosts := sc.hosts(e)
		return hosts.ImportsSome(vs.Namespace, vs.Hosts) && !hosts.Excludes(vs.Namespace, host)
	})
}

// ImportsAll reports whether each egress listener imports all hosts, or the Sidecar has none.
func (sc Scope) ImportsAll() bool {
	return !slices.ContainsFunc(sc.Egress(), func(e *networkingv1alpha3.IstioEgressListener) bool { return !sc.hosts(e).ImportsAll() })
}

// AnyPort returns the egress listener without a port, or nil.
func (sc Scope) AnyPort() *networkingv1alpha3.IstioEgressListener {
	egress := sc.Egress()
	if i := slices.IndexFunc(egress, HasNoPort); i >= 0 {
		return egress[i]
	}
	return nil
}

// Policy returns the Sidecar's policy for unknown destinations. Nil means the mesh's
// policy.
func (sc Scope) Policy() *networkingv1alpha3.OutboundTrafficPolicy {
	if sc.Sidecar == nil {
		return nil
	}
	return sc.Sidecar.Spec.GetOutboundTrafficPolicy()
}

// OwnsPort reports whether the Sidecar has an egress listener at the port. Services then
// get no listeners there.
func (sc Scope) OwnsPort(number uint32) bool {
	return slices.ContainsFunc(sc.Egress(), func(e *networkingv1alpha3.IstioEgressListener) bool { return ownsPort(e, number) })
}

// ownsPort reports whether an egress listener takes the connections to a port. One at a Unix socket
// takes none of them.
func ownsPort(e *networkingv1alpha3.IstioEgressListener, number uint32) bool {
	return e.GetPort().GetNumber() == number && !IsUnixListener(e)
}

// Reserved reports whether a wildcard listener at the port would conflict with a listener
// of every captured proxy.
func Reserved(m *snapshot.Mesh, port uint32) bool {
	switch port {
	case m.OutboundPort, m.InboundPort, mesh.PortEnvoyReadiness, mesh.PortEnvoyPrometheus:
		return true
	}
	return false
}

// Accepts reports whether a proxy accepts connections for a port of its workload. It accepts
// none for ports of its own: it would call its own listeners without end, or open its admin interface
// and its agent to other machines.
func Accepts(m *snapshot.Mesh, n Node, port uint32) bool {
	return !Reserved(m, port) && !mesh.IsProxyPort(port) && !slices.Contains(n.Ports, port)
}

// Sees reports whether the proxy sees the service through any egress listener.
func (sc Scope) Sees(svc *snapshot.MeshService) bool {
	switch sc.Only {
	case PublicServices:
		if svc.Private() {
			return false
		}
	case PrivateServices:
		if !svc.Private() {
			return false
		}
	}
	if !svc.VisibleTo(sc.Namespace) {
		return false
	}
	egress := sc.Egress()
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

// ImportsRouteTo reports whether the Sidecar imports a VirtualService that routes to the service.
// The proxy then has clusters of the service, without seeing it.
func (sc Scope) ImportsRouteTo(s *snapshot.Snapshot, svc *snapshot.MeshService) bool {
	r := s.Referrers.Get(svc.Host)
	if len(sc.Egress()) == 0 || r == nil || !svc.VisibleTo(sc.Namespace) {
		return false
	}
	for i := range r.Services {
		vs := &r.Services[i]
		if vs.VisibleTo(sc.Namespace) && sc.imports(vs.Namespace, vs.Hosts) {
			return true
		}
	}
	return false
}

// Namespaces returns the namespaces that have all visible services, each once. It returns
// nil if any namespace may have them.
func (sc Scope) Namespaces() []string {
	var out []string
	for _, e := range sc.Egress() {
		for _, h := range e.GetHosts() {
			switch entry := snapshot.ParseEgressHost(h, sc.Namespace); {
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

// ChooseSidecar returns the Sidecar of a workload: the oldest in its namespace that
// selects it, else the oldest there without a selector, else the oldest without a
// selector in the root namespace.
func ChooseSidecar(s *snapshot.Snapshot, namespace string, labels map[string]string) *snapshot.Sidecar {
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
	sc := Scope{Namespace: n.Namespace}
	if n.ID.Type == mesh.Sidecar {
		_, labels := PodOf(s, n)
		sc.Sidecar = ChooseSidecar(s, n.Namespace, labels)
	}
	return Visibility{Sidecar: sc.Sidecar, Sees: func(svc *snapshot.MeshService) bool { return sc.Sees(svc) || sc.ImportsRouteTo(s, svc) }}
}
