package gateways

import (
	"net/netip"
	"slices"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// TestUnprivilegedGateway: a gateway that may not open ports below 1024 gets none of them.
func TestUnprivilegedGateway(t *testing.T) {
	gw := &snapshot.Gateway{Spec: &networkingv1alpha3.Gateway{}}
	for i, number := range []uint32{80, 1023, 1024} {
		gw.Spec.Servers = append(gw.Spec.Servers, &networkingv1alpha3.Server{
			Port: &networkingv1alpha3.Port{Number: number, Protocol: "HTTP", Name: string(rune('a' + i))}, Hosts: []string{"*"},
		})
	}
	s := &snapshot.Snapshot{Mesh: &snapshot.Mesh{}, GatewayConfigs: []*snapshot.Gateway{gw}}
	if got := gatewayPorts(s, proxy.Node{Unprivileged: true}, nil, nil); len(got) != 1 || got[0].Number != 1024 {
		t.Errorf("an unprivileged gateway opens %d ports, want only 1024", len(got))
	}
	if got := gatewayPorts(s, proxy.Node{}, nil, nil); len(got) != 3 {
		t.Errorf("another gateway opens %d ports, want 3", len(got))
	}
}

// TestGatewayListensOnTargetPorts: a server of a Gateway names a port of the gateway's
// Service. The gateway listens on the target port.
func TestGatewayListensOnTargetPorts(t *testing.T) {
	type option func(*snapshot.MeshService)
	service := func(port snapshot.ServicePort, options ...option) *snapshot.MeshService {
		port.Name, port.Number = "tls", 15443
		svc := &snapshot.MeshService{Name: "eastwest", Namespace: "istio-system", Host: "eastwest.istio-system.svc.cluster.local", Clusters: []snapshot.ClusterService{{
			Cluster: "c1", Selector: map[string]string{"istio": "eastwest"}, Ports: []snapshot.ServicePort{port},
		}}}
		for _, o := range options {
			o(svc)
		}
		return svc
	}
	of := func(c mesh.ClusterID) option { return func(svc *snapshot.MeshService) { svc.Clusters[0].Cluster = c } }
	selects := func(app string) option {
		return func(svc *snapshot.MeshService) { svc.Clusters[0].Selector = map[string]string{"istio": app} }
	}
	at := func(port uint32) option {
		return func(svc *snapshot.MeshService) { svc.Clusters[0].Ports[0].Number = port }
	}
	number := func(n uint32) snapshot.ServicePort { return snapshot.ServicePort{Target: n, Protocol: mesh.TLS} }
	name := func(s string) snapshot.ServicePort { return snapshot.ServicePort{TargetName: s, Protocol: mesh.TLS} }
	for _, tc := range []struct {
		name     string
		services []*snapshot.MeshService
		want     []string
	}{
		{"no Service", nil, []string{"0.0.0.0_15443"}},
		{"the same port", []*snapshot.MeshService{service(number(15443))}, []string{"0.0.0.0_15443"}},
		{"another port", []*snapshot.MeshService{service(number(8443))}, []string{"0.0.0.0_8443"}},
		{"a named port", []*snapshot.MeshService{service(name("passthrough"))}, []string{"0.0.0.0_9443"}},
		{"a name that the pod does not have", []*snapshot.MeshService{service(name("other"))}, []string{"0.0.0.0_15443"}},
		{"two Services", []*snapshot.MeshService{service(number(8443)), service(name("passthrough"))}, []string{"0.0.0.0_8443"}},
		{"two Services with one target", []*snapshot.MeshService{service(number(8443)), service(number(8443))}, []string{"0.0.0.0_8443"}},
		{"a Service of another cluster", []*snapshot.MeshService{service(number(8443), of("c2"))}, []string{"0.0.0.0_15443"}},
		{"a Service of other pods", []*snapshot.MeshService{service(number(8443), selects("ingress"))}, []string{"0.0.0.0_15443"}},
		{"a Service of another port", []*snapshot.MeshService{service(number(8443), at(443))}, []string{"0.0.0.0_15443"}},
		{"a port of UDP", []*snapshot.MeshService{service(snapshot.ServicePort{Target: 8443, Protocol: mesh.UDP})}, []string{"0.0.0.0_15443"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ip := netip.MustParseAddr("10.0.0.9")
			pod := &snapshot.Pod{
				Meta:  snapshot.Meta{Cluster: "c1", Namespace: "istio-system", Name: "gw", Labels: map[string]string{"istio": "eastwest"}},
				Ports: []snapshot.PodPort{{Name: "passthrough", Number: 9443}},
			}
			s := &snapshot.Snapshot{
				Mesh: &snapshot.Mesh{RootNamespace: "istio-system"}, Gateways: &snapshot.Gateways{},
				GatewayConfigs: []*snapshot.Gateway{{Spec: &networkingv1alpha3.Gateway{
					Selector: map[string]string{"istio": "eastwest"},
					Servers: []*networkingv1alpha3.Server{{
						Port: &networkingv1alpha3.Port{Number: 15443}, Hosts: []string{"*.local"},
						Tls: &networkingv1alpha3.ServerTLSSettings{Mode: networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH},
					}},
				}}},
			}
			s.Pods = s.Pods.With(map[string]*snapshot.Pod{"c1/istio-system/gw": pod})
			s.Namespaces = s.Namespaces.With(map[string]*snapshot.NamespaceFacts{"istio-system": {Name: "istio-system", Services: tc.services}})
			n := proxy.Node{ID: mesh.NodeID{Type: mesh.Router, IP: ip, Name: "gw", Namespace: "istio-system"}, Cluster: "c1", Namespace: "istio-system", IPs: []netip.Addr{ip}}
			var got []string
			for _, p := range gatewayPorts(s, n, pod, pod.Labels) {
				facts := listenerFactsOf(p, proxy.V4)
				got = append(got, facts.name())
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("it listens on %q, want %q", got, tc.want)
			}
		})
	}
}
