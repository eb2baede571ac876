package snapshot

import (
	"cmp"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
)

// RuledHost returns the host of a DestinationRule, in its canonical form. A name without a dot is
// the name of a service in the rule's namespace.
func RuledHost(d *DestinationRule) string {
	host := mesh.CanonicalHost(d.Spec.GetHost())
	if host == "*" || strings.Contains(host, ".") {
		return host
	}
	return mesh.ServiceHost(host, d.Namespace, mesh.DefaultDomain)
}

// HostRule is the policy for one host that the DestinationRules of one namespace give to
// the same clients, merged.
type HostRule struct {
	// Namespace and Name name the first of the DestinationRules.
	Namespace, Name string
	// Selector selects the clients by the labels of their workloads. Empty means all.
	Selector LabelSelector
	// Policy is nil if no DestinationRule has a policy outside of subsets.
	Policy  *networkingv1alpha3.TrafficPolicy
	Subsets []*networkingv1alpha3.Subset
}

// Subset returns the subset of that name, or nil.
func (r *HostRule) Subset(name string) *networkingv1alpha3.Subset {
	if r != nil {
		for _, s := range r.Subsets {
			if s.GetName() == name {
				return s
			}
		}
	}
	return nil
}

// PolicyAt returns the policy of a port: for a subset, or for the whole service if
// subset is nil. It may be nil.
func (r *HostRule) PolicyAt(port uint32, subset *networkingv1alpha3.Subset) *networkingv1alpha3.TrafficPolicy {
	if r == nil {
		return nil
	}
	return override(override(nil, r.Policy, port), subset.GetTrafficPolicy(), port)
}

// PolicyOver returns the policy of a port, with the parts of defaults that it lacks. All
// may be nil.
func (r *HostRule) PolicyOver(defaults *networkingv1alpha3.TrafficPolicy, port uint32, subset *networkingv1alpha3.Subset) *networkingv1alpha3.TrafficPolicy {
	return override(defaults, r.PolicyAt(port, subset), port)
}

// override returns the policy of a port that results from a base and a more specific
// policy. The settings of a port replace all others, even by nothing.
func override(base, by *networkingv1alpha3.TrafficPolicy, port uint32) *networkingv1alpha3.TrafficPolicy {
	if by == nil {
		return base
	}
	out := &networkingv1alpha3.TrafficPolicy{
		LoadBalancer: by.LoadBalancer, ConnectionPool: by.ConnectionPool, OutlierDetection: by.OutlierDetection,
		Tls: by.Tls, Tunnel: by.Tunnel, ProxyProtocol: by.ProxyProtocol, RetryBudget: by.RetryBudget,
	}
	if base != nil {
		out.LoadBalancer = cmp.Or(out.LoadBalancer, base.LoadBalancer)
		out.ConnectionPool = cmp.Or(out.ConnectionPool, base.ConnectionPool)
		out.OutlierDetection = cmp.Or(out.OutlierDetection, base.OutlierDetection)
		out.Tls = cmp.Or(out.Tls, base.Tls)
		out.Tunnel = cmp.Or(out.Tunnel, base.Tunnel)
		out.ProxyProtocol = cmp.Or(out.ProxyProtocol, base.ProxyProtocol)
		out.RetryBudget = cmp.Or(out.RetryBudget, base.RetryBudget)
	}
	for _, p := range by.PortLevelSettings {
		if p.GetPort().GetNumber() == port {
			out.LoadBalancer, out.ConnectionPool, out.OutlierDetection, out.Tls = p.LoadBalancer, p.ConnectionPool, p.OutlierDetection, p.Tls
			break
		}
	}
	return out
}

// HostRules holds the DestinationRules of one service by the namespaces of clients.
type HostRules struct {
	// Default holds the rules of all namespaces that are not in Own. If several rules
	// select a client, the first one with a selector applies, else the first one.
	Default []*HostRule
	// Own holds the rules of the namespaces to which other rules apply.
	Own map[string][]*HostRule
}

// For returns the rule of a client, or nil. Clients with the same rule get the same
// pointer.
func (h *HostRules) For(c RuleClient) *HostRule {
	if h == nil {
		return nil
	}
	list, own := h.Own[c.Namespace]
	if !own {
		list = h.Default
	}
	for _, r := range list {
		if r.Selector == "" || c.selected(r.Selector) {
			return r
		}
	}
	return nil
}

// RuleClient is everything about a client that decides which DestinationRules apply to
// it. The zero value is a client in a namespace without rules of its own.
type RuleClient struct {
	Namespace string
	// selectors holds the selectors of rules that select the workload, one per line.
	selectors string
}

func (c RuleClient) selected(s LabelSelector) bool {
	return c.selectors != "" && strings.Contains(c.selectors, "\n"+string(s)+"\n")
}

// RuleScope holds the facts of a namespace to which other DestinationRules apply than to
// most namespaces.
type RuleScope struct {
	// Selectors holds the workload selectors of the namespace's DestinationRules, sorted
	// by LabelSelector.
	Selectors []map[string]string
	// Hashes reports whether the namespace is in HashedIn of some service.
	Hashes bool
}

// RuleTraits reports which settings are in use in DestinationRules or MeshConfig, so that
// proxies share resources that do not depend on them.
type RuleTraits struct {
	// Localities reports whether clients may prefer endpoints by their own place.
	Localities bool
	// Timeouts reports whether listeners end TCP connections as a rule sets it.
	Timeouts bool
	// Tunnels holds the keys of the services whose rules have tunnels, sorted.
	Tunnels List[string]
	// Labels holds the labels of failoverPriority, sorted and joined by commas.
	Labels string
}

// RuleClientOf returns the client for a workload of a namespace. The facts may be nil.
func RuleClientOf(facts *NamespaceFacts, labels map[string]string) RuleClient {
	if facts == nil || facts.Rules == nil {
		return RuleClient{}
	}
	c := RuleClient{Namespace: facts.Name}
	for _, s := range facts.Rules.Selectors {
		if Selects(s, labels) {
			c.selectors += "\n" + string(SelectorOf(s)) + "\n"
		}
	}
	return c
}
