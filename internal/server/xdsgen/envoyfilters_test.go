package xdsgen_test

import (
	"path/filepath"
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestFiltersKeepSharing: workloads with the same filters have the same views. An HTTP
// filter for one port affects only the listeners of that port.
func TestFiltersKeepSharing(t *testing.T) {
	dir := filepath.Join("testdata", "two-networks")
	events := readObjects(t, "cluster1", filepath.Join(dir, "cluster1", "all.yaml"))
	filter := func(namespace string) snapshot.Event {
		f := &snapshot.EnvoyFilter{Meta: metaOf("cluster1", namespace, "f"), Selector: map[string]string{"app": "web"}}
		f.Extensions = []snapshot.Extension{{Name: "e", Body: "b"}}
		f.Patches = []*snapshot.Patch{{Of: f.Key(), Spec: &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch{
			ApplyTo: networkingv1alpha3.EnvoyFilter_HTTP_FILTER,
			Match: &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch{
				Context: networkingv1alpha3.EnvoyFilter_SIDECAR_OUTBOUND,
				ObjectTypes: &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch_Listener{
					Listener: &networkingv1alpha3.EnvoyFilter_ListenerMatch{PortNumber: 5000},
				},
			},
			Patch: &networkingv1alpha3.EnvoyFilter_Patch{Operation: networkingv1alpha3.EnvoyFilter_Patch_INSERT_FIRST},
		}, Value: &hcmv3.HttpFilter{Name: "f"}}}
		return put(f)
	}
	s := build(t, []mesh.ClusterID{"cluster1"}, append(events, filter("other"), filter("another")))
	plain := testNodes()[0]
	plain.Cluster, plain.Namespace, plain.Labels = "cluster1", "other", map[string]string{"app": "db"}
	web := plain
	web.Labels = map[string]string{"app": "web"}
	twin := web
	twin.ID.Name = "p1"
	elsewhere := web
	elsewhere.Namespace = "sample" // a namespace with other objects

	without, with := xdsgen.Assign(s, plain), xdsgen.Assign(s, web)
	for typ, views := range xdsgen.Assign(s, twin) {
		if views != with[typ] {
			t.Errorf("%s: a workload with the same labels has views of its own", xdswire.ShortType(typ))
		}
	}
	for typ, views := range without {
		differs := typ == xdswire.ListenerType || typ == xdswire.ExtensionType
		if (views.Shared != with[typ].Shared) != differs || views.Own != with[typ].Own {
			t.Errorf("%s: views are %+v with filters and %+v without", xdswire.ShortType(typ), with[typ], views)
		}
	}
	if v := xdsgen.Assign(s, elsewhere)[xdswire.ExtensionType]; v != (units.Views{}) {
		t.Errorf("a workload of another namespace has the extensions %+v", v)
	}
	has, had := list(s, with[xdswire.ListenerType].Shared), list(s, without[xdswire.ListenerType].Shared)
	for key, unit := range had {
		if (has[key] != unit) != (key == units.Key{Kind: units.PortKey, Number: 5000}) {
			t.Errorf("listeners of %v: %+v with filters and %+v without", key, has[key], unit)
		}
	}
	if len(has) != len(had) || len(had) < 3 {
		t.Errorf("%d units with filters, %d without", len(has), len(had))
	}
}
