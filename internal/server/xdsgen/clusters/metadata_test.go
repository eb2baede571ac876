package clusters

import (
	"bytes"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestMetadata compares metadata with the same metadata from the ordinary encoder.
func TestMetadata(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 200) // its lengths take two bytes
	for name, tc := range map[string]struct {
		got  *corev3.Metadata
		want map[string]map[string]any
	}{
		"VirtualService": {
			ConfigMetadata(&snapshot.VirtualService{Meta: snapshot.Meta{Namespace: "a", Name: long}}),
			map[string]map[string]any{"istio": {"config": "/apis/networking.istio.io/v1/namespaces/a/virtual-service/" + long}},
		},
		"services": {
			ServiceMetadata(ServiceID{"s", "a", "s.a"}, ServiceID{"", long, "t"}),
			map[string]map[string]any{"istio": {"services": []any{
				map[string]any{"name": "s", "namespace": "a", "host": "s.a"}, map[string]any{"name": "", "namespace": long, "host": "t"},
			}}},
		},
		"subset of an external service": {
			ClusterOf{
				ServiceClusters: ServiceClusters{
					Service: &snapshot.MeshService{Name: "s", Namespace: "a", Host: "s.a", External: true}, Rule: &snapshot.HostRule{Name: "r", Namespace: "b"},
				},
				subset: &networkingv1alpha3.Subset{Name: "v1"},
			}.Metadata("h2"),
			map[string]map[string]any{
				"istio": {
					"services": []any{map[string]any{"name": "s", "namespace": "a", "host": "s.a"}}, "external": true, "subset": "v1",
					"config": "/apis/networking.istio.io/v1/namespaces/b/destination-rule/r",
				},
				"meshctl": {"alpn": "h2"},
			},
		},
	} {
		want := &corev3.Metadata{FilterMetadata: make(map[string]*structpb.Struct)}
		for namespace, fields := range tc.want {
			s, err := structpb.NewStruct(fields)
			if err != nil {
				t.Fatal(err)
			}
			want.FilterMetadata[namespace] = s
		}
		a, err := xdswire.Marshal(tc.got)
		if err != nil {
			t.Fatal(err)
		}
		b, err := xdswire.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s: the metadata is encoded as\n%q, want\n%q", name, a, b)
		}
	}
}
