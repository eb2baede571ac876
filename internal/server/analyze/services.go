package analyze

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// kubernetesServices checks the Services of Kubernetes.
func (m *checker) kubernetesServices() {
	for _, all := range m.services {
		byName := map[string][]*snapshot.Service{}
		for _, svc := range all {
			byName[svc.Name] = append(byName[svc.Name], svc)
			m.portNames(svc)
		}
		for _, same := range byName {
			m.inconsistent(same)
			m.withoutEndpoints(same[0])
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(m.workloads)) {
		for _, w := range m.workloads[namespace] {
			m.sharedPorts(w)
		}
	}
}

// portNames finds the ports whose protocol proxies must detect.
func (m *checker) portNames(svc *snapshot.Service) {
	if svc.ExternalName != "" || mesh.IsKubernetesNamespace(svc.Namespace) {
		return
	}
	for i := range svc.Ports {
		if p := &svc.Ports[i]; p.Protocol == mesh.Auto && p.Number != mesh.PortEnvoyReadiness {
			m.find(PortNameIsNotUnderNamingConvention, svc, at("spec.ports", i), "port %d has no known protocol, by appProtocol or else by its name: proxies detect it from the first bytes of each connection", p.Number)
		}
	}
}

// withoutEndpoints finds a service without endpoints in any cluster. In a mesh without
// workloads it finds nothing.
func (m *checker) withoutEndpoints(svc *snapshot.Service) {
	if len(svc.Selector) == 0 || svc.ExternalName != "" || len(m.workloads) == 0 {
		return
	}
	host := mesh.ServiceHost(svc.Name, svc.Namespace, mesh.DefaultDomain)
	whole := m.Snapshot.Services.Get(host)
	if whole == nil || whole.Entry || len(m.endpoints(whole, 0)) > 0 || len(svc.Ports) == 0 {
		return
	}
	if len(m.selected(svc.Namespace, svc.Selector)) > 0 {
		return // EndpointSlices may be missing in a directory
	}
	m.find(ServiceWithoutEndpoints, svc, "spec.selector", "selects no workload%s: requests to %s fail", cmp.Or(m.where(), " in any cluster"), host)
}

// sharedPorts finds the Services of a workload that send different protocols to one of its
// ports. The first Service decides what its proxy expects.
func (m *checker) sharedPorts(w *snapshot.Pod) {
	type use struct {
		svc  *snapshot.Service
		port *snapshot.ServicePort
	}
	first := map[uint32]use{}
	for _, svc := range m.servicesOf(w) {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			number := w.TargetPort(p)
			if number == 0 || p.Protocol == mesh.UDP {
				continue
			}
			other, used := first[number]
			if !used {
				first[number] = use{svc, p}
				continue
			}
			if other.port.Protocol != p.Protocol {
				m.find(DeploymentAssociatedToMultipleServices, svc, at("spec.ports", i), "sends %s to port %d, to which Service %s sends %s",
					p.Protocol, number, nameOf(other.svc), other.port.Protocol)
			}
		}
	}
}

// inconsistent finds the Services of one name that differ between clusters.
func (m *checker) inconsistent(same []*snapshot.Service) {
	for _, svc := range same[1:] {
		if what := difference(same[0], svc); what != "" {
			m.find(MultiClusterInconsistentService, svc, "", "differs from the Service of the same name in cluster %s: %s", same[0].Cluster, what)
		}
	}
}

// difference names a difference between two Services.
func difference(a, b *snapshot.Service) string {
	switch {
	case a.Headless != b.Headless:
		return "only one of them is headless"
	case a.ExternalName != b.ExternalName:
		return "the external names are not equal"
	case !slices.Equal(a.ExportTo, b.ExportTo):
		return "it is exported to " + exportsText(b.ExportTo) + ", there to " + exportsText(a.ExportTo)
	}
	ports := func(s *snapshot.Service) string {
		var out []string
		for i := range s.Ports {
			out = append(out, fmt.Sprintf("%d (%s)", s.Ports[i].Number, s.Ports[i].Protocol))
		}
		slices.Sort(out)
		return strings.Join(out, ", ")
	}
	if x, y := ports(a), ports(b); x != y {
		return "the ports are " + y + ", there " + x
	}
	return ""
}

func exportsText(namespaces []string) string {
	if len(namespaces) == 0 {
		return "all namespaces"
	}
	return listed(namespaces)
}
