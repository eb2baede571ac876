package registry

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestMultiClusterServices: a ServiceImport defines a service of clusterset.local with the
// endpoints of the clusters that export it, and with the addresses that each cluster gives it.
func TestMultiClusterServices(t *testing.T) {
	const imported = "hello.sample.svc.clusterset.local"
	b := newTestState(t)
	one, two := pod("c1", "a", "10.1.0.1"), pod("c2", "b", "10.2.0.1")
	b.apply(up(service("c1", "hello")), up(one), up(slice("c1", "hello", "x", one)), up(service("c2", "hello")), up(two), up(slice("c2", "hello", "y", two)))
	export := func(c mesh.ClusterID) *snapshot.ServiceExport {
		return &snapshot.ServiceExport{Meta: meta(c, "sample", "hello")}
	}
	from := func(c mesh.ClusterID, vip string) *snapshot.ServiceImport {
		return &snapshot.ServiceImport{Meta: meta(c, "sample", "hello"), VIPs: []netip.Addr{netip.MustParseAddr(vip)}}
	}
	check := func(when string, clusters []mesh.ClusterID, vips map[mesh.ClusterID]string) {
		t.Helper()
		svc := b.snap.Services.Get(imported)
		if (svc != nil) != (clusters != nil) {
			t.Fatalf("%s: the service is %+v", when, svc)
		}
		if svc == nil {
			return
		}
		var got []mesh.ClusterID
		for _, e := range b.snap.Endpoints.Get(imported).ByPort["http"] {
			got = append(got, e.Cluster)
		}
		if !slices.Equal(got, clusters) {
			t.Errorf("%s: endpoints of %v, want %v", when, got, clusters)
		}
		for c, vip := range vips {
			if in := svc.For(c); in == nil || !slices.Equal(in.VIPs, ips(vip)) {
				t.Errorf("%s: %s has the addresses %+v, want %s", when, c, in, vip)
			}
		}
	}
	b.apply(up(from("c1", "10.9.0.1")))
	check("without an export", nil, nil)
	c := b.apply(up(export("c2")))
	check("exported by one cluster", []mesh.ClusterID{"c2"}, map[mesh.ClusterID]string{"c1": "10.9.0.1", "c2": "10.9.0.1"})
	if len(c.Services) != 1 || len(c.Endpoints) != 1 {
		t.Errorf("an export changed the services %v and the endpoints %v, want only %s", c.Services, c.Endpoints, imported)
	}
	b.apply(up(export("c1")), up(from("c2", "10.9.0.2")))
	check("exported by both", []mesh.ClusterID{"c1", "c2"}, map[mesh.ClusterID]string{"c1": "10.9.0.1", "c2": "10.9.0.2"})
	b.apply(down(slice("c1", "hello", "x")))
	check("no endpoints in one", []mesh.ClusterID{"c2"}, nil)
	b.apply(down(from("c1", "10.9.0.1")), down(from("c2", "10.9.0.1")))
	check("not imported", nil, nil)
	if svc := b.snap.Services.Get(host); svc == nil || len(svc.Clusters) != 2 {
		t.Errorf("the service of cluster.local is %+v", svc)
	}
}
