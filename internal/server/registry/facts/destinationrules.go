package facts

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// addRules adds the tables of DestinationRules.
func (t *Tables) addRules() {
	g := t.Graph
	t.MergedRules = derive.New(g, "merged rules", ruleKey.compare, equalMerged, t.mergeRules, t.rulesFor)
	t.CutRules = derive.NewIndex(t.MergedRules, func(into []struct{}, _ ruleKey, rules []hostRule) []struct{} {
		if slices.ContainsFunc(rules, func(h hostRule) bool { return h.Cut != "" }) {
			into = append(into, struct{}{})
		}
		return into
	})
	t.ruleGroups = derive.NewIndex(t.MergedRules, func(into []string, k ruleKey, _ []hostRule) []string {
		return append(into, patternOf(k.Host))
	})
	t.HostRules = derive.New(g, "rules", strings.Compare, equalRules, t.rulesOf, t.servicesOf, t.entriesOf)
	t.ruledHosts = derive.NewIndex(t.HostRules, func(into []string, _ string, h *snapshot.HostRules) []string {
		return slices.AppendSeq(into, maps.Keys(h.Own))
	})
	t.tunnelled = derive.NewIndex(t.HostRules, func(into []struct{}, _ string, h *snapshot.HostRules) []struct{} {
		if hasTunnels(h) {
			into = append(into, struct{}{})
		}
		return into
	})
}

// addUsedRules adds the tables of the rules that proxies get. They have no more subsets than the
// limits permit.
func (t *Tables) addUsedRules() {
	g := t.Graph
	t.subsetClusters = derive.New(g, "clusters of subsets", strings.Compare, maps.Equal[map[string]int], t.countSubsets, t.HostRules)
	t.subsetsBy = derive.NewIndex(t.subsetClusters, func(into []string, _ string, n map[string]int) []string { return slices.AppendSeq(into, maps.Keys(n)) })
	t.BeyondSubsets = derive.New(g, "subsets beyond the limit", strings.Compare, slices.Equal[[]string], t.findBeyondSubsets, t.subsetsBy)
	t.UsedRules = derive.New(g, "used rules", strings.Compare, equalRules, t.usedRulesOf, t.HostRules)
}

// countSubsets returns the number of clusters that the rules of a service have for its subsets, by
// the namespace of the rules.
func (t *Tables) countSubsets(r *derive.Reads, key string) (map[string]int, bool) {
	rules, _ := t.HostRules.Get(r, key)
	svc, ok := t.MeshServices.Get(r, key)
	if !ok || rules == nil {
		return nil, false
	}
	ports := max(len(tcpPorts(nil, key, svc)), 1)
	out := map[string]int{}
	count := func(list []*snapshot.HostRule) {
		for _, h := range list {
			if len(h.Subsets) > 0 && h.Namespace != t.operators(r) {
				out[h.Namespace] = max(out[h.Namespace], len(h.Subsets)*ports)
			}
		}
	}
	count(rules.Default)
	for _, list := range rules.Own {
		count(list)
	}
	return out, len(out) > 0
}

// findBeyondSubsets returns the services for which the rules of a namespace lose their subsets,
// sorted. The services of the namespace itself precede, and those with fewer clusters, so that no
// other namespace decides about them.
func (t *Tables) findBeyondSubsets(r *derive.Reads, ns string) ([]string, bool) {
	type counted struct {
		key   string
		other bool
		n     int
	}
	var list []counted
	all := 0
	for key, n := range t.subsetsBy.Lookup(r, ns) {
		svc, _ := t.MeshServices.Get(r, key)
		list = append(list, counted{key, svc == nil || svc.Namespace != ns, n[ns]})
		all += n[ns]
	}
	if all <= MaxSubsetClusters {
		return nil, false
	}
	slices.SortFunc(list, func(x, y counted) int {
		return cmp.Or(boolOrder(x.other, y.other), cmp.Compare(x.n, y.n), strings.Compare(x.key, y.key))
	})
	var out []string
	all = 0
	for _, c := range list {
		if all+c.n <= MaxSubsetClusters {
			all += c.n
		} else {
			out = append(out, c.key)
		}
	}
	slices.Sort(out)
	return out, true
}

// usedRulesOf returns the rules of a service without the subsets beyond the limits.
func (t *Tables) usedRulesOf(r *derive.Reads, key string) (*snapshot.HostRules, bool) {
	rules, ok := t.HostRules.Get(r, key)
	counts, _ := t.subsetClusters.Get(r, key)
	beyond := map[string]bool{}
	for ns := range counts {
		if keys, _ := t.BeyondSubsets.Get(r, ns); slices.Contains(keys, key) {
			beyond[ns] = true
		}
	}
	if !ok || len(beyond) == 0 {
		return rules, ok
	}
	shared := map[*snapshot.HostRule]*snapshot.HostRule{}
	without := func(list []*snapshot.HostRule) []*snapshot.HostRule {
		list = slices.Clone(list)
		for i, h := range list {
			if !beyond[h.Namespace] {
				continue
			}
			if shared[h] == nil {
				less := *h
				less.Subsets = nil
				shared[h] = &less
			}
			list[i] = shared[h]
		}
		return list
	}
	out := &snapshot.HostRules{Default: without(rules.Default), Own: map[string][]*snapshot.HostRule{}}
	for ns, list := range rules.Own {
		out.Own[ns] = without(list)
	}
	return out, true
}

// ruleKey names the DestinationRules of a namespace for a host, which may start with "*".
type ruleKey struct{ Namespace, Host string }

func (k ruleKey) compare(other ruleKey) int {
	return cmp.Or(strings.Compare(k.Host, other.Host), strings.Compare(k.Namespace, other.Namespace))
}

// exports holds the namespaces to which rules are exported, sorted. The own namespace of
// the rules is ".".
type exports []string

// exportsOf returns the exports of a rule. A rule with a selector is private.
func exportsOf(d *snapshot.DestinationRule, byDefault []string) exports {
	if d.Spec.GetWorkloadSelector() != nil {
		return exports{"."}
	}
	return newExports(d.Spec.GetExportTo(), byDefault, d.Namespace)
}

// newExports returns the exports of an object of the namespace own.
func newExports(to, byDefault []string, own string) exports {
	if len(to) == 0 {
		to = byDefault
	}
	if len(to) == 0 {
		return exports{"*"}
	}
	out := slices.Clone(to)
	for i := range out {
		if out[i] == own {
			out[i] = "."
		}
	}
	slices.Sort(out)
	if out = slices.Compact(out); slices.Contains(out, "*") {
		return exports{"*"}
	}
	return out
}

// private reports whether no other namespace gets the rules.
func (e exports) private() bool { return len(e) == 1 && e[0] == "." }

// to reports whether a namespace gets the rules of the namespace own.
func (e exports) to(namespace, own string) bool {
	return slices.Contains(e, "*") || slices.Contains(e, namespace) || namespace == own && slices.Contains(e, ".")
}

// hostRule is a rule with its exports.
type hostRule struct {
	*snapshot.HostRule
	exports exports
	// Cut names the oldest DestinationRule of which subsets are left out, because there are too many.
	Cut string
}

func (r hostRule) equal(other hostRule) bool {
	return slices.Equal(r.exports, other.exports) && r.Cut == other.Cut && r.Namespace == other.Namespace && r.Name == other.Name && r.Selector == other.Selector &&
		proto.Equal(r.Policy, other.Policy) && slices.EqualFunc(r.Subsets, other.Subsets, func(a, b *networkingv1alpha3.Subset) bool { return proto.Equal(a, b) })
}

func equalMerged(a, b []hostRule) bool { return slices.EqualFunc(a, b, hostRule.equal) }

// mergeRules merges the DestinationRules of a namespace for a host: the rules with the
// same exports and the same selector become one. The rules without a selector also
// complete each rule with one. In a merge the oldest policy wins, and the oldest subset
// of a name. Rules with selectors are first. Of the others, the one that begins with the newest
// is first, as with Istio; see visibleRules.
func (t *Tables) mergeRules(r *derive.Reads, k ruleKey) ([]hostRule, bool) {
	rules := oldestFirst(t.rulesFor.Lookup(r, k))
	slices.SortStableFunc(rules, func(x, y *snapshot.DestinationRule) int {
		return boolOrder(x.Spec.GetWorkloadSelector() == nil, y.Spec.GetWorkloadSelector() == nil)
	})
	byDefault := meshConfig(t.MeshSettings.Get(r)).GetDefaultDestinationRuleExportTo()
	var out []hostRule
	for _, d := range rules {
		to, selector := exportsOf(d, byDefault), snapshot.SelectorOf(d.Spec.GetWorkloadSelector().GetMatchLabels())
		known := false
		for i := range out {
			h := &out[i]
			same := h.Selector == selector && slices.Equal(h.exports, to)
			if same || selector == "" && h.Selector != "" {
				h.complete(d)
			}
			known = known || same
		}
		if !known {
			h := hostRule{HostRule: &snapshot.HostRule{Namespace: d.Namespace, Name: d.Name, Selector: selector}, exports: to}
			h.complete(d)
			out = append(out, h)
		}
	}
	slices.Reverse(out[selectors(out):])
	return out, true
}

// selectors returns the number of rules with a selector, which are first.
func selectors(rules []hostRule) int {
	n := slices.IndexFunc(rules, func(h hostRule) bool { return h.Selector == "" })
	if n < 0 {
		return len(rules)
	}
	return n
}

func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// complete adds the policy and the subsets that a rule lacks.
func (r *hostRule) complete(d *snapshot.DestinationRule) {
	if r.Policy == nil {
		r.Policy = d.Spec.GetTrafficPolicy()
	}
	for _, s := range d.Spec.GetSubsets() {
		if len(r.Subsets) == MaxHostSubsets {
			r.Cut = cmp.Or(r.Cut, d.Name)
			return
		}
		if r.Subset(s.GetName()) == nil {
			r.Subsets = append(r.Subsets, s)
		}
	}
}

// patterns yields what patternOf returns for the hosts of rules that match a host, the most specific
// one first.
func patterns(host string, yield func(string) bool) {
	if !yield(host) {
		return
	}
	for rest := host; ; {
		_, after, ok := strings.Cut(rest, ".")
		if !ok {
			break
		}
		if !yield("*." + after) {
			return
		}
		rest = after
	}
	yield("*")
}

// patternOf returns the shortest wildcard of whole labels that covers a wildcard: *.x for *-a.x. Other
// hosts, which are the same, are returned as they are.
func patternOf(host string) string {
	suffix, wild := strings.CutPrefix(host, "*")
	if !wild || suffix == "" || suffix[0] == '.' {
		return host
	}
	_, rest, dotted := strings.Cut(suffix, ".")
	if !dotted {
		return "*"
	}
	return "*." + rest
}

// ruleKeys returns the keys of the rules with a pattern that apply to a host, the most specific
// one first.
func (t *Tables) ruleKeys(r *derive.Reads, pattern, host string) []ruleKey {
	var out []ruleKey
	for k := range t.ruleGroups.Lookup(r, pattern) {
		if k.Host == host || snapshot.Covers(k.Host, host) {
			out = append(out, k)
		}
	}
	slices.SortStableFunc(out, func(a, b ruleKey) int { return cmp.Compare(len(b.Host), len(a.Host)) })
	return out
}

// rulesOf returns the DestinationRules of the service with a key. It returns false if
// there are none.
//
// A client gets the rules of its own namespace. If it has none for the host, the client
// gets the exported rules of the service's namespace, else of the root namespace. In
// each namespace only the most specific host counts. The own rules of the root namespace
// precede only if they are private: most of them are defaults for the mesh.
func (t *Tables) rulesOf(r *derive.Reads, key string) (*snapshot.HostRules, bool) {
	d, host, _, ok := t.define(r, key)
	if !ok {
		return nil, false
	}
	own, exported := map[string][]hostRule{}, map[string][]hostRule{}
	clients := Set[string]{}
	patterns(host, func(pattern string) bool {
		for _, k := range t.ruleKeys(r, pattern, host) {
			rules, _ := t.MergedRules.Get(r, k)
			add := func(to map[string][]hostRule, keep func(hostRule) bool) {
				if list := filter(rules, keep); to[k.Namespace] == nil && len(list) > 0 {
					to[k.Namespace] = list
				}
			}
			root := k.Namespace == t.rootNamespace.Get(r)
			add(own, func(h hostRule) bool { return h.exports.to(k.Namespace, k.Namespace) && (!root || h.exports.private()) })
			add(exported, func(h hostRule) bool { return !h.exports.private() })
		}
		return true
	})
	if len(own)+len(exported) == 0 {
		return nil, false
	}
	exporters := []string{d.meta().Namespace, t.rootNamespace.Get(r)}
	var known visibleRules
	rulesFor := func(client string) []*snapshot.HostRule {
		if list := own[client]; len(list) > 0 {
			return known.of(list)
		}
		for _, ns := range exporters {
			if list := filter(exported[ns], func(h hostRule) bool { return h.exports.to(client, ns) }); len(list) > 0 {
				return known.of(list)
			}
		}
		return nil
	}
	out := &snapshot.HostRules{Default: rulesFor(""), Own: map[string][]*snapshot.HostRule{}}
	for ns := range own {
		clients.Add(ns)
	}
	for _, ns := range exporters {
		clients.Add(ns)
		for _, h := range exported[ns] {
			for _, to := range h.exports {
				clients.Add(to)
			}
		}
	}
	for client := range clients {
		if list := rulesFor(client); mesh.IsDNSLabel(client) && !slices.Equal(list, out.Default) {
			out.Own[client] = list
		}
	}
	if len(out.Default)+len(out.Own) == 0 {
		return nil, false
	}
	return out, true
}

func filter[T any](list []T, keep func(T) bool) (out []T) {
	for _, v := range list {
		if keep(v) {
			out = append(out, v)
		}
	}
	return out
}

func equalRules(a, b *snapshot.HostRules) bool {
	same := func(a, b []*snapshot.HostRule) bool {
		return slices.EqualFunc(a, b, func(a, b *snapshot.HostRule) bool {
			return a == b || (hostRule{HostRule: a}).equal(hostRule{HostRule: b})
		})
	}
	return same(a.Default, b.Default) && maps.EqualFunc(a.Own, b.Own, same)
}

// ruleScope returns the facts of a namespace to which other rules apply than to most
// namespaces.
func (t *Tables) ruleScope(r *derive.Reads, ns string) (*snapshot.RuleScope, bool) {
	selectors := map[snapshot.LabelSelector]map[string]string{}
	for _, d := range t.selectingRules.Lookup(r, ns) {
		labels := d.Spec.GetWorkloadSelector().GetMatchLabels()
		selectors[snapshot.SelectorOf(labels)] = labels
	}
	out := &snapshot.RuleScope{Hashes: t.hashedIn.Len(r, ns) > 0}
	for _, k := range slices.Sorted(maps.Keys(selectors)) {
		out.Selectors = append(out.Selectors, selectors[k])
	}
	return out, true
}

func equalScope(a, b *snapshot.RuleScope) bool {
	return a.Hashes == b.Hashes && slices.EqualFunc(a.Selectors, b.Selectors, maps.Equal[map[string]string])
}

// setHashed sets the ports of a service at which DestinationRules hash requests. A rule with
// a selector counts for all clients of its namespace.
func (t *Tables) setHashed(r *derive.Reads, svc *snapshot.MeshService) {
	rules, ok := t.HostRules.Get(r, svc.Key)
	if !ok {
		return
	}
	ports := func(list []*snapshot.HostRule) (out []uint32) {
		for i := range svc.Ports {
			port := &svc.Ports[i]
			if port.Protocol != mesh.UDP && slices.ContainsFunc(list, func(h *snapshot.HostRule) bool {
				return h.PolicyAt(port.Number, nil).GetLoadBalancer().GetConsistentHash().GetHashKey() != nil
			}) {
				out = append(out, port.Number)
			}
		}
		return out
	}
	svc.Hashed = ports(rules.Default)
	for client, list := range rules.Own {
		if own := ports(list); !slices.Equal(own, svc.Hashed) {
			if svc.HashedIn == nil {
				svc.HashedIn = make(map[string][]uint32)
			}
			svc.HashedIn[client] = own
		}
	}
}

func equalHashed(a, b *snapshot.MeshService) bool {
	return slices.Equal(a.Hashed, b.Hashed) && maps.EqualFunc(a.HashedIn, b.HashedIn, slices.Equal[[]uint32])
}

// LimitsInbound reports whether some rule limits the connections of the service's own
// workloads. It may be nil.
func LimitsInbound(h *snapshot.HostRules) bool {
	limits := func(list []*snapshot.HostRule) bool {
		return slices.ContainsFunc(list, func(r *snapshot.HostRule) bool {
			return r.Policy.GetConnectionPool() != nil || len(r.Policy.GetPortLevelSettings()) > 0
		})
	}
	if h == nil {
		return false
	}
	for _, list := range h.Own {
		if limits(list) {
			return true
		}
	}
	return limits(h.Default)
}
