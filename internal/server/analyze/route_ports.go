package analyze

import (
	"fmt"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// routePorts holds the numbers of the ports of a VirtualService's hosts by the routes that
// apply to them. A port whose protocol proxies detect is in both.
type routePorts struct {
	http, streams []uint32
	// served reports whether some port has HTTP or a protocol that proxies detect.
	served bool
}

// routePortsOf returns false if the ports are not known, because of a wildcard or of a host
// that is no service.
func (m *checker) routePortsOf(v *snapshot.VirtualService) (out routePorts, known bool) {
	out.http = []uint32{80} // hosts without this port have routes at it, too
	for _, host := range v.Hosts {
		svc := m.Snapshot.Services.Get(host)
		if svc == nil || len(svc.Rivals) > 0 || svc.ExternalName != "" {
			return routePorts{}, false
		}
		for i := range svc.Ports {
			p := &svc.Ports[i]
			if p.Protocol.IsHTTP() || p.Protocol == mesh.Auto {
				out.http, out.served = append(out.http, p.Number), true
			}
			if !p.Protocol.IsHTTP() && p.Protocol != mesh.UDP {
				out.streams = append(out.streams, p.Number)
			}
		}
	}
	return out, len(v.Hosts) > 0
}

// routesWithoutPort finds the matches and routes of a VirtualService for sidecars that are
// for ports without such routes.
func (m *checker) routesWithoutPort(v *snapshot.VirtualService) {
	if !slices.Equal(v.Gateways, []string{snapshot.MeshGateway}) {
		return
	}
	ports, known := m.routePortsOf(v)
	if !known {
		return
	}
	check := func(field string, number uint32, of []uint32, kind string) {
		if number != 0 && !slices.Contains(of, number) {
			fix := ""
			if only := m.portsOf(v, of); len(only) == 1 {
				fix = m.set(v, field+".port", only[0])
			}
			m.findFix(codes.RouteWithoutPort, v, fix, field+".port", "%d is no port with %s of %s: the match never applies", number, kind, hostsText(v.Hosts))
		}
	}
	if len(v.HTTP) > 0 && !ports.served && len(ports.streams) > 0 {
		m.findFix(codes.RouteWithoutPort, v, m.declareHTTP(v), "spec.http", "no port of %s has HTTP: requests through its ports %s are plain TCP connections, to which the routes never apply",
			hostsText(v.Hosts), m.portsText(v, ports.streams))
		return
	}
	for i, r := range v.HTTP {
		for j, match := range r.GetMatch() {
			check(at(at("spec.http", i)+".match", j), match.GetPort(), ports.http, "HTTP")
		}
	}
	const streams = "TCP or TLS"
	if len(v.TLS)+len(v.TCP) > 0 && len(ports.streams) == 0 {
		field := "spec.tcp"
		if len(v.TCP) == 0 {
			field = "spec.tls"
		}
		m.find(codes.RouteWithoutPort, v, field, "no port of %s has %s: the routes never apply", hostsText(v.Hosts), streams)
		return
	}
	for i, r := range v.TLS {
		for j, match := range r.GetMatch() {
			check(at(at("spec.tls", i)+".match", j), match.GetPort(), ports.streams, streams)
		}
	}
	for i, r := range v.TCP {
		for j, match := range r.GetMatch() {
			check(at(at("spec.tcp", i)+".match", j), match.GetPort(), ports.streams, streams)
		}
	}
}

// portsText lists ports with their names in the hosts of a VirtualService.
func (m *checker) portsText(v *snapshot.VirtualService, numbers []uint32) string {
	var out []string
	for _, n := range numbers {
		text := fmt.Sprint(n)
		for _, host := range v.Hosts {
			if svc := m.Snapshot.Services.Get(host); svc != nil && svc.Port(n) != nil && svc.Port(n).Name != "" {
				text = fmt.Sprintf("%d (%s)", n, svc.Port(n).Name)
			}
		}
		out = append(out, text)
	}
	return listed(out)
}

func numbersText(numbers []uint32) string {
	var out []string
	for _, n := range numbers {
		out = append(out, fmt.Sprint(n))
	}
	return listed(out)
}

// portsOf returns those of a list of ports that a host of a VirtualService has.
func (m *checker) portsOf(v *snapshot.VirtualService, of []uint32) []uint32 {
	return slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(of))), func(number uint32) bool {
		return !slices.ContainsFunc(v.Hosts, func(host string) bool {
			svc := m.Snapshot.Services.Get(host)
			return svc != nil && svc.Port(number) != nil
		})
	})
}

// declareHTTP returns the command that declares HTTP for the only port of the only host of a VirtualService,
// and the command for the other way. It returns "" if there are several, or no Service of Kubernetes.
func (m *checker) declareHTTP(v *snapshot.VirtualService) string {
	if len(v.Hosts) != 1 {
		return ""
	}
	svc := m.Snapshot.Services.Get(v.Hosts[0])
	if svc == nil {
		return ""
	}
	for _, o := range m.services[svc.Namespace] {
		if o.Name == svc.Name && o.Cluster == m.Snapshot.Mesh.LocalCluster && len(o.Ports) == 1 && !svc.Entry {
			fix := m.add(o, "spec.ports[0].appProtocol", "http")
			if o.ReadFrom().File == "" {
				fix += fmt.Sprintf(" # or, if it has not HTTP, use tcp routes: %s edit virtualservice %s", m.kubectl(v.Cluster, v.Namespace), v.Name)
			}
			return fix
		}
	}
	return ""
}
