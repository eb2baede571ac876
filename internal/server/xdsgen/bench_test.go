package xdsgen_test

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// manyServices returns a mesh of n services with one port and ten endpoints each.
func manyServices(b *testing.B, n int, protocol mesh.Protocol) *snapshot.Snapshot {
	b.Helper()
	var events []snapshot.Event
	for i := range n {
		name, ns := fmt.Sprintf("svc-%d", i), fmt.Sprintf("ns-%d", i%10)
		events = append(events, put(&snapshot.Service{
			Meta: metaOf("c1", ns, name), VIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i / 250), byte(i%250 + 1)})},
			Selector: map[string]string{"app": name}, Ports: []snapshot.ServicePort{{Name: "main", Number: 80, Protocol: protocol}},
		}))
		slice := &snapshot.EndpointSlice{Meta: metaOf("c1", ns, name+"-1"), Service: name, Ports: []snapshot.SlicePort{{Name: "main", Number: 8080}}}
		for e := range 10 {
			slice.Endpoints = append(slice.Endpoints, snapshot.SliceEndpoint{
				Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(1 + i/250), byte(i % 250), byte(e + 1)})}, Ready: true,
			})
		}
		events = append(events, put(slice))
	}
	return build(b, []mesh.ClusterID{"c1"}, events)
}

// BenchmarkGenerate generates and encodes all resources of one type for one proxy. The
// server does so once for all proxies of a view.
func BenchmarkGenerate(b *testing.B) {
	for _, c := range []struct {
		typ      string
		protocol mesh.Protocol
	}{
		{xdswire.ClusterType, mesh.HTTP},
		{xdswire.EndpointType, mesh.HTTP},
		{xdswire.ListenerType, mesh.HTTP},
		{xdswire.ListenerType, mesh.TCP},
		{xdswire.RouteType, mesh.HTTP},
		{xdswire.NameTableType, mesh.HTTP},
	} {
		for _, services := range []int{100, 1000} {
			b.Run(fmt.Sprintf("%s/%s/%d", xdswire.ShortType(c.typ), c.protocol, services), func(b *testing.B) {
				s := manyServices(b, services, c.protocol)
				generateView(b, s, xdsgen.Assign(s, testNodes()[0])[c.typ].Shared)
			})
		}
	}
}

// generateView measures the generation of a view without parts of earlier ones.
func generateView(b *testing.B, s *snapshot.Snapshot, view units.View) {
	b.Helper()
	b.ReportAllocs()
	before := processorTime(b)
	for b.Loop() {
		var enc xdswire.Encoder
		var pieces []*xdswire.Resource
		to, joined := view.(units.Joined)
		for key, u := range units.Units(view, s) {
			out, err := u.Generate(&enc)
			if err != nil {
				b.Fatalf("%v: %v", key, err)
			}
			if joined {
				pieces = append(pieces, out...)
			}
		}
		if joined {
			to.Join(&enc, xdswire.NewList(pieces...))
		}
	}
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
}

// processorTime returns the time of processors that the process has used, in nanoseconds. On a busy
// machine it says more than the time that passes.
func processorTime(b *testing.B) int64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkGenerateGateway generates the listeners and routes of a gateway with 1,000 hosts, each of a
// Gateway with TLS and a VirtualService, and 1,000 Secrets.
func BenchmarkGenerateGateway(b *testing.B) {
	const hosts = 1000
	var text strings.Builder
	var events []snapshot.Event
	var names []string
	for i := range hosts {
		fmt.Fprintf(&text, `---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g%[1]d, namespace: ns-0}
spec:
  selector: {istio: gw}
  servers: [{hosts: [h%[1]d.example], port: {name: https, number: 443, protocol: HTTPS}, tls: {mode: SIMPLE, credentialName: s%[1]d}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: v%[1]d, namespace: ns-0}
spec: {hosts: [h%[1]d.example], gateways: [g%[1]d], http: [{route: [{destination: {host: svc-0}}]}]}
`, i)
		secret := &snapshot.Secret{Meta: metaOf("c1", "ns-0", fmt.Sprint("s", i))}
		secret.Pair = &snapshot.KeyPair{Chain: make([]byte, 1500), Key: snapshot.NewPrivateKey(make([]byte, 300)), NotBefore: noon, NotAfter: night}
		events = append(events, put(secret))
		names = append(names, fmt.Sprint("kubernetes://s", i))
	}
	s := build(b, []mesh.ClusterID{"c1"}, append(events, decodeObjects(b, "c1", "gateways", []byte(text.String()))...))
	node := testNodes()[5]
	node.Namespace = "ns-0"
	views := xdsgen.Assign(s, node)
	b.Run("LDS", func(b *testing.B) { generateView(b, s, views[xdswire.ListenerType].Shared) })
	b.Run("RDS", func(b *testing.B) { generateView(b, s, views[xdswire.RouteType].Shared) })
	caller := mesh.Caller{Cluster: "c1", Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "ns-0", ServiceAccount: "gw"}}
	b.Run("SDS", func(b *testing.B) {
		generateView(b, s, units.AssignSecrets(s, caller, true, xdswire.NewNameSets().Of(names)))
	})
}

// BenchmarkNewService generates the changes of the routes of ten namespaces with 1,000
// services when one service is added.
func BenchmarkNewService(b *testing.B) {
	s := manyServices(b, 1000, mesh.HTTP)
	var enc xdswire.Encoder
	var keep []*xdswire.Resource
	generate := func() {
		keep = keep[:0]
		for i := range 10 {
			node := testNodes()[0]
			node.Namespace = fmt.Sprintf("ns-%d", i)
			for key, u := range units.Units(xdsgen.Assign(s, node)[xdswire.RouteType].Shared, s) {
				out, err := u.Generate(&enc)
				if err != nil {
					b.Fatalf("%v: %v", key, err)
				}
				keep = append(keep, out...)
			}
		}
	}
	generate()
	b.ReportAllocs()
	for b.Loop() {
		generate()
	}
}

// BenchmarkAssign chooses the views of a proxy, which the server does for each proxy that connects
// or that reads a changed fact: for a sidecar of a Service, and for a gateway with 20 servers.
func BenchmarkAssign(b *testing.B) {
	s := manyServices(b, 1000, mesh.HTTP)
	gw := &networkingv1alpha3.Gateway{Selector: map[string]string{"istio": "gw"}}
	for i := range 20 {
		gw.Servers = append(gw.Servers, &networkingv1alpha3.Server{
			Port:  &networkingv1alpha3.Port{Number: uint32(8000 + i), Protocol: "HTTPS", Name: fmt.Sprint("https-", i)},
			Hosts: []string{fmt.Sprintf("a%d.example.com", i), fmt.Sprintf("b%d.example.com", i)},
			Tls:   &networkingv1alpha3.ServerTLSSettings{Mode: networkingv1alpha3.ServerTLSSettings_SIMPLE, CredentialName: "web"},
		})
	}
	s.GatewayConfigs = []*snapshot.Gateway{{Meta: metaOf("c1", "istio-system", "gw"), Spec: gw}}
	s.Mesh.AccessLog.File = "/dev/stdout"
	sidecar, gateway := testNodes()[0], testNodes()[5]
	sidecar.Namespace, sidecar.Labels = "ns-0", map[string]string{"app": "svc-0"}
	for name, n := range map[string]proxy.Node{"sidecar": sidecar, "gateway": gateway} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				xdsgen.Assign(s, n)
			}
		})
	}
}
