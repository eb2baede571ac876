package xdsgen_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// aliasObjects has ExternalName services that stand for a service, for another alias,
// for each other, for a host outside the mesh, and for hosts that no service has.
const aliasObjects = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIPs: [10.96.0.80]
  ports: [{name: http, port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: store, namespace: old}
spec: {type: ExternalName, externalName: web.shop.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: store, namespace: older}
spec: {type: ExternalName, externalName: store.old.svc.cluster.local.}
---
apiVersion: v1
kind: Service
metadata: {name: private, namespace: old, annotations: {networking.istio.io/exportTo: .}}
spec: {type: ExternalName, externalName: web.shop.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: loop1, namespace: old}
spec: {type: ExternalName, externalName: loop2.old.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: loop2, namespace: old}
spec: {type: ExternalName, externalName: loop1.old.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: world, namespace: old}
spec: {type: ExternalName, externalName: example.com, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: admin, namespace: old}
spec: {type: ExternalName, externalName: localhost, ports: [{name: http, port: 15000}]}
---
apiVersion: v1
kind: Service
metadata: {name: metadata, namespace: old}
spec: {type: ExternalName, externalName: 169.254.169.254, ports: [{name: http, port: 80}]}
`

// TestExternalNames: calls by an alias have the routes of its service. Other
// ExternalName services get no resources.
func TestExternalNames(t *testing.T) {
	s := build(t, []mesh.ClusterID{"cluster1"}, decodeObjects(t, "cluster1", "inline", []byte(aliasObjects)))
	common := []string{
		"web.shop.svc.cluster.local", "web.shop.svc.cluster.local.", "10.96.0.80",
		"store.old.svc.cluster.local", "store.old.svc.cluster.local.", "store.old", "store.old.svc",
		"store.older.svc.cluster.local", "store.older.svc.cluster.local.", "store.older", "store.older.svc", "web.shop", "web.shop.svc",
	}
	private := []string{"private.old.svc.cluster.local", "private.old.svc.cluster.local.", "private.old", "private.old.svc"}
	for namespace, more := range map[string][]string{
		"shop": {"web"}, "old": append(private, "private", "store"), "older": {"store"}, "elsewhere": nil,
	} {
		ip := netip.MustParseAddr("10.11.0.9")
		n := proxy.Node{
			ID: mesh.NodeID{Type: mesh.Sidecar, IP: ip, Name: "p", Namespace: namespace}, Cluster: "cluster1", Namespace: namespace,
			Captured: true, IPs: []netip.Addr{ip},
		}
		resources := generate(t, s, n)
		for _, r := range resources[xdswire.RouteType] {
			rc := new(routev3.RouteConfiguration)
			decode(t, r, rc)
			if r.Name != "80" || len(rc.GetVirtualHosts()) != 2 {
				t.Errorf("%s: route configuration %s has %d virtual hosts", namespace, r.Name, len(rc.GetVirtualHosts()))
			}
			got, want := slices.Sorted(slices.Values(rc.GetVirtualHosts()[0].GetDomains())), slices.Sorted(slices.Values(append(more, common...)))
			if !slices.Equal(got, want) {
				t.Errorf("%s: domains %v, want %v", namespace, got, want)
			}
		}
		for _, typ := range []string{xdswire.ClusterType, xdswire.EndpointType, xdswire.ListenerType} {
			for _, r := range resources[typ] {
				if strings.Contains(r.Name, ".old") || strings.Contains(r.Name, "15000") {
					t.Errorf("%s: %s %s", namespace, xdswire.ShortType(typ), r.Name)
				}
			}
		}
	}
}
