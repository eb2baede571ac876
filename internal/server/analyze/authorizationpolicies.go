package analyze

import (
	"slices"
	"strconv"
	"strings"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// authorization checks the selector of an AuthorizationPolicy and finds rules with fields of
// HTTP at ports without it. It reports one port for each rule.
func (m *checker) authorization(p *snapshot.AuthorizationPolicy, namespace string) {
	selector := p.Spec.GetSelector().GetMatchLabels()
	m.selects(NoMatchingWorkloadsFound, p, "spec.selector.matchLabels", namespace, selector)
	if len(snapshot.TargetsOf(p.Spec)) > 0 {
		return // gateways
	}
	for i, r := range p.Spec.GetRules() {
		for _, w := range m.selected(namespace, selector) {
			if field, number := m.httpField(r, w); field != "" {
				effect := "the rule matches its connections without this field"
				if p.Spec.GetAction() == securityv1beta1.AuthorizationPolicy_ALLOW {
					effect = "the rule matches no connection to it"
				}
				m.find(HTTPFieldOnTCPPort, p, at("spec.rules", i)+field, "port %d of workload %s has no HTTP: %s", number, nameOf(w), effect)
				break
			}
		}
	}
}

// httpField returns the first field of a rule that only HTTP has, and a port of a workload
// without HTTP that the rule is for. It returns "" if there is none.
func (m *checker) httpField(r *securityv1beta1.Rule, w *snapshot.Pod) (field string, number uint32) {
	for i, f := range r.GetFrom() {
		if s := f.GetSource(); len(s.GetRequestPrincipals())+len(s.GetNotRequestPrincipals()) > 0 {
			field = at(".from", i) + ".source.requestPrincipals"
		}
	}
	var only []string // the values of destination.port
	for i, c := range r.GetWhen() {
		switch {
		case strings.HasPrefix(c.GetKey(), "request."):
			field = at(".when", i) + ".key"
		case c.GetKey() == "destination.port":
			only = c.GetValues()
		}
	}
	for _, svc := range m.servicesOf(w) {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			number := w.TargetPort(p)
			if number == 0 || p.Protocol.IsHTTP() || p.Protocol == mesh.Auto || p.Protocol == mesh.UDP || !includes(only, nil, number) {
				continue
			}
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
	}
	return "", 0
}

// includes reports whether a port is in a list, which is empty for all, and not excluded.
func includes(ports, not []string, number uint32) bool {
	text := strconv.FormatUint(uint64(number), 10)
	return (len(ports) == 0 || slices.Contains(ports, text)) && !slices.Contains(not, text)
}
