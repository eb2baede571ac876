package registry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// logConflicts logs the conflicts that were not there before.
func (s *state) logConflicts(before, now []facts.AddressConflict) {
	known := make(map[[3]string]struct{}, len(before))
	id := func(c facts.AddressConflict) [3]string { return [3]string{c.Address.String(), c.Used, c.Unused} }
	for _, c := range before {
		known[id(c)] = struct{}{}
	}
	logNew(now, func(c facts.AddressConflict) bool {
		_, old := known[id(c)]
		return old
	}, func(c facts.AddressConflict) {
		s.cfg.Log.Warn("two services have one address: proxies use it for the first one only", "address", c.Address.String(),
			"first", c.Used, "second", c.Unused, "proxies_of", c.Clusters)
	}, func(more int) {
		s.cfg.Log.Warn("more services share addresses: see the status page clusters", "more", more)
	})
}

// describeDuplicates describes the extensions, and logs those that were not there before.
func (s *state) describeDuplicates(before, now []facts.DuplicateExtension) []string {
	return describeNew(before, now, func(d facts.DuplicateExtension) {
		s.cfg.Log.Warn("an extension is configured twice, the first counts for proxies that both select", "extension", d.Extension,
			"first", d.First.String(), "first_at", d.FirstAt.String(), "second", d.Second.String(), "second_at", d.SecondAt.String())
	}, func(more int) {
		s.cfg.Log.Warn("more extensions are configured twice: see /ready?verbose", "more", more)
	})
}

// describeServerConflicts describes the conflicts, and logs those that were not there before.
func (s *state) describeServerConflicts(before, now []facts.ServerConflict) []string {
	return describeNew(before, now, func(c facts.ServerConflict) {
		s.cfg.Log.Warn("a server of a Gateway is not opened", "gateway", c.Gateway.String(), "at", c.At.String(), "server", c.Index, "reason", c.Reason)
	}, func(more int) {
		s.cfg.Log.Warn("more servers of Gateways are not opened: see /ready?verbose", "more", more)
	})
}

// logHostConflicts logs the conflicts that were not there before.
func (s *state) logHostConflicts(before, now []facts.HostConflict) {
	logNew(now, func(c facts.HostConflict) bool {
		_, old := slices.BinarySearchFunc(before, c.Host, func(b facts.HostConflict, host string) int { return cmp.Compare(b.Host, host) })
		return old
	}, func(c facts.HostConflict) {
		s.cfg.Log.Warn("several objects define one host: proxies use the first one", "host", c.Host, "first", c.First, "others", c.Others)
	}, func(more int) {
		s.cfg.Log.Warn("more hosts are defined several times", "more", more)
	})
}

// logNew calls log for each problem that was not there before, at most maxLogged times, and
// more with the number of the others.
func logNew[T any](now []T, before func(T) bool, log func(T), more func(n int)) {
	n := 0
	for _, p := range now {
		if before(p) {
			continue
		}
		if n++; n <= maxLogged {
			log(p)
		}
	}
	if n > maxLogged {
		more(n - maxLogged)
	}
}

// describeNew returns a line for each problem, sorted and each once, and logs as logNew does.
func describeNew[T interface {
	comparable
	fmt.Stringer
}](before, now []T, log func(T), more func(n int)) []string {
	known := make(facts.Set[T], len(before))
	for _, p := range before {
		known.Add(p)
	}
	logNew(now, known.Has, log, more)
	lines := make([]string, len(now))
	for i, p := range now {
		lines[i] = p.String()
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// reportLimits reports the objects beyond limits, and logs those that were not there before.
func (s *state) reportLimits() {
	changed := s.BeyondSubsets.Differs() || s.MergedRules.Differs() || s.Eldest.Differs()
	for _, l := range s.Limits {
		changed = changed || l.Beyond.Differs()
	}
	if !changed {
		return
	}
	var now []beyondLimit
	for _, l := range s.Limits {
		for ns, keys := range l.Beyond.All() {
			for _, k := range keys[:min(len(keys), facts.MaxBeyond)] {
				now = append(now, beyondLimit{snapshot.Key{Kind: l.Kind, Cluster: k.Cluster, Namespace: k.Namespace, Name: k.Name}, l.Text(ns)})
			}
		}
	}
	for ns, keys := range s.BeyondSubsets.All() {
		for _, key := range keys[:min(len(keys), facts.MaxBeyond)] {
			now = append(now, s.beyondSubsetsOf(ns, key)...)
		}
	}
	for host, v := range s.Crowded.Lookup(nil, struct{}{}) {
		for _, k := range v.Beyond[:min(len(v.Beyond), facts.MaxBeyond)] {
			text := fmt.Sprintf("is not used for %s: namespace %s has more than %d older VirtualServices with this host for sidecars", host, k.Namespace, facts.MaxSameHost)
			now = append(now, beyondLimit{snapshot.Key{Kind: snapshot.KindVirtualService, Cluster: k.Cluster, Namespace: k.Namespace, Name: k.Name}, text})
		}
	}
	for k, rules := range s.CutRules.Lookup(nil, struct{}{}) {
		for _, h := range rules {
			if h.Cut != "" {
				text := fmt.Sprintf("has subsets that are not used: the DestinationRules of namespace %s for host %s have more than %d subsets", k.Namespace, k.Host, facts.MaxHostSubsets)
				now = append(now, beyondLimit{snapshot.Key{Kind: snapshot.KindDestinationRule, Cluster: s.cfg.Local, Namespace: k.Namespace, Name: h.Cut}, text})
			}
		}
	}
	slices.SortFunc(now, beyondLimit.compare)
	before := s.report.beyond
	logNew(now, func(b beyondLimit) bool {
		_, old := slices.BinarySearchFunc(before, b, beyondLimit.compare)
		return old
	}, func(b beyondLimit) {
		s.cfg.Log.Warn("an object is beyond a limit of its namespace", "object", b.object.String(), "problem", b.text)
	}, func(more int) {
		s.cfg.Log.Warn("more objects are beyond limits of their namespaces", "more", more)
	})
	s.report.beyond = now
}

// beyondSubsetsOf describes the DestinationRules of a namespace that lose their subsets for a service.
func (s *state) beyondSubsetsOf(ns, key string) (out []beyondLimit) {
	rules, _ := s.HostRules.Get(nil, key)
	if rules == nil {
		return nil
	}
	host, _, _ := strings.Cut(key, "/")
	text := fmt.Sprintf("has no subsets for %s: with them, the DestinationRules of namespace %s would become more than %d clusters of subsets", host, ns, facts.MaxSubsetClusters)
	for _, h := range slices.Concat(append(slices.Collect(maps.Values(rules.Own)), rules.Default)...) {
		b := beyondLimit{snapshot.Key{Kind: snapshot.KindDestinationRule, Cluster: s.cfg.Local, Namespace: h.Namespace, Name: h.Name}, text}
		if h.Namespace == ns && len(h.Subsets) > 0 && !slices.Contains(out, b) {
			out = append(out, b)
		}
	}
	return out
}

// logRouteProblems logs the problems that were not there before.
func (s *state) logRouteProblems(before, now []facts.RouteProblem) {
	logNew(now, func(p facts.RouteProblem) bool {
		_, old := slices.BinarySearchFunc(before, p, facts.RouteProblem.Compare)
		return old
	}, func(p facts.RouteProblem) {
		s.cfg.Log.Warn("VirtualService with a problem", "namespace", p.Namespace, "name", p.Name, "problem", p.Problem)
	}, func(more int) {
		s.cfg.Log.Warn("more problems of VirtualServices", "more", more)
	})
}

// describeUnknownProviders describes the providers, and logs those that were not there before.
func (s *state) describeUnknownProviders(before, now []facts.UnknownProvider) []string {
	return describeNew(before, now, func(u facts.UnknownProvider) {
		s.cfg.Log.Warn("a policy names a provider that does not work", "policy", u.Policy.String(),
			"at", u.At.String(), "provider", u.Provider, "reason", u.Problem)
	}, func(more int) {
		s.cfg.Log.Warn("more policies name providers that do not work: see /ready?verbose", "more", more)
	})
}

// logUnreachable logs the networks that cannot be reached now, if the cause is new, and
// those that can be reached again.
func (s *state) logUnreachable(before, now []facts.UnreachableNetwork) {
	for _, u := range now {
		if !slices.Contains(before, u) {
			s.cfg.Log.Warn("network has no usable gateway: proxies in other networks get none of its endpoints",
				"network", u.Network, "cause", u.Cause)
		}
	}
	for _, u := range before {
		if len(s.MeshGateways.Get(nil).ByNetwork[u.Network]) > 0 {
			s.cfg.Log.Info("network has a usable gateway again", "network", u.Network)
		}
	}
}

// maxLogged is the number of new problems of one kind that are logged after a change.
const maxLogged = 16

// beyondLimit is an object that a limit of its namespace leaves out, in whole or in part.
type beyondLimit struct {
	object snapshot.Key
	text   string
}

func (b beyondLimit) String() string { return b.object.String() + ": " + b.text }

func (b beyondLimit) compare(other beyondLimit) int {
	return cmp.Or(compareKeys(b.object, other.object), strings.Compare(b.text, other.text))
}

func compareKeys(a, b snapshot.Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), facts.KeyOf(a).Compare(facts.KeyOf(b)))
}
