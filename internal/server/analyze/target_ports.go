package analyze

import (
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// targetPorts finds the ports of a Service at which no pod listens: names that no pod has, and numbers that
// no pod declares. A pod may listen at a port that it does not declare. A number is therefore found only if
// all pods declare ports, and one of these is for no Service.
func (m *checker) targetPorts(svc *snapshot.Service) {
	if len(svc.Selector) == 0 || svc.ExternalName != "" {
		return
	}
	pods := slices.DeleteFunc(m.selected(svc.Namespace, svc.Selector), func(w *snapshot.Pod) bool { return w.Cluster != svc.Cluster || w.External })
	if len(pods) == 0 {
		return
	}
	var names []string
	for _, w := range pods {
		for _, p := range w.Ports {
			if p.Name != "http-envoy-prom" { // of the proxy
				names = append(names, p.Name)
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	declared := declaredBy(pods)
	for i := range svc.Ports {
		p := &svc.Ports[i]
		field := at("spec.ports", i) + ".targetPort"
		switch {
		case p.Protocol == mesh.UDP:
		case p.TargetName != "" && !slices.Contains(names, p.TargetName) && !m.hasEndpoints(svc, p):
			but, fix := "", m.correct(svc, field, p.TargetName, names)
			if len(names) > 0 {
				but = ", but " + listed(names)
			}
			if fix == "" && len(names) == 1 {
				fix = m.set(svc, field, names[0])
			}
			m.findIn(codes.Error, codes.WrongTargetPort, svc, fix, field, "no pod has a port with the name %s%s: requests to port %d fail", p.TargetName, but, p.Number)
		case p.TargetName == "" && !svc.Headless && !slices.Contains(declared, pods[0].TargetPort(p)):
			unused, fix := m.withoutTargets(pods, declared), ""
			if len(unused) == 0 {
				continue
			}
			if len(unused) == 1 {
				fix = m.add(svc, field, unused[0])
			}
			m.findFix(codes.WrongTargetPort, svc, fix, field, "is %d, but the pods declare only %s: if nothing listens at %[1]d, requests to port %[3]d fail with 503",
				pods[0].TargetPort(p), numbersText(declared), p.Number)
		}
	}
}

// hasEndpoints reports whether a Service has endpoints at a port in its cluster.
func (m *checker) hasEndpoints(svc *snapshot.Service, p *snapshot.ServicePort) bool {
	whole := m.Snapshot.Services.Get(mesh.ServiceHost(svc.Name, svc.Namespace, mesh.DefaultDomain))
	return whole != nil && slices.ContainsFunc(m.endpoints(whole, p.Number), func(e *snapshot.Endpoint) bool { return e.Cluster == svc.Cluster })
}

// declaredBy returns the ports that pods declare, sorted, or nil if one of them declares none or has no
// proxy.
func declaredBy(pods []*snapshot.Pod) []uint32 {
	var out []uint32
	for _, w := range pods {
		if w.Injection == nil || w.Injection.Proxy == "" || len(w.Injection.Ports) == 0 {
			return nil
		}
		out = append(out, w.Injection.Ports...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// withoutTargets returns the ports to which no Service of the pods sends requests.
func (m *checker) withoutTargets(pods []*snapshot.Pod, ports []uint32) []uint32 {
	targets := map[uint32]bool{}
	for _, w := range pods {
		for _, svc := range m.servicesOf(w) {
			for i := range svc.Ports {
				if p := &svc.Ports[i]; p.Protocol != mesh.UDP {
					targets[w.TargetPort(p)] = true
				}
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(ports), func(number uint32) bool { return targets[number] })
}
