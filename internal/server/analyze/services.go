package analyze

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// kubernetesServices checks the Services of Kubernetes.
func (m *checker) kubernetesServices() {
	for _, all := range m.services {
		byName := map[string][]*snapshot.Service{}
		for _, svc := range all {
			byName[svc.Name] = append(byName[svc.Name], svc)
			m.portNames(svc)
			m.targetPorts(svc)
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
			near, level, fix := misspelledHTTP(p.Name), codes.Level(""), ""
			if near != "" {
				level, fix = codes.Warning, m.add(svc, at("spec.ports", i)+".appProtocol", near)
			}
			m.findIn(level, codes.PortNameIsNotUnderNamingConvention, svc, fix, at("spec.ports", i), "port %d has no known protocol, by appProtocol or else by its name: proxies detect it from the first bytes of each connection%s", p.Number, didYouMean(near))
		}
	}
}

// misspelledHTTP returns the protocol with HTTP that the name of a port probably means, or "". Such names
// begin with the letter of the protocol: a port with the name rpc may have any protocol.
func misspelledHTTP(name string) string {
	first, _, _ := strings.Cut(name, "-")
	near := nearest(first, []string{"http", "http2", "https", "grpc"})
	if near == "" || len(first) < len(near)-1 || first[0] != near[0] {
		return ""
	}
	return near
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
	m.find(codes.ServiceWithoutEndpoints, svc, "spec.selector", "selects no workload%s: requests to %s fail", cmp.Or(m.where(), " in any cluster"), host)
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
				m.find(codes.DeploymentAssociatedToMultipleServices, svc, at("spec.ports", i), "sends %s to port %d, to which Service %s sends %s",
					p.Protocol, number, nameOf(other.svc), other.port.Protocol)
			}
		}
	}
}

// inconsistent finds the Services of one name that differ between clusters.
func (m *checker) inconsistent(same []*snapshot.Service) {
	for _, svc := range same[1:] {
		if what := difference(same[0], svc); what != "" {
			text, fix := m.whichService(same[0], svc)
			m.findFix(codes.MultiClusterInconsistentService, svc, fix, "", "differs from the Service of the same name in cluster %s: %s%s", same[0].Cluster, what, text)
		}
	}
}

// whichService says which of two Services of one name is right, if that is known, and returns the command
// that makes them equal. VirtualServices show which protocol their author expects.
func (m *checker) whichService(a, b *snapshot.Service) (text, fix string) {
	right, wrong, why := a, b, ""
	if ofB := m.expects(b); m.expects(a) != ofB {
		why = "a VirtualService has routes for its protocol"
		if ofB {
			right, wrong = b, a
		}
	}
	here, there := m.makeEqual(wrong, right), m.makeEqual(right, wrong)
	if here != "" && there != "" {
		fix = here + " # or, if cluster " + string(wrong.Cluster) + " is right: " + there
	}
	if why == "" {
		return "; clients in each cluster use that of their own cluster", fix
	}
	return fmt.Sprintf("; that of cluster %s is probably right: %s", right.Cluster, why), fix
}

// expects reports whether a VirtualService has routes for the protocol of a Service: for requests, if it has
// ports with HTTP, for connections, if it has none.
func (m *checker) expects(svc *snapshot.Service) bool {
	host := mesh.ServiceHost(svc.Name, svc.Namespace, mesh.DefaultDomain)
	http := slices.ContainsFunc(svc.Ports, func(p snapshot.ServicePort) bool { return p.Protocol.IsHTTP() || p.Protocol == mesh.Auto })
	return slices.ContainsFunc(m.virtual, func(v *snapshot.VirtualService) bool {
		return slices.Contains(v.Hosts, host) && (http && len(v.HTTP) > 0 || !http && len(v.TCP)+len(v.TLS) > 0)
	})
}

// makeEqual returns the command that makes a Service like another one, or "" if there is no simple one.
func (m *checker) makeEqual(svc, like *snapshot.Service) string {
	if svc.ReadFrom().File != "" || svc.Headless != like.Headless || svc.ExternalName != like.ExternalName {
		return ""
	}
	kubectl := m.kubectl(svc.Cluster, svc.Namespace)
	if !slices.Equal(svc.ExportTo, like.ExportTo) {
		if len(like.ExportTo) == 0 {
			return fmt.Sprintf("%s annotate service %s %s-", kubectl, svc.Name, mesh.AnnotationExportTo)
		}
		return fmt.Sprintf("%s annotate service %s %s=%s --overwrite", kubectl, svc.Name, mesh.AnnotationExportTo, strings.Join(like.ExportTo, ","))
	}
	if len(svc.Ports) != len(like.Ports) {
		return ""
	}
	var patches []string
	for i := range svc.Ports {
		p, want := &svc.Ports[i], &like.Ports[i]
		switch {
		case p.Protocol == want.Protocol:
		case want.Protocol == mesh.Auto:
			return ""
		default:
			patches = append(patches, fmt.Sprintf(`{"op":"add","path":"/spec/ports/%d/appProtocol","value":"%s"}`, i, strings.ToLower(string(want.Protocol))))
		}
		if p.Number != want.Number {
			patches = append(patches, fmt.Sprintf(`{"op":"replace","path":"/spec/ports/%d/port","value":%d}`, i, want.Number))
		}
	}
	return patchCommand(kubectl, svc.Key(), patches...)
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
