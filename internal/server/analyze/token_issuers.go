package analyze

import (
	"slices"
	"strings"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// tokenIssuers finds the conditions of AuthorizationPolicies on tokens that no request meets, because no
// RequestAuthentication of the workloads accepts tokens of the issuer.
func (m *checker) tokenIssuers() {
	type known struct {
		issuers []string
		judged  bool
	}
	of := map[*snapshot.AuthorizationPolicy]known{}
	issuersFor := func(p *snapshot.AuthorizationPolicy) known {
		k, ok := of[p]
		if !ok {
			k.issuers, k.judged = m.issuersFor(p)
			of[p] = k
		}
		return k
	}
	m.eachSource(sourceField{"requestPrincipals", "notRequestPrincipals", "request.auth.principal", func(s *securityv1beta1.Source) (values, not []string) {
		return s.GetRequestPrincipals(), s.GetNotRequestPrincipals()
	}}, func(p *snapshot.AuthorizationPolicy, field string, values []string) {
		if k := issuersFor(p); k.judged {
			m.tokensOf(p, field, values, k.issuers, true)
		}
	})
	for _, p := range list[*snapshot.AuthorizationPolicy](m, snapshot.KindAuthorizationPolicy) {
		for i, r := range p.Spec.GetRules() {
			for j, w := range r.GetWhen() {
				if !strings.HasPrefix(w.GetKey(), "request.auth.") || w.GetKey() == "request.auth.principal" {
					continue
				}
				k := issuersFor(p)
				field := at(at("spec.rules", i)+".when", j)
				switch {
				case !k.judged:
				case len(k.issuers) == 0:
					m.find(codes.UnknownTokenIssuer, p, field+".key", "%s", noTokens)
				case w.GetKey() == "request.auth.claims[iss]":
					m.tokensOf(p, field+".values", w.GetValues(), k.issuers, false)
					m.tokensOf(p, field+".notValues", w.GetNotValues(), k.issuers, false)
				}
			}
		}
	}
}

const noTokens = "no RequestAuthentication applies to the workloads of the policy, so no request has an accepted token"

// tokensOf finds the values that belong to none of the issuers.
func (m *checker) tokensOf(p *snapshot.AuthorizationPolicy, field string, values, issuers []string, principals bool) {
	is := matches
	if principals {
		is = isPrincipalOf
	}
	belongs := func(value string) bool {
		return value == "" || slices.ContainsFunc(issuers, func(issuer string) bool { return is(value, issuer) })
	}
	for i, value := range values {
		if belongs(value) {
			continue
		}
		if len(issuers) == 0 {
			m.find(codes.UnknownTokenIssuer, p, at(field, i), "%q matches no request: %s", value, noTokens)
			continue
		}
		issuer, subject := value, ""
		if slash := strings.LastIndex(value, "/"); slash >= 0 && principals {
			issuer, subject = value[:slash], value[slash:]
		}
		near := output.NearestWord(issuer, issuers)
		if near != "" {
			near += subject
		}
		level := codes.Level("")
		if slices.ContainsFunc(values, belongs) {
			level = codes.Warning
		}
		m.findIn(level, codes.UnknownTokenIssuer, p, m.correctTo(p, at(field, i), near), at(field, i),
			"%q matches no request: the RequestAuthentications of the workloads accept only tokens of %s%s", value, listed(issuers), didYouMean(near))
	}
}

// isPrincipalOf reports whether a value may match a principal of an issuer, which is ISSUER/SUBJECT.
func isPrincipalOf(value, issuer string) bool {
	if prefix, ok := strings.CutSuffix(value, "*"); ok {
		return strings.HasPrefix(issuer+"/", prefix) || strings.HasPrefix(prefix, issuer+"/")
	}
	return strings.HasPrefix(value, "*") || strings.HasPrefix(value, issuer+"/")
}

// issuersFor returns the issuers whose tokens some workload of a policy accepts, sorted. judged is false
// if the workloads of the policy are not known.
func (m *checker) issuersFor(p *snapshot.AuthorizationPolicy) (issuers []string, judged bool) {
	if len(snapshot.TargetsOf(p.Spec)) > 0 {
		return nil, false
	}
	namespace, selector := p.Namespace, p.Spec.GetSelector().GetMatchLabels()
	if namespace == m.Snapshot.Mesh.RootNamespace {
		namespace = ""
	}
	add := func(in string, applies func(*securityv1beta1.RequestAuthentication) bool) {
		for r := range snapshot.Policies[*securityv1beta1.RequestAuthentication](m.Snapshot.Namespaces.Get(in), snapshot.KindRequestAuthentication) {
			if len(snapshot.TargetsOf(r.Spec)) > 0 || applies(r.Spec) {
				for _, rule := range r.Spec.GetJwtRules() {
					if !slices.Contains(issuers, rule.GetIssuer()) {
						issuers = append(issuers, rule.GetIssuer())
					}
				}
			}
		}
	}
	for _, w := range m.selected(namespace, selector) {
		judged = true
		for _, in := range []string{w.Namespace, m.Snapshot.Mesh.RootNamespace} {
			add(in, func(r *securityv1beta1.RequestAuthentication) bool {
				return snapshot.Selects(r.GetSelector().GetMatchLabels(), w.Labels)
			})
		}
	}
	if !judged && len(m.workloads) == 0 { // the selectors decide
		judged = true
		for _, facts := range m.Snapshot.Namespaces.All() {
			if namespace == "" || facts.Name == namespace || facts.Name == m.Snapshot.Mesh.RootNamespace {
				add(facts.Name, func(r *securityv1beta1.RequestAuthentication) bool {
					return !contradicts(r.GetSelector().GetMatchLabels(), selector)
				})
			}
		}
	}
	slices.Sort(issuers)
	return issuers, judged
}
