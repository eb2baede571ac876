package xdsgen

import (
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// scope says which services a proxy sees: by its namespace, for exportTo, and
// by the Sidecar that applies to it. It is comparable; the namespace is empty
// when it makes no difference.
type scope struct {
	namespace string
	sidecar   *snapshot.Sidecar
}

// egress are the Sidecar's egress listeners, none without a Sidecar.
func (sc scope) egress() []*networkingv1alpha3.IstioEgressListener {
	if sc.sidecar == nil {
		return nil
	}
	return sc.sidecar.Spec.GetEgress()
}

// policy is what the Sidecar says of destinations that nobody describes, nil
// when it leaves that to the mesh.
func (sc scope) policy() *networkingv1alpha3.OutboundTrafficPolicy {
	if sc.sidecar == nil {
		return nil
	}
	return sc.sidecar.Spec.GetOutboundTrafficPolicy()
}

// ownsPort reports whether the Sidecar has an egress listener of its own at
// the port, beside which services get none there.
func (sc scope) ownsPort(number uint32) bool {
	for _, e := range sc.egress() {
		if e.GetPort().GetNumber() == number {
			return true
		}
	}
	return false
}

// reserved reports whether a wildcard listener at the port would take the
// place of one that every captured proxy has.
func reserved(port uint32) bool {
	switch port {
	case mesh.PortOutbound, mesh.PortInbound, mesh.PortEnvoyReadiness, mesh.PortEnvoyPrometheus:
		return true
	}
	return false
}

// sees reports whether the service is visible through any egress listener.
func (sc scope) sees(svc *snapshot.MeshService) bool {
	if !svc.VisibleTo(sc.namespace) {
		return false
	}
	egress := sc.egress()
	if len(egress) == 0 {
		return true
	}
	for _, e := range egress {
		if hostsMatch(e.GetHosts(), svc, sc.namespace) {
			return true
		}
	}
	return false
}

// seesThrough reports whether the service is visible through these hosts.
func (sc scope) seesThrough(hosts []string, svc *snapshot.MeshService) bool {
	return svc.VisibleTo(sc.namespace) && hostsMatch(hosts, svc, sc.namespace)
}

// hostsMatch reports whether an egress host list, each <namespace>/<host>,
// names the service. own is what "." stands for.
func hostsMatch(hosts []string, svc *snapshot.MeshService, own string) bool {
	for _, h := range hosts {
		ns, host, ok := strings.Cut(h, "/")
		if !ok {
			ns, host = "*", h
		}
		switch ns {
		case "~":
			continue
		case ".":
			ns = own
		}
		if (ns == "*" || ns == svc.Namespace) && hostMatches(host, svc.Host) {
			return true
		}
	}
	return false
}

// hostMatches reports whether a host name, which may start with "*", covers
// another.
func hostMatches(pattern, host string) bool {
	if suffix, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasSuffix(host, suffix)
	}
	return pattern == host
}

// chooseSidecar finds the Sidecar of a workload: the oldest of its namespace
// that selects it, else the oldest there without a selector, else that of the
// root namespace.
func chooseSidecar(s *snapshot.Snapshot, namespace string, labels map[string]string) *snapshot.Sidecar {
	ns := s.Namespaces.Get(namespace)
	if ns != nil {
		for _, sc := range ns.Sidecars {
			if sel := sc.Spec.GetWorkloadSelector().GetLabels(); len(sel) > 0 && snapshot.Selects(sel, labels) {
				return sc
			}
		}
	}
	for _, facts := range []*snapshot.NamespaceFacts{ns, s.Namespaces.Get(s.Mesh.RootNamespace)} {
		if facts == nil {
			continue
		}
		for _, sc := range facts.Sidecars {
			if len(sc.Spec.GetWorkloadSelector().GetLabels()) == 0 {
				return sc
			}
		}
	}
	return nil
}

// Visibility is what a proxy may see.
type Visibility struct {
	// Sidecar is the one that applies to it, nil without any.
	Sidecar *snapshot.Sidecar
	// Sees reports whether it is given a service.
	Sees func(*snapshot.MeshService) bool
}

// VisibilityOf is that of a proxy. No Sidecar applies to gateways.
func VisibilityOf(s *snapshot.Snapshot, n Node) Visibility {
	sc := scope{namespace: n.Namespace}
	if n.ID.Type == mesh.Sidecar {
		_, labels := podOf(s, n)
		sc.sidecar = chooseSidecar(s, n.Namespace, labels)
	}
	return Visibility{Sidecar: sc.sidecar, Sees: sc.sees}
}
