package snapshot

import (
	"fmt"
	"strings"

	securityv1beta1 "istio.io/api/security/v1beta1"
)

// EachMatched calls yield for the values of an AuthorizationPolicy, with their field and with the
// number of matchers that a value becomes in a proxy.
func EachMatched(p *securityv1beta1.AuthorizationPolicy, yield func(field, value string, matchers int)) {
	once := func(string) int { return 1 }
	add := func(field string, matchers func(value string) int, lists ...[]string) {
		for _, list := range lists {
			for _, v := range list {
				yield(field, v, matchers(v))
			}
		}
	}
	allows := p.GetAction() == securityv1beta1.AuthorizationPolicy_ALLOW
	for i, rule := range p.GetRules() {
		path := fmt.Sprintf("rules[%d]", i)
		for k, from := range rule.GetFrom() {
			s, field := from.GetSource(), fmt.Sprintf("%s.from[%d].source", path, k)
			add(field, once, s.GetPrincipals(), s.GetNotPrincipals(), s.GetNamespaces(), s.GetNotNamespaces(), s.GetServiceAccounts(), s.GetNotServiceAccounts(),
				s.GetTrustDomains(), s.GetNotTrustDomains(), s.GetIpBlocks(), s.GetNotIpBlocks(), s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks())
			add(field, slashes, s.GetRequestPrincipals(), s.GetNotRequestPrincipals())
		}
		for k, to := range rule.GetTo() {
			o, field := to.GetOperation(), fmt.Sprintf("%s.to[%d].operation", path, k)
			add(field, once, o.GetHosts(), o.GetNotHosts(), o.GetMethods(), o.GetNotMethods(), o.GetPaths(), o.GetNotPaths(), o.GetPorts(), o.GetNotPorts())
		}
		for k, when := range rule.GetWhen() {
			field := fmt.Sprintf("%s.when[%d]", path, k)
			add(field, formsOf(when.GetKey(), !allows), when.GetValues())
			add(field, formsOf(when.GetKey(), allows), when.GetNotValues())
		}
	}
}

func slashes(value string) int { return 1 + strings.Count(value, "/") }

// formsOf returns how many matchers a value of a condition becomes. Refusing conditions match a
// header by all forms of its name.
func formsOf(key string, refuses bool) func(string) int {
	name, args, err := SplitAttribute(key)
	switch {
	case err != nil: // the policy is not valid
	case name == "request.auth.principal":
		return slashes
	case name == "request.headers" && refuses:
		n := len(FormsOfHeader(args[0]))
		return func(string) int { return n }
	}
	return func(string) int { return 1 }
}

// Matchers returns the number of matchers that the policy becomes in a proxy, and their size.
func (o *AuthorizationPolicy) Matchers() (n, bytes int) {
	n = len(o.Spec.GetRules())
	EachMatched(o.Spec, func(_, value string, matchers int) {
		n += matchers
		bytes += matchers * len(value)
	})
	return n, bytes
}

// Closed returns a policy for the same workloads that permits nothing and refuses everything that
// the policy could refuse.
func (o *AuthorizationPolicy) Closed() *AuthorizationPolicy {
	return &AuthorizationPolicy{Meta: o.Meta, DryRun: o.DryRun, Doubtful: []int{0}, Spec: &securityv1beta1.AuthorizationPolicy{
		Selector: o.Spec.GetSelector(), TargetRef: o.Spec.GetTargetRef(), TargetRefs: o.Spec.GetTargetRefs(),
		Action: o.Spec.GetAction(), ActionDetail: o.Spec.GetActionDetail(), Rules: []*securityv1beta1.Rule{{}},
	}}
}
