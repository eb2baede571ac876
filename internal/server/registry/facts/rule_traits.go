package facts

import (
	"iter"
	"maps"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// ruleUse is a setting of DestinationRules that concerns more than the clusters of their
// hosts.
type ruleUse uint8

const (
	usesLocality ruleUse = iota // localityLbSetting
	usesOutlier                 // outlierDetection
	usesTimeouts                // idleTimeout or maxConnectionDuration of TCP
)

// ruleUses indexes a DestinationRule by its uses.
func ruleUses(into []ruleUse, _ ObjectKey, d *snapshot.DestinationRule) []ruleUse {
	uses := make(map[ruleUse]bool)
	for p := range policyParts(d.Spec) {
		uses[usesLocality] = uses[usesLocality] || p.GetLoadBalancer().GetLocalityLbSetting() != nil
		uses[usesOutlier] = uses[usesOutlier] || p.GetOutlierDetection() != nil
		uses[usesTimeouts] = uses[usesTimeouts] || setsTimeouts(p.GetConnectionPool().GetTcp())
	}
	for use, is := range uses {
		if is {
			into = append(into, use)
		}
	}
	return into
}

func setsTimeouts(tcp *networkingv1alpha3.ConnectionPoolSettings_TCPSettings) bool {
	return tcp.GetIdleTimeout() != nil || tcp.GetMaxConnectionDuration() != nil
}

// hasTunnels reports whether rules of a service have tunnels.
func hasTunnels(h *snapshot.HostRules) bool {
	has := func(list []*snapshot.HostRule) bool {
		return slices.ContainsFunc(list, func(r *snapshot.HostRule) bool {
			return r.Policy.GetTunnel() != nil ||
				slices.ContainsFunc(r.Subsets, func(s *networkingv1alpha3.Subset) bool { return s.GetTrafficPolicy().GetTunnel() != nil })
		})
	}
	for _, list := range h.Own {
		if has(list) {
			return true
		}
	}
	return has(h.Default)
}

// policyParts yields all policies of a DestinationRule: of the host, of its subsets and of
// their ports.
func policyParts(d *networkingv1alpha3.DestinationRule) iter.Seq[*networkingv1alpha3.TrafficPolicy_PortTrafficPolicy] {
	return func(yield func(*networkingv1alpha3.TrafficPolicy_PortTrafficPolicy) bool) {
		policies := []*networkingv1alpha3.TrafficPolicy{d.GetTrafficPolicy()}
		for _, s := range d.GetSubsets() {
			policies = append(policies, s.GetTrafficPolicy())
		}
		for _, p := range policies {
			whole := &networkingv1alpha3.TrafficPolicy_PortTrafficPolicy{
				LoadBalancer: p.GetLoadBalancer(), ConnectionPool: p.GetConnectionPool(), OutlierDetection: p.GetOutlierDetection(), Tls: p.GetTls(),
			}
			for _, part := range append([]*networkingv1alpha3.TrafficPolicy_PortTrafficPolicy{whole}, p.GetPortLevelSettings()...) {
				if !yield(part) {
					return
				}
			}
		}
	}
}

func (t *Tables) findRuleTraits(r *derive.Reads) snapshot.RuleTraits {
	has := func(use ruleUse) bool { return t.rulesUsing.Len(r, use) > 0 }
	labels := Set[string]{}
	add := func(s *networkingv1alpha3.LocalityLoadBalancerSetting) {
		for _, label := range s.GetFailoverPriority() {
			if name, _, fixed := strings.Cut(label, "="); !fixed {
				labels.Add(name)
			}
		}
	}
	byDefault := t.defaultPolicy.Get(r)
	tcp := byDefault.GetConnectionPool().GetTcp()
	out := snapshot.RuleTraits{Localities: has(usesLocality), Timeouts: has(usesTimeouts) || setsTimeouts(tcp)}
	if s := t.Mesh.Get(r).LocalityLB; s.GetEnabled() == nil || s.GetEnabled().GetValue() {
		out.Localities = out.Localities || len(s.GetDistribute()) > 0 || has(usesOutlier)
		add(s)
	}
	for _, d := range t.rulesUsing.Lookup(r, usesLocality) {
		for p := range policyParts(d.Spec) {
			add(p.GetLoadBalancer().GetLocalityLbSetting())
		}
	}
	for d := snapshot.PreferSameZone; d <= snapshot.PreferSameNode; d++ {
		if t.special.Len(r, distributedService+serviceTrait(d)) > 0 {
			out.Localities = true
			for _, label := range d.Labels() {
				labels.Add(label)
			}
		}
	}
	var tunnelled []string
	for key := range t.tunnelled.Lookup(r, struct{}{}) {
		tunnelled = append(tunnelled, key)
	}
	slices.Sort(tunnelled)
	out.Tunnels = snapshot.ListOf(tunnelled)
	out.Labels = strings.Join(slices.Sorted(maps.Keys(labels)), ",")
	return out
}
