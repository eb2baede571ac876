package xdsgen_test

import (
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestClustersByServerName: only gateways that pass TLS through get clusters and
// assignments for that.
func TestClustersByServerName(t *testing.T) {
	s := build(t, []mesh.ClusterID{"cluster1"}, decodeObjects(t, "cluster1", "inline", []byte(familyObjects)))
	for labels, want := range map[string]int{"ingressgateway": 0, "eastwestgateway": 2} {
		id, err := mesh.ParseNodeID("router~10.0.0.1~gw.istio-system~istio-system.svc.cluster.local")
		if err != nil {
			t.Fatal(err)
		}
		n := proxy.Node{ID: id, Cluster: "cluster1", Namespace: "istio-system", Labels: map[string]string{"istio": labels}}
		n.IPs = append(n.IPs, id.IP)
		got := generate(t, s, n)
		for _, typ := range []string{xdswire.ClusterType, xdswire.EndpointType} {
			found := 0
			for _, r := range got[typ] {
				if strings.HasPrefix(r.Name, "outbound_.") {
					found++
				}
			}
			if found != want {
				t.Errorf("%s: %d %s by server name, want %d", labels, found, xdswire.ShortType(typ), want)
			}
		}
	}
}
