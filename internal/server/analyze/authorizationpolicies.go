package analyze

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// authorization checks the selector of an AuthorizationPolicy and finds rules with fields of
// HTTP at ports without it. It reports one port for each rule.
func (m *checker) authorization(p *snapshot.AuthorizationPolicy, namespace string) {
	selector := p.Spec.GetSelector().GetMatchLabels()
	m.selects(codes.NoMatchingWorkloadsFound, p, "spec.selector.matchLabels", namespace, selector)
	if len(snapshot.TargetsOf(p.Spec)) > 0 {
		return // gateways
	}
	custom := p.Spec.GetAction() == securityv1beta1.AuthorizationPolicy_CUSTOM && m.asksOverHTTP(p.Spec.GetProvider().GetName())
	workloads := m.selected(namespace, selector)
	own := func(w *snapshot.Pod) bool { return w.Cluster == p.Cluster }
	if slices.ContainsFunc(workloads, own) { // those of other clusters probably have a control plane of their own
		workloads = slices.DeleteFunc(slices.Clone(workloads), func(w *snapshot.Pod) bool { return !own(w) })
	}
	for i, r := range p.Spec.GetRules() {
		for _, w := range workloads {
			if number := m.tcpPort(r, w); custom && number != 0 {
				m.find(codes.TCPPortOfHTTPProvider, p, at("spec.rules", i),
					"port %d of workload %s has no HTTP: proxies close its connections, because the provider %s is asked over HTTP", number, nameOf(w), p.Spec.GetProvider().GetName())
				break
			}
			if field, number := m.httpField(r, w); field != "" {
				m.onTCPPort(p, at("spec.rules", i)+field, w, number)
				break
			}
		}
	}
}

// onTCPPort reports a rule with a field of HTTP at a port without it. It is an error if the policy thereby
// denies all connections.
func (m *checker) onTCPPort(p *snapshot.AuthorizationPolicy, field string, w *snapshot.Pod, number uint32) {
	effect, level, fix := "the rule matches its connections without this field", codes.Level(""), ""
	if p.Spec.GetAction() == securityv1beta1.AuthorizationPolicy_ALLOW {
		effect = "the rule matches no connection to it"
		if !m.allowsTCP(w, number) {
			effect, level = "no rule allows its connections, so all of them are denied", codes.Error
		}
	}
	name := ""
	for _, svc := range m.servicesOf(w) {
		for i := range svc.Ports {
			if q := &svc.Ports[i]; w.TargetPort(q) == number && q.Protocol != mesh.UDP && name == "" {
				name = fmt.Sprintf(" (%s of Service %s)", cmp.Or(q.Name, fmt.Sprintf("port %d", q.Number)), nameOf(svc))
				if level == codes.Error && len(svc.Ports) == 1 { // else the policy may be meant for another port
					fix = m.add(svc, at("spec.ports", i)+".appProtocol", "http")
				}
			}
		}
	}
	if fix != "" && p.ReadFrom().File == "" {
		fix += fmt.Sprintf(" # or, if it has not HTTP: %s edit authorizationpolicy %s", m.kubectl(p.Cluster, p.Namespace), p.Name)
	}
	m.findIn(level, codes.HTTPFieldOnTCPPort, p, fix, field, "port %d of workload %s%s has no HTTP: %s", number, nameOf(w), name, effect)
}

// allowsTCP reports whether a rule of an ALLOW policy may match connections to a port of a workload without
// HTTP.
func (m *checker) allowsTCP(w *snapshot.Pod, number uint32) bool {
	for _, namespace := range []string{w.Namespace, m.Snapshot.Mesh.RootNamespace} {
		for p := range snapshot.AuthorizationPolicies(m.Snapshot.Namespaces.Get(namespace)) {
			if p.Spec.GetAction() != securityv1beta1.AuthorizationPolicy_ALLOW || len(snapshot.TargetsOf(p.Spec)) > 0 || !snapshot.Selects(p.Spec.GetSelector().GetMatchLabels(), w.Labels) {
				continue
			}
			if slices.ContainsFunc(p.Spec.GetRules(), func(r *securityv1beta1.Rule) bool { return matchesTCP(r, number) }) {
				return true
			}
		}
	}
	return false
}

// matchesTCP reports whether a rule may match connections without HTTP to a port.
func matchesTCP(r *securityv1beta1.Rule, number uint32) bool {
	for _, c := range r.GetWhen() {
		if strings.HasPrefix(c.GetKey(), "request.") || c.GetKey() == "destination.port" && !includes(c.GetValues(), c.GetNotValues(), number) {
			return false
		}
	}
	from := len(r.GetFrom()) == 0 || slices.ContainsFunc(r.GetFrom(), func(f *securityv1beta1.Rule_From) bool {
		return len(f.GetSource().GetRequestPrincipals())+len(f.GetSource().GetNotRequestPrincipals()) == 0
	})
	return from && (len(r.GetTo()) == 0 || slices.ContainsFunc(r.GetTo(), func(t *securityv1beta1.Rule_To) bool {
		o := t.GetOperation()
		return includes(o.GetPorts(), o.GetNotPorts(), number) &&
			len(o.GetHosts())+len(o.GetNotHosts())+len(o.GetMethods())+len(o.GetNotMethods())+len(o.GetPaths())+len(o.GetNotPaths()) == 0
	}))
}

// httpField returns the first field of a rule that only HTTP has, and a port of a workload
// without HTTP that the rule is for. It returns "" if there is none.
func (m *checker) httpField(r *securityv1beta1.Rule, w *snapshot.Pod) (field string, number uint32) {
	for i, f := range r.GetFrom() {
		if s := f.GetSource(); len(s.GetRequestPrincipals())+len(s.GetNotRequestPrincipals()) > 0 {
			field = at(".from", i) + ".source.requestPrincipals"
		}
	}
	for i, c := range r.GetWhen() {
		if strings.HasPrefix(c.GetKey(), "request.") {
			field = at(".when", i) + ".key"
		}
	}
	for _, number := range m.portsWithoutHTTP(r, w) {
		if len(r.GetTo()) == 0 && field != "" {
			return field, number
		}
		for j, t := range r.GetTo() {
			o := t.GetOperation()
			if !includes(o.GetPorts(), o.GetNotPorts(), number) {
				continue
			}
			switch {
			case len(o.GetHosts())+len(o.GetNotHosts()) > 0:
				return at(".to", j) + ".operation.hosts", number
			case len(o.GetMethods())+len(o.GetNotMethods()) > 0:
				return at(".to", j) + ".operation.methods", number
			case len(o.GetPaths())+len(o.GetNotPaths()) > 0:
				return at(".to", j) + ".operation.paths", number
			case field != "":
				return field, number
			}
		}
	}
	return "", 0
}

// portsWithoutHTTP returns the ports of a workload without HTTP that the conditions of a rule are for.
func (m *checker) portsWithoutHTTP(r *securityv1beta1.Rule, w *snapshot.Pod) []uint32 {
	var only []string // the values of destination.port
	for _, c := range r.GetWhen() {
		if c.GetKey() == "destination.port" {
			only = c.GetValues()
		}
	}
	var out []uint32
	if servers := m.gatewayServers()[w]; len(servers) > 0 { // they decide about the ports, not the Service
		for i := range servers {
			s := &servers[i]
			http := s.PlainHTTP() || s.Protocol == mesh.HTTPS && !snapshot.PassesTLS(s.GetTls())
			if number := s.GetPort().GetNumber(); !http && includes(only, nil, number) {
				out = append(out, number)
			}
		}
		return out
	}
	for _, svc := range m.servicesOf(w) {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			number := w.TargetPort(p)
			if number != 0 && !p.Protocol.IsHTTP() && p.Protocol != mesh.Auto && p.Protocol != mesh.UDP && includes(only, nil, number) {
				out = append(out, number)
			}
		}
	}
	return out
}

// gatewayServers returns the servers of the Gateways that select a workload.
func (m *checker) gatewayServers() map[*snapshot.Pod][]snapshot.GatewayServer {
	if m.servers == nil {
		m.servers = map[*snapshot.Pod][]snapshot.GatewayServer{}
		for _, gw := range list[*snapshot.Gateway](m, snapshot.KindGateway) {
			if selector := gw.Spec.GetSelector(); len(selector) > 0 {
				for _, w := range m.selected("", selector) {
					m.servers[w] = append(m.servers[w], snapshot.GatewayServers(gw)...)
				}
			}
		}
	}
	return m.servers
}

// tcpPort returns a port without HTTP of a workload that a rule is for, or 0.
func (m *checker) tcpPort(r *securityv1beta1.Rule, w *snapshot.Pod) uint32 {
	for _, number := range m.portsWithoutHTTP(r, w) {
		if len(r.GetTo()) == 0 || slices.ContainsFunc(r.GetTo(), func(t *securityv1beta1.Rule_To) bool {
			return includes(t.GetOperation().GetPorts(), t.GetOperation().GetNotPorts(), number)
		}) {
			return number
		}
	}
	return 0
}

// asksOverHTTP reports whether a provider of external authorization is asked over HTTP.
func (m *checker) asksOverHTTP(provider string) bool {
	var spec meshv1alpha1.MeshConfig_ExtensionProvider
	err := proto.Unmarshal([]byte(m.Snapshot.Mesh.Authorizers[provider].Spec), &spec)
	return err == nil && spec.GetEnvoyExtAuthzHttp() != nil
}

// includes reports whether a port is in a list, which is empty for all, and not excluded.
func includes(ports, not []string, number uint32) bool {
	text := strconv.FormatUint(uint64(number), 10)
	return (len(ports) == 0 || slices.Contains(ports, text)) && !slices.Contains(not, text)
}
