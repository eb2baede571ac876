package analyze

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// isElsewhere reports whether a workload gets its configuration from the control plane of another
// cluster, with the objects and Secrets of that cluster.
func (m *checker) isElsewhere(p *snapshot.Pod) bool { return m.elsewhere[p.Cluster] }

// gateways checks the Gateways.
func (m *checker) gateways() {
	for _, gw := range m.Snapshot.GatewayConfigs {
		proxies := m.selected("", gw.Spec.GetSelector())
		if len(proxies) == 0 && len(m.workloads) > 0 {
			m.findFix(codes.ReferencedResourceNotFound, gw, m.correctLabel(gw, "spec.selector", "", gw.Spec.GetSelector()), "spec.selector", "selects no workload: there is none with the labels %s", labelText(gw.Spec.GetSelector()))
		}
		proxies = slices.DeleteFunc(proxies, m.isElsewhere)
		servers := snapshot.GatewayServers(gw)
		for i := range servers {
			field := at("spec.servers", i)
			m.exposed(gw, field, &servers[i], proxies)
			m.credentials(gw, field+".tls", servers[i].GetTls(), proxies)
			m.certificateNames(gw, field, &servers[i], proxies)
			m.routed(gw, field, &servers[i])
		}
		m.accounts(gw, servers, proxies)
	}
	m.sharedCertificates()
}

// exposed checks that a Service of the gateway's workloads exposes the port of a server.
// Without any Service, clients reach the workloads in another way.
func (m *checker) exposed(gw *snapshot.Gateway, field string, s *snapshot.GatewayServer, proxies []*snapshot.Pod) {
	number := s.GetPort().GetNumber()
	if snapshot.IsUnixSocket(s.GetBind()) {
		return
	}
	var names []string
	for _, p := range proxies {
		for _, svc := range m.servicesOf(p) {
			for i := range svc.Ports {
				port := &svc.Ports[i]
				if port.Protocol != mesh.UDP && (port.Number == number || p.TargetPort(port) == number) {
					return
				}
			}
			if name := nameOf(svc); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if len(names) > 0 {
		m.find(codes.GatewayPortNotDefinedOnService, gw, field+".port.number", "%d is no port of the Services of its workloads: %s", number, listed(names))
	}
}

// servicesOf returns the Services of Kubernetes that select a workload, oldest first.
func (m *checker) servicesOf(w *snapshot.Pod) []*snapshot.Service {
	var out []*snapshot.Service
	for k, v := range w.Labels {
		for _, svc := range m.selecting[label{w.Namespace, k, v}] {
			if svc.Cluster == w.Cluster && snapshot.Selects(svc.Selector, w.Labels) {
				out = append(out, svc)
			}
		}
	}
	slices.SortFunc(out, func(a, b *snapshot.Service) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name))
	})
	return out
}

// routed checks that some VirtualService has routes for a server. A server that redirects,
// or passes mTLS on by its server name, needs none.
func (m *checker) routed(gw *snapshot.Gateway, field string, s *snapshot.GatewayServer) {
	if s.GetTls().GetHttpsRedirect() || s.GetTls().GetMode() == networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH {
		return
	}
	for _, v := range until(m, m.virtual) {
		if slices.Contains(v.Gateways, s.GatewayName()) && (serves(s, v) || hostFor(s, v) >= 0) || serves(s, v) && m.mistakes(v, s.GatewayName()) {
			return
		}
	}
	m.find(codes.GatewayServerWithoutRoutes, gw, field, "no VirtualService routes the calls to %s: clients get %s", hostsText(s.Hosts), answerOf(s))
}

// mistakes reports whether a VirtualService names a Gateway that does not exist, and probably means this one.
func (m *checker) mistakes(v *snapshot.VirtualService, gateway string) bool {
	return slices.ContainsFunc(v.Gateways, func(name string) bool {
		return name != snapshot.MeshGateway && m.gatewayNamed(name) == nil && m.nearestGateway(name) == gateway
	})
}

// answerOf returns what clients get from a server without routes.
func answerOf(s *snapshot.GatewayServer) string {
	if s.PlainHTTP() || s.Protocol == mesh.HTTPS && !snapshot.PassesTLS(s.GetTls()) {
		return "404"
	}
	return "no answer"
}

// sharedCertificates finds the servers of different Gateways of the same workloads with the
// same certificate. Clients may reuse a connection for both, and one Gateway does not know
// the hosts of the other.
func (m *checker) sharedCertificates() {
	type use struct {
		gateway *snapshot.Gateway
		server  *snapshot.GatewayServer
	}
	uses := map[string][]use{}
	for _, gw := range m.Snapshot.GatewayConfigs {
		servers := snapshot.GatewayServers(gw)
		for i := range servers {
			s := &servers[i]
			name := s.GetTls().GetCredentialName()
			if name == "" || s.Protocol != mesh.HTTPS || snapshot.PassesTLS(s.GetTls()) {
				continue
			}
			first := slices.IndexFunc(uses[name], func(u use) bool {
				return u.gateway != gw && sameAddress(u.server, s) &&
					(snapshot.Selects(u.gateway.Spec.GetSelector(), gw.Spec.GetSelector()) || snapshot.Selects(gw.Spec.GetSelector(), u.gateway.Spec.GetSelector()))
			})
			if first >= 0 {
				m.find(codes.GatewayDuplicateCertificate, gw, at("spec.servers", i)+".tls.credentialName",
					"Gateway %s uses the certificate, too: browsers that reuse a connection for both get 404", nameOf(uses[name][first].gateway))
			}
			uses[name] = append(uses[name], use{gw, s})
		}
	}
}

// sameAddress reports whether a client may reach two servers of one gateway at one address.
func sameAddress(a, b *snapshot.GatewayServer) bool {
	x, y := a.GetBind(), b.GetBind()
	if snapshot.IsUnixSocket(x) || snapshot.IsUnixSocket(y) {
		return x == y
	}
	all := func(bind string) bool {
		ip, err := netip.ParseAddr(bind)
		return err != nil || ip.IsUnspecified()
	}
	return a.GetPort().GetNumber() == b.GetPort().GetNumber() && (x == y || all(x) || all(y))
}
