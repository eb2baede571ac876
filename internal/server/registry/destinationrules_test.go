package registry

import (
	"testing"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// destinationRule returns a rule with a subset of its name.
func destinationRule(ns, n, host string, age time.Duration, exportTo ...string) *snapshot.DestinationRule {
	d := &snapshot.DestinationRule{Meta: meta("c1", ns, n), Kind: snapshot.KindDestinationRule, Spec: &networkingv1alpha3.DestinationRule{
		Host: host, ExportTo: exportTo, Subsets: []*networkingv1alpha3.Subset{{Name: n}},
	}}
	d.Created = epoch.Add(-age)
	return d
}

func selecting(d *snapshot.DestinationRule, app string) *snapshot.DestinationRule {
	d.Spec.WorkloadSelector = &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": app}}
	return d
}

// TestRuleOfClient checks the order in which the rules of namespaces and hosts apply.
func TestRuleOfClient(t *testing.T) {
	t.Parallel()
	const full, wild = "web.sample.svc.cluster.local", "*.sample.svc.cluster.local"
	rules := func(of ...*snapshot.DestinationRule) []*snapshot.DestinationRule { return of }
	for name, c := range map[string]struct {
		rules []*snapshot.DestinationRule
		want  map[string]string // subsets by the namespace of a client with the label app=a
	}{
		"service namespace": {
			rules(destinationRule("sample", "s", "web", 0)),
			map[string]string{"sample": "s", "other": "s", "istio-system": "s"},
		},
		"a short name is in the rule's namespace": {
			rules(destinationRule("other", "o", "web", 0)), map[string]string{"sample": "", "other": ""},
		},
		"client, service, root": {
			rules(destinationRule("other", "o", full, 0), destinationRule("sample", "s", "web", 0), destinationRule("istio-system", "r", "*", 0)),
			map[string]string{"sample": "s", "other": "o", "third": "s", "istio-system": "s"},
		},
		"root": {
			rules(destinationRule("istio-system", "r", "*.local", 0)), map[string]string{"sample": "r", "istio-system": "r"},
		},
		"private in the root namespace": {
			rules(destinationRule("istio-system", "r", "*", 0, "."), destinationRule("sample", "s", full, 0)),
			map[string]string{"istio-system": "r", "sample": "s", "other": "s"},
		},
		"longest suffix": {
			rules(destinationRule("sample", "a", "*.cluster.local", 0), destinationRule("sample", "b", wild, 0), destinationRule("sample", "c", "*", 0)),
			map[string]string{"sample": "b", "other": "b"},
		},
		"a specific host hides an exported wildcard": {
			rules(destinationRule("sample", "a", full, 0, "."), destinationRule("sample", "b", wild, 0)),
			map[string]string{"sample": "a", "other": "b"},
		},
		"exported to a namespace": {
			rules(destinationRule("sample", "s", full, 0, "other"), destinationRule("istio-system", "r", "*", 0)),
			map[string]string{"sample": "r", "other": "s", "third": "r"},
		},
		"merged by age": {
			rules(destinationRule("sample", "b", full, 0), destinationRule("sample", "a", "web", time.Hour)),
			map[string]string{"sample": "a b", "other": "a b"},
		},
		"exports differ": {
			rules(destinationRule("sample", "a", full, time.Hour, "."), destinationRule("sample", "b", full, 0)),
			map[string]string{"sample": "b a", "other": "b"},
		},
		"exports differ, the private rule is the newest": {
			rules(destinationRule("sample", "a", full, time.Hour), destinationRule("sample", "b", full, 0, ".")),
			map[string]string{"sample": "b a", "other": "a"},
		},
		"exports differ, with a selector": {
			rules(destinationRule("sample", "a", full, time.Hour), destinationRule("sample", "b", full, 0, "."), selecting(destinationRule("sample", "x", full, 0), "b")),
			map[string]string{"sample": "b a", "other": "a"},
		},
		"selector": {
			rules(destinationRule("sample", "s", full, time.Hour), selecting(destinationRule("sample", "x", full, 0), "a"), selecting(destinationRule("sample", "y", full, 0), "b")),
			map[string]string{"sample": "x s", "other": "s"},
		},
		"selector that selects nothing": {
			rules(selecting(destinationRule("sample", "x", full, 0), "b"), destinationRule("istio-system", "r", "*", 0)),
			map[string]string{"sample": "", "other": "r"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTestState(t)
			b.apply(up(service("c1", "web")))
			for _, d := range c.rules {
				b.apply(up(d))
			}
			check := func(ns, want string) {
				t.Helper()
				client := snapshot.RuleClientOf(b.snap.Namespaces.Get(ns), map[string]string{"app": "a"})
				got := ""
				if r := b.snap.Rules.Get(full).For(client); r != nil {
					for _, s := range r.Subsets {
						got += " " + s.Name
					}
					got = got[1:]
				}
				if got != want {
					t.Errorf("client of %s: got %q, want %q", ns, got, want)
				}
			}
			for ns, want := range c.want {
				check(ns, want)
			}
			for _, d := range c.rules {
				b.apply(down(d))
			}
			for ns := range c.want {
				check(ns, "")
				if facts := b.snap.Namespaces.Get(ns); facts != nil && facts.Rules != nil {
					t.Errorf("%s still has own rules", ns)
				}
			}
		})
	}
}

// TestRuleTouchesItsHosts: a DestinationRule changes the rules of its hosts and nothing
// else, and clients of different namespaces share the result.
func TestRuleTouchesItsHosts(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	b.apply(up(service("c1", "web")), up(service("c1", "db")))
	d := destinationRule("sample", "s", "web", 0)
	c := b.apply(up(d))
	if _, ok := c.Rules["web.sample.svc.cluster.local"]; !ok || len(c.Rules) != 1 || c.Kinds() != snapshot.RuleFacts || len(c.Namespaces) > 0 || c.Everywhere {
		t.Errorf("changes: %+v", c)
	}
	rules := b.snap.Rules.Get(mesh.ServiceHost("web", "sample", mesh.DefaultDomain))
	if len(rules.Own) > 0 || rules.For(snapshot.RuleClient{}) != rules.For(snapshot.RuleClient{Namespace: "sample"}) {
		t.Errorf("rules: %+v", rules)
	}
	b.apply(up(selecting(destinationRule("sample", "x", "db", 0), "a")))
	if b.snap.Namespaces.Get("sample").Rules == nil || b.snap.Rules.Get(mesh.ServiceHost("web", "sample", mesh.DefaultDomain)) != rules {
		t.Errorf("a private rule of another host changed %v", rules)
	}
}
