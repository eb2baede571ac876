package xdsgen_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

const uncapturedEgress = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: apps}
spec:
  egress:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: ["shop/*"]}
  - {port: {number: 3306, name: mysql, protocol: MYSQL}, hosts: ["shop/*"]}
  - {port: {number: 81, name: http-own, protocol: HTTP}, bind: 10.0.0.1, hosts: ["shop/*"]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}, {name: mysql, port: 3306}]}
`

// TestEgressWithoutRedirection: the egress listeners of a proxy without redirection listen at the
// loopback address, unless they have another one.
func TestEgressWithoutRedirection(t *testing.T) {
	s := build(t, []mesh.ClusterID{"c1"}, decodeObjects(t, "c1", "inline", []byte(uncapturedEgress)))
	for ip, want := range map[string][]string{
		"10.0.0.1": {"10.0.0.1_81", "127.0.0.1_3306", "127.0.0.1_80"},
		"fd00::1":  {"10.0.0.1_81", "::1_3306", "::1_80"},
	} {
		address := netip.MustParseAddr(ip)
		n := proxy.Node{
			ID: mesh.NodeID{Type: mesh.Sidecar, IP: address, Name: "p", Namespace: "apps"}, Cluster: "c1", Namespace: "apps", IPs: []netip.Addr{address},
		}
		var got []string
		for _, r := range generate(t, s, n)[xdswire.ListenerType] {
			got = append(got, r.Name)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("the listeners of %s are %v, want %v", ip, got, want)
		}
	}
}
