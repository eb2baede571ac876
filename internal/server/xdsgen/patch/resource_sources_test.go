package patch

import (
	"fmt"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/clusters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/extensionconfig"
	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestSourcesOf: the sources of a resource are the EnvoyFilters that change it, else the objects that its
// metadata, its name or its view tells.
func TestSourcesOf(t *testing.T) {
	t.Parallel()
	var enc xdswire.Encoder
	resource := func(typ, name string, m proto.Message) *xdswire.Resource {
		r, err := enc.Resource(typ, name, m)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	merge := func(filter string, match *networkingv1alpha3.EnvoyFilter_ClusterMatch) *snapshot.Patch {
		return &snapshot.Patch{
			Of: snapshot.Key{Kind: snapshot.KindEnvoyFilter, Namespace: "shop", Name: filter},
			Spec: &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch{
				ApplyTo: networkingv1alpha3.EnvoyFilter_CLUSTER,
				Match: &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch{
					ObjectTypes: &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch_Cluster{Cluster: match},
				},
				Patch: &networkingv1alpha3.EnvoyFilter_Patch{Operation: networkingv1alpha3.EnvoyFilter_Patch_MERGE},
			},
			Value: &clusterv3.Cluster{AltStatName: "merged"},
		}
	}
	const name = "outbound|80||a.shop.svc.cluster.local"
	service := clusters.ClusterOf{ServiceClusters: clusters.ServiceClusters{Service: &snapshot.MeshService{Host: "a.shop.svc.cluster.local"}, Rule: &snapshot.HostRule{Namespace: "shop", Name: "a"}}}
	cluster := resource(xdswire.ClusterType, name, &clusterv3.Cluster{Name: name, Metadata: service.Metadata("")})
	route := func(name string) *routev3.Route {
		v := &snapshot.VirtualService{}
		v.Namespace, v.Name = "shop", name
		return &routev3.Route{Metadata: clusters.ConfigMetadata(v)}
	}
	routeConfig := resource(xdswire.RouteType, "80", &routev3.RouteConfiguration{Name: "80", VirtualHosts: []*routev3.VirtualHost{
		{Name: "a", Routes: []*routev3.Route{route("a"), route("a")}}, {Name: "b", Routes: []*routev3.Route{route("b"), {}}},
	}})
	patches := wire.ListOf([]*snapshot.Patch{
		merge("other", &networkingv1alpha3.EnvoyFilter_ClusterMatch{Name: "another"}), merge("mine", &networkingv1alpha3.EnvoyFilter_ClusterMatch{Name: name}),
	})
	for want, tt := range map[string]struct {
		view units.View
		of   *xdswire.Resource
	}{
		"DestinationRule shop/a":                       {clusters.View{}, cluster},
		"EnvoyFilter shop/mine":                        {PatchedView{View: clusters.View{}, patches: patches}, cluster},
		"VirtualService shop/a, VirtualService shop/b": {routes.View{}, routeConfig},
		"Secret edge/cert":                             {units.Secrets{Namespace: "edge"}, resource(xdswire.SecretType, "kubernetes://cert-cacert", &clusterv3.Cluster{})},
		"Secret other/cert":                            {units.Secrets{Namespace: "edge"}, resource(xdswire.SecretType, "kubernetes-gateway://other/cert", &clusterv3.Cluster{})},
		"EnvoyFilter shop/extension":                   {extensionconfig.View{Extensions: wire.ListOf([]units.Extension{{Name: "e", Of: snapshot.Key{Kind: snapshot.KindEnvoyFilter, Namespace: "shop", Name: "extension"}}})}, resource(xdswire.ExtensionType, "e", &clusterv3.Cluster{})},
	} {
		left := MaxSearched
		if got := strings.Join(SourcesOf(tt.view, tt.of, &left), ", "); got != want {
			t.Errorf("%s: %q", want, got)
		}
	}

	// A proxy may refuse thousands of resources with as many patches: the search is bounded for all of
	// them together, and so is its result for each.
	var many []*snapshot.Patch
	for i := range 3 * maxSources {
		many = append(many, merge(fmt.Sprintf("f%d", i), &networkingv1alpha3.EnvoyFilter_ClusterMatch{Name: name}))
	}
	view := PatchedView{View: clusters.View{}, patches: wire.ListOf(many)}
	left := 2*maxSources*cluster.Size() + 1
	for range 3 { // the budget ends with the second one
		if got := SourcesOf(view, cluster, &left); len(got) != maxSources || got[0] != "EnvoyFilter shop/f0" {
			t.Errorf("%d sources: %q", len(got), got)
		}
	}
	if left != 1 {
		t.Errorf("%d bytes are left", left)
	}
	if got := SourcesOf(clusters.View{}, cluster, &left); got != nil {
		t.Errorf("without a budget: %q", got)
	}
}
