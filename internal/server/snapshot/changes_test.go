package snapshot

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/mesh"
)

func TestMergeChanges(t *testing.T) {
	set := func(names ...string) map[string]struct{} {
		m := make(map[string]struct{})
		for _, n := range names {
			m[n] = struct{}{}
		}
		return m
	}
	networks, gateways := map[mesh.ClusterID]struct{}{"c": {}}, map[mesh.NetworkID]struct{}{"n": {}}
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	a := &Changes{
		Services: set("a"), Rules: set("r"), Routes: set("v"), Referrers: set("d"), GatewayRoutes: set("g"), TrustBundle: true, Localities: true, Endpoints: set("e"), Ports: map[uint32]struct{}{1: {}},
		Networks: networks, Gateways: gateways, Mesh: true, Everywhere: true, Since: late,
		Causes: []Cause{{Key: Key{Name: "one"}}}, Events: 1,
	}
	b := &Changes{
		Services: set("b"), GatewayRoutes: set("h"), RoutePorts: map[uint32]struct{}{3: {}}, Pods: set("p"), Secrets: set("s"), Namespaces: set("n"), Ports: map[uint32]struct{}{2: {}}, GatewayConfigs: true, Traits: true, Since: early,
		Causes: slices.Repeat([]Cause{{Key: Key{Name: "more"}}}, maxCauses), Events: 20,
	}
	want := &Changes{
		Services: set("a", "b"), Rules: set("r"), Routes: set("v"), RoutePorts: map[uint32]struct{}{3: {}}, Referrers: set("d"), GatewayRoutes: set("g", "h"), TrustBundle: true, Localities: true, Endpoints: set("e"), Pods: set("p"), Secrets: set("s"), Namespaces: set("n"),
		Ports: map[uint32]struct{}{1: {}, 2: {}}, Networks: networks, Gateways: gateways, Mesh: true, GatewayConfigs: true, Traits: true,
		Everywhere: true, Since: early,
		Causes: append([]Cause{{Key: Key{Name: "one"}}}, slices.Repeat([]Cause{{Key: Key{Name: "more"}}}, maxCauses-1)...),
		Events: 21,
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Changes]()) {
		if f.Type.Kind() == reflect.Map && reflect.ValueOf(*want).FieldByIndex(f.Index).Len() == 0 {
			t.Errorf("the test merges no %s", f.Name)
		}
	}
	if d := cmp.Diff(want, a.Merge(b)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if len(a.Services) != 1 || len(b.Services) != 1 || len(a.Causes) != 1 {
		t.Error("merging writes to what it merges")
	}
	if (*Changes)(nil).Merge(a) != a {
		t.Error("the first changes are not taken as they are")
	}
}

// TestEveryChangeCounts: changes of any kind are not empty, and only changes of pods and
// localities may come with OnlyEndpoints.
func TestEveryChangeCounts(t *testing.T) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Changes]()) {
		c := &Changes{}
		field := reflect.ValueOf(c).Elem().FieldByIndex(f.Index)
		switch f.Type.Kind() {
		case reflect.Map:
			m := reflect.MakeMap(f.Type)
			m.SetMapIndex(reflect.Zero(f.Type.Key()), reflect.Zero(f.Type.Elem()))
			field.Set(m)
		case reflect.Bool:
			field.SetBool(true)
		default:
			continue
		}
		if c.Empty() {
			t.Errorf("changes of %s are empty", f.Name)
		}
		c.Endpoints = map[string]struct{}{"e": {}}
		if want := slices.Contains([]string{"Endpoints", "Pods", "Localities"}, f.Name); c.OnlyEndpoints() != want {
			t.Errorf("changes of endpoints and %s are only endpoints: %v, want %v", f.Name, !want, want)
		}
	}
}
