package patch

import (
	"fmt"
	"slices"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// TestManyPatchesOfOneCluster: among many patches of a cluster, each whose result is invalid has a fault
// and no effect, and the others apply in their order.
func TestManyPatchesOfOneCluster(t *testing.T) {
	t.Parallel()
	const n = 100
	for _, bad := range [][]int{nil, {0}, {n - 1}, {3, 4, 50}} {
		var patches []*snapshot.Patch
		for i := range n {
			value := &clusterv3.Cluster{AltStatName: fmt.Sprint(i)}
			if slices.Contains(bad, i) {
				value.ConnectTimeout = durationpb.New(-time.Second)
			}
			patches = append(patches, &snapshot.Patch{
				Index: i, Value: value,
				Spec: &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch{
					ApplyTo: networkingv1alpha3.EnvoyFilter_CLUSTER,
					Patch:   &networkingv1alpha3.EnvoyFilter_Patch{Operation: networkingv1alpha3.EnvoyFilter_Patch_MERGE},
				},
			})
		}
		c := &clusterv3.Cluster{Name: "c"}
		p := patcher{patches: wire.ListOf(patches)}
		if !p.Cluster(c) || !p.changed {
			t.Fatal("the cluster is removed or unchanged")
		}
		var faults []int
		for _, f := range p.faults {
			faults = append(faults, f.Patch)
		}
		last := n - 1
		if slices.Contains(bad, last) {
			last--
		}
		if !slices.Equal(faults, bad) || c.GetAltStatName() != fmt.Sprint(last) || c.GetConnectTimeout() != nil {
			t.Errorf("faults of %v: want %v; cluster %v", faults, bad, c)
		}
	}
}

// BenchmarkManyPatchesOfOneCluster applies the patches of several EnvoyFilters to a cluster.
func BenchmarkManyPatchesOfOneCluster(b *testing.B) {
	patches := make([]*snapshot.Patch, 5000)
	for i := range patches {
		patches[i] = &snapshot.Patch{
			Index: i, Value: &clusterv3.Cluster{AltStatName: fmt.Sprint(i)},
			Spec: &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch{
				ApplyTo: networkingv1alpha3.EnvoyFilter_CLUSTER,
				Patch:   &networkingv1alpha3.EnvoyFilter_Patch{Operation: networkingv1alpha3.EnvoyFilter_Patch_MERGE},
			},
		}
	}
	list := wire.ListOf(patches)
	for b.Loop() {
		p := patcher{patches: list}
		p.Cluster(&clusterv3.Cluster{Name: "c", ConnectTimeout: durationpb.New(time.Second)})
	}
}
