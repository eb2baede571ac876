package policymodel

import (
	"math/rand/v2"

	"google.golang.org/protobuf/proto"
	securityv1beta1 "istio.io/api/security/v1beta1"
)

// Random makes random policies from few values, so that requests often match them.
type Random struct {
	*rand.Rand
	Values
}

// Values holds the values of random policies. None is empty.
type Values struct {
	Principals, Namespaces, ServiceAccounts, TrustDomains []string
	Sources, Remotes, Destinations                        []string // addresses
	Tokens                                                []string // request principals
	Hosts, Methods, Paths, Ports                          []string
	Header                                                string // its name
	HeaderValues                                          []string
	Claim                                                 string // its path, with ][ between keys
	ClaimValues                                           []string
}

// One returns one of some values.
func (r Random) One(of ...string) string { return of[r.IntN(len(of))] }

// some mostly returns nil, and sometimes one or two values.
func (r Random) some(of ...string) []string {
	if r.IntN(4) > 0 {
		return nil
	}
	return []string{r.One(of...), r.One(of...)}
}

// Spec returns a valid policy with an action. The caller adds the provider of the action CUSTOM, whose
// rules read no tokens.
func (r Random) Spec(action securityv1beta1.AuthorizationPolicy_Action) *securityv1beta1.AuthorizationPolicy {
	spec := &securityv1beta1.AuthorizationPolicy{Action: action}
	tokens := func() []string {
		if values := r.some(r.Tokens...); action != securityv1beta1.AuthorizationPolicy_CUSTOM {
			return values
		}
		return nil
	}
	for range r.IntN(4) {
		rule := &securityv1beta1.Rule{}
		for range r.IntN(3) {
			source := &securityv1beta1.Source{
				Principals: r.some(r.Principals...), NotPrincipals: r.some(r.Principals...),
				Namespaces: r.some(r.Namespaces...), NotNamespaces: r.some(r.Namespaces...), TrustDomains: r.some(r.TrustDomains...),
				IpBlocks: r.some(r.Sources...), NotIpBlocks: r.some(r.Sources...), RemoteIpBlocks: r.some(r.Remotes...),
				RequestPrincipals: tokens(), NotRequestPrincipals: tokens(),
			}
			if r.IntN(4) == 0 { // not together with principals and namespaces
				source = &securityv1beta1.Source{ServiceAccounts: r.some(r.ServiceAccounts...)}
			}
			if proto.Size(source) > 0 {
				rule.From = append(rule.From, &securityv1beta1.Rule_From{Source: source})
			}
		}
		for range r.IntN(3) {
			operation := &securityv1beta1.Operation{
				Hosts: r.some(r.Hosts...), NotHosts: r.some(r.Hosts...), Methods: r.some(r.Methods...), NotMethods: r.some(r.Methods...),
				Paths: r.some(r.Paths...), NotPaths: r.some(r.Paths...), Ports: r.some(r.Ports...), NotPorts: r.some(r.Ports...),
			}
			if proto.Size(operation) > 0 {
				rule.To = append(rule.To, &securityv1beta1.Rule_To{Operation: operation})
			}
		}
		if r.IntN(3) == 0 {
			rule.When = append(rule.When, r.condition(action))
		}
		spec.Rules = append(spec.Rules, rule)
	}
	if len(spec.GetRules()) == 0 && action != securityv1beta1.AuthorizationPolicy_ALLOW {
		spec.Rules = []*securityv1beta1.Rule{{When: []*securityv1beta1.Condition{r.condition(action)}}}
	}
	return spec
}

func (r Random) condition(action securityv1beta1.AuthorizationPolicy_Action) *securityv1beta1.Condition {
	kinds := []struct {
		key    string
		values []string
	}{
		{"request.headers[" + r.Header + "]", r.HeaderValues},
		{"connection.sni", r.Hosts},
		{"source.principal", r.Principals},
		{"destination.ip", r.Destinations},
		{"request.auth.claims[" + r.Claim + "]", r.ClaimValues},
		{"request.auth.audiences", r.ClaimValues},
		{"request.auth.principal", r.Tokens},
	}
	if action == securityv1beta1.AuthorizationPolicy_CUSTOM {
		kinds = kinds[:4]
	}
	k := kinds[r.IntN(len(kinds))]
	w := &securityv1beta1.Condition{Key: k.key, Values: r.some(k.values...), NotValues: r.some(k.values...)}
	if len(w.Values)+len(w.NotValues) == 0 {
		w.Values = k.values[:1]
	}
	return w
}
