package xdsgen_test

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

const familyObjects = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIPs: [10.96.0.80, "fd00:96::80"]
  selector: {app: web}
  ports:
  - {name: http, port: 80}
  - {name: tcp, port: 443}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: cross-network, namespace: istio-system}
spec:
  selector: {istio: eastwestgateway}
  servers:
  - port: {number: 15443, name: tls, protocol: TLS}
    tls: {mode: AUTO_PASSTHROUGH}
    hosts: ["*.local"]
`

// TestListenersOfIPVersions: proxies listen on, and call their applications over, the
// IP versions that they have.
func TestListenersOfIPVersions(t *testing.T) {
	s := build(t, []mesh.ClusterID{"cluster1"}, decodeObjects(t, "cluster1", "inline", []byte(familyObjects)))
	for ips, want := range map[string]map[string]string{
		"10.0.0.1": {
			"virtualOutbound": "0.0.0.0:15001", "virtualInbound": "0.0.0.0:15006", "0.0.0.0_80": "0.0.0.0:80", "0.0.0.0_15443": "0.0.0.0:15443",
			"inbound|80||": "127.0.0.6", "inbound|443||": "127.0.0.6", mesh.InboundPassthroughCluster: "127.0.0.6",
		},
		"fd00::1": {
			"virtualOutbound": ":::15001", "virtualInbound": ":::15006", "::_80": ":::80", "::_15443": ":::15443",
			"inbound|80||": "::6", "inbound|443||": "::6", mesh.InboundPassthroughCluster: "::6",
		},
		"fd00::1,10.0.0.1": {
			"virtualOutbound": "0.0.0.0:15001 :::15001", "virtualInbound": "0.0.0.0:15006 :::15006",
			"0.0.0.0_80": "0.0.0.0:80 :::80", "0.0.0.0_15443": "0.0.0.0:15443 :::15443",
			"inbound|80||": "127.0.0.6 ::6", "inbound|443||": "127.0.0.6 ::6", mesh.InboundPassthroughCluster: "127.0.0.6 ::6",
		},
	} {
		t.Run(ips, func(t *testing.T) {
			n := proxy.Node{Cluster: "cluster1", Captured: true}
			for ip := range strings.SplitSeq(ips, ",") {
				n.IPs = append(n.IPs, netip.MustParseAddr(ip))
			}
			n.ID = mesh.NodeID{Type: mesh.Sidecar, IP: n.IPs[0], Name: "web", Namespace: "shop"}
			n.Namespace, n.Labels = "shop", map[string]string{"app": "web"}
			got := where(t, generate(t, s, n))
			n.ID = mesh.NodeID{Type: mesh.Router, IP: n.IPs[0], Name: "gw", Namespace: "istio-system"}
			n.Namespace, n.Labels = "istio-system", map[string]string{"istio": "eastwestgateway"}
			maps.Copy(got, where(t, generate(t, s, n)))
			want["10.96.0.80_443"], want["fd00:96::80_443"] = "10.96.0.80:443", "fd00:96::80:443"
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// where returns the addresses of each listener and the source addresses of clusters.
func where(t *testing.T, resources map[string][]*xdswire.Resource) map[string]string {
	t.Helper()
	out := make(map[string]string)
	for _, r := range resources[xdswire.ListenerType] {
		l := new(listenerv3.Listener)
		decode(t, r, l)
		at := []string{fmt.Sprintf("%s:%d", l.GetAddress().GetSocketAddress().GetAddress(), l.GetAddress().GetSocketAddress().GetPortValue())}
		for _, a := range l.GetAdditionalAddresses() {
			at = append(at, fmt.Sprintf("%s:%d", a.GetAddress().GetSocketAddress().GetAddress(), a.GetAddress().GetSocketAddress().GetPortValue()))
		}
		out[r.Name] = strings.Join(at, " ")
	}
	for _, r := range resources[xdswire.ClusterType] {
		c := new(clusterv3.Cluster)
		decode(t, r, c)
		if from := c.GetUpstreamBindConfig(); from != nil {
			ips := []string{from.GetSourceAddress().GetAddress()}
			for _, extra := range from.GetExtraSourceAddresses() {
				ips = append(ips, extra.GetAddress().GetAddress())
			}
			out[r.Name] = strings.Join(ips, " ")
		}
	}
	return out
}

func decode(t *testing.T, r *xdswire.Resource, into proto.Message) {
	t.Helper()
	a, err := r.Any()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.UnmarshalTo(into); err != nil {
		t.Fatal(err)
	}
}
