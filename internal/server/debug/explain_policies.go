package debug

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/rbac"
)

// PolicyExplanation explains which security policies apply to a workload, and why.
type PolicyExplanation struct {
	ExplainedProxy

	// MTLS is the mode of mTLS, PortMTLS the mode of ports with another one, by target port.
	MTLS     string            `json:"mtls"`
	PortMTLS map[uint32]string `json:"portMTLS,omitzero"`
	// Policies are in the order in which the proxy applies them.
	Policies []ExplainedPolicy `json:"policies"`
	// Considered is the number of security policies in each namespace whose policies may select the
	// workload.
	Considered map[string]int `json:"considered,omitzero"`
}

// ExplainedPolicy is a policy that selects the workload.
type ExplainedPolicy struct {
	Kind      snapshot.Kind `json:"kind"`
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	// Reason explains why the policy applies to the workload, Effect what it does there.
	Reason string `json:"reason"`
	Effect string `json:"effect"`
	// Unused is the reason why the policy has no effect.
	Unused string `json:"unused,omitzero"`
}

// policiesz explains which security policies apply to ?proxyID=.
func (p *Pages) policiesz(_ context.Context, q Query) (any, error) {
	return explainNewest(p, q, explainPolicies)
}

func explainPolicies(s *snapshot.Snapshot, n proxy.Node) *PolicyExplanation {
	mtls, policies := rbac.SecurityPolicies(s, n)
	out := &PolicyExplanation{ExplainedProxy: explainedProxy(s, n), MTLS: mtls.Default.String(), Policies: []ExplainedPolicy{}}
	for port, mode := range mtls.Ports {
		if out.PortMTLS == nil {
			out.PortMTLS = make(map[uint32]string)
		}
		out.PortMTLS[port] = mode.String()
	}
	out.Considered = make(map[string]int)
	for _, name := range []string{s.Mesh.RootNamespace, n.Namespace} {
		out.Considered[name] = 0
		if ns := s.Namespaces.Get(name); ns != nil {
			for _, kind := range []snapshot.Kind{snapshot.KindPeerAuthentication, snapshot.KindRequestAuthentication, snapshot.KindAuthorizationPolicy} {
				out.Considered[name] += len(ns.Policies[kind])
			}
		}
	}
	for _, a := range policies {
		out.Policies = append(out.Policies, ExplainedPolicy{a.Kind, a.Info().Namespace, a.Info().Name, a.Reason, effectOf(s, a.Policy), a.Unused})
	}
	return out
}

// effectOf describes what a policy does.
func effectOf(s *snapshot.Snapshot, p snapshot.Policy) string {
	var words []string
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	switch p := p.(type) {
	case *snapshot.PeerAuthentication:
		if p.Spec.GetMtls() != nil || len(p.Spec.GetPortLevelMtls()) == 0 {
			add("%s", p.Spec.GetMtls().GetMode())
		}
		for _, port := range slices.Sorted(maps.Keys(p.Spec.GetPortLevelMtls())) {
			add("%s on port %d", p.Spec.GetPortLevelMtls()[port].GetMode(), port)
		}
	case *snapshot.RequestAuthentication:
		for _, r := range p.Spec.GetJwtRules() {
			add("checks tokens of %s", r.GetIssuer())
		}
	case *snapshot.AuthorizationPolicy:
		action, rules := p.Spec.GetAction(), len(p.Spec.GetRules())
		switch {
		case rules == 0 && action == securityv1beta1.AuthorizationPolicy_ALLOW:
			add("ALLOW nothing")
		case rules == 0:
			add("%s nothing: it has no rules", action)
		case rules == 1:
			add("%s by 1 rule", action)
		default:
			add("%s by %d rules", action, rules)
		}
		if name := p.Spec.GetProvider().GetName(); action == securityv1beta1.AuthorizationPolicy_CUSTOM {
			add("provider %s", name)
			if _, known := s.Mesh.Authorizers[name]; !known {
				add("MeshConfig does not define the provider: what the rules match is refused")
			}
		}
		if p.DryRun {
			add("dry run: only recorded")
		}
		for _, i := range p.Doubtful {
			if action == securityv1beta1.AuthorizationPolicy_ALLOW {
				add("rule %d is not fully understood and matches nothing", i+1)
			} else {
				add("rule %d is not fully understood and matches more than it says", i+1)
			}
		}
	}
	return strings.Join(words, "; ")
}
