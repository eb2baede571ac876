package registry

import (
	"maps"
	"slices"
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestDiscoverySelectors: only the objects of namespaces that a selector selects are in the
// mesh, whatever the order of events.
func TestDiscoverySelectors(t *testing.T) {
	t.Parallel()
	namespace := func(name string, labels ...string) snapshot.Event {
		return up(&snapshot.Namespace{Meta: meta("c1", "", name, labels...)})
	}
	in := func(namespace string) *snapshot.Service {
		s := service("c1", "web")
		s.Namespace = namespace
		return s
	}
	settings := func(selectors ...*meshv1alpha1.LabelSelector) snapshot.Event {
		return up(&snapshot.MeshSettings{Meta: meta("c1", "istio-system", "istio"), Mesh: &meshv1alpha1.MeshConfig{RootNamespace: "root", DiscoverySelectors: selectors}})
	}
	prod := &meshv1alpha1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}
	b := newTestState(t)
	check := func(when string, want ...string) {
		t.Helper()
		b.apply()
		var got []string
		for _, svc := range b.snap.Services.All() {
			got = append(got, svc.Namespace)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: services of %v, want %v", when, got, want)
		}
	}
	apply := func(events ...snapshot.Event) {
		for _, e := range events {
			b.s.Apply(e)
		}
	}
	apply(up(in("a")), up(in("b")), up(in("istio-system")), up(in("root")), namespace("a", "env", "prod"), namespace("b"))
	check("without selectors", "a", "b", "istio-system", "root")
	apply(settings(prod))
	check("one selected namespace", "a", "istio-system", "root")
	apply(up(in("c")))
	check("a service of an unknown namespace", "a", "istio-system", "root")
	apply(namespace("c", "env", "prod"))
	check("its namespace", "a", "c", "istio-system", "root")
	apply(namespace("b", "env", "prod"), namespace("a", "env", "test"))
	check("other labels", "b", "c", "istio-system", "root")
	apply(down(in("a")), namespace("a", "env", "prod"))
	check("a removed service", "b", "c", "istio-system", "root")
	apply(down(&snapshot.Namespace{Meta: meta("c1", "", "b")}))
	check("a removed namespace", "c", "istio-system", "root")
	if keys := b.s.Keys("c1"); !slices.Contains(keys, in("b").Key()) {
		t.Errorf("the held service is not among the objects of its cluster: %v", keys)
	}
	apply(settings())
	check("no selectors again", "b", "c", "istio-system", "root")
	apply(settings(prod))
	b.s.Remove("c1")
	check("no cluster")
	if n := len(slices.Collect(maps.Keys(b.s.Discovery.Held))); n != 0 {
		t.Errorf("objects of %d namespaces are held", n)
	}
}
