package source

import (
	"strings"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// matchers counts what the values of an AuthorizationPolicy become in a proxy.
type matchers struct {
	n, bytes int
	fault    *FieldError
}

// matchersFault checks the matchers of a policy.
func matchersFault(p *securityv1beta1.AuthorizationPolicy) *FieldError {
	m := &matchers{}
	once := func(string) int { return 1 }
	for i, rule := range p.GetRules() {
		path := at("rules", i)
		for k, from := range rule.GetFrom() {
			s, field := from.GetSource(), at(path+".from", k)+".source"
			for _, list := range [][]string{
				s.GetPrincipals(), s.GetNotPrincipals(), s.GetNamespaces(), s.GetNotNamespaces(), s.GetServiceAccounts(), s.GetNotServiceAccounts(),
				s.GetTrustDomains(), s.GetNotTrustDomains(), s.GetIpBlocks(), s.GetNotIpBlocks(), s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks(),
			} {
				m.add(field, list, once)
			}
			m.add(field, s.GetRequestPrincipals(), slashes)
			m.add(field, s.GetNotRequestPrincipals(), slashes)
		}
		for k, to := range rule.GetTo() {
			o, field := to.GetOperation(), at(path+".to", k)+".operation"
			for _, list := range [][]string{
				o.GetHosts(), o.GetNotHosts(), o.GetMethods(), o.GetNotMethods(), o.GetPaths(), o.GetNotPaths(), o.GetPorts(), o.GetNotPorts(),
			} {
				m.add(field, list, once)
			}
		}
		for k, when := range rule.GetWhen() {
			field, allows := at(path+".when", k), p.GetAction() == securityv1beta1.AuthorizationPolicy_ALLOW
			m.add(field, when.GetValues(), formsOf(when.GetKey(), !allows))
			m.add(field, when.GetNotValues(), formsOf(when.GetKey(), allows))
		}
	}
	if m.fault == nil && (m.n > maxMatchers || m.bytes > maxMatchedBytes) {
		m.fault = limitf("rules", "become %d matchers of %d bytes: at most %d of %d bytes are accepted; split the policy", m.n, m.bytes, maxMatchers, maxMatchedBytes)
	}
	return m.fault
}

// add counts the values of a list. forms returns how many matchers a value becomes.
func (m *matchers) add(field string, values []string, forms func(value string) int) {
	for _, v := range values {
		if len(v) > maxMatchedText && m.fault == nil {
			m.fault = limitf(field, "has a value of %d bytes, at most %d are accepted", len(v), maxMatchedText)
		}
		n := forms(v)
		m.n += n
		m.bytes += n * len(v)
	}
}

func slashes(value string) int { return 1 + strings.Count(value, "/") }

// formsOf returns how many matchers a value of a condition becomes. Refusing conditions match a
// header by all forms of its name.
func formsOf(key string, refuses bool) func(string) int {
	name, args, err := snapshot.SplitAttribute(key)
	switch {
	case err != nil: // refused elsewhere
	case name == "request.auth.principal":
		return slashes
	case name == "request.headers" && refuses:
		n := len(snapshot.FormsOfHeader(args[0]))
		return func(string) int { return n }
	}
	return func(string) int { return 1 }
}
