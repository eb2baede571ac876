package xdsgen_test

import (
	"slices"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/inbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// sharedNumbers has services with UDP and TCP ports of the same number, UDP first.
const sharedNumbers = `
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIPs: [10.96.0.53]
  selector: {k8s-app: kube-dns}
  ports:
  - {name: dns, port: 53, protocol: UDP}
  - {name: dns-tcp, port: 53, protocol: TCP}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIPs: [10.96.0.80]
  selector: {app: web}
  ports:
  - {name: quic, port: 443, protocol: UDP}
  - {name: https, port: 443, protocol: TCP}
  - {name: udp, port: 80, protocol: UDP}
  - {name: http, port: 80, protocol: TCP}
  - {name: sctp, port: 7000, protocol: SCTP}
  - {name: detected, port: 7000, protocol: TCP}
---
apiVersion: v1
kind: Service
metadata: {name: only-udp, namespace: shop}
spec:
  clusterIPs: [10.96.0.81]
  selector: {app: web}
  ports:
  - {name: udp, port: 80, protocol: UDP}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {serviceAccountName: web}
status: {podIP: 10.11.0.5, podIPs: [{ip: 10.11.0.5}]}
`

// TestTCPPortsBehindOtherTransports: a TCP port has its listener, routes and inbound
// chain even if a UDP port has its number.
func TestTCPPortsBehindOtherTransports(t *testing.T) {
	s := build(t, []mesh.ClusterID{"cluster1"}, decodeObjects(t, "cluster1", "inline", []byte(sharedNumbers)))
	id, err := mesh.ParseNodeID("sidecar~10.11.0.5~web.shop~shop.svc.cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	n := proxy.Node{ID: id, Cluster: "cluster1", Namespace: "shop", Captured: true}
	n.IPs = append(n.IPs, id.IP)
	got := generate(t, s, n)
	for typ, names := range map[string][]string{
		xdswire.ListenerType: {"0.0.0.0_80", "10.96.0.53_53", "10.96.0.80_443", "10.96.0.80_7000"},
		xdswire.RouteType:    {"80", "web.shop.svc.cluster.local:7000"},
		xdswire.ClusterType: {
			"outbound|53||kube-dns.kube-system.svc.cluster.local", "outbound|443||web.shop.svc.cluster.local",
			"inbound|80||", "inbound|443||", "inbound|7000||",
		},
	} {
		for _, name := range names {
			if !slices.ContainsFunc(got[typ], func(r *xdswire.Resource) bool { return r.Name == name }) {
				t.Errorf("no %s %s", xdswire.ShortType(typ), name)
			}
		}
	}
	if services := s.Ports.Get(80); len(services.Services) != 1 {
		t.Errorf("%d services have TCP port 80, want 1", len(services.Services))
	}
	for _, target := range inbound.Targets(s, n) {
		if target.Port.Protocol == mesh.UDP {
			t.Errorf("port %d of the workload is shown as UDP", target.Number)
		}
	}
	if web := s.Services.Get("web.shop.svc.cluster.local"); web.Port(443) == nil || web.Port(443).Name != "https" {
		t.Errorf("port 443 is %v", web.Port(443))
	}
}
