package server

import (
	"fmt"
	"maps"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
)

// TestRotatedGatewayGeneratesItsNetwork: a new address of an east-west gateway generates
// only the assignments with endpoints behind it, and none for proxies in its own network.
func TestRotatedGatewayGeneratesItsNetwork(t *testing.T) {
	const inEach = 10
	gateway := func(network int, address string) string {
		return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: eastwest, namespace: istio-system, labels: {topology.istio.io/network: n%d}}
spec: {type: LoadBalancer, clusterIP: 10.97.0.%[1]d, ports: [{name: udp, protocol: UDP, port: 1}, {name: tls, port: 15443}]}
status: {loadBalancer: {ingress: [{ip: %s}]}}
`, network, address)
	}
	var dirs []string // of the networks
	s := start(t, func(c *Config) {
		dirs = []string{c.ConfigDir, t.TempDir(), t.TempDir()}
		for i, dir := range dirs {
			if i > 0 {
				c.RemoteDirs = append(c.RemoteDirs, ClusterDir{mesh.ClusterID(fmt.Sprint("remote", i)), dir})
			}
			write(t, dir, "network.yaml", fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: istio-system, labels: {topology.istio.io/network: n%d}}\n", i))
			write(t, dir, "gateway.yaml", gateway(i, fmt.Sprintf("192.0.2.%d", i)))
			for j := range inEach {
				n := i*inEach + j
				write(t, dir, fmt.Sprintf("service-%d.yaml", n), serviceYAML(n)+"---\n"+sliceYAML(n, fmt.Sprintf("10.%d.0.%d", i+1, j+1)))
			}
		}
	})
	p := connect(t, s, "p")
	p.subscribeAll(t)
	before := generated(t, s, nil)
	write(t, dirs[1], "gateway.yaml", gateway(1, "192.0.2.11"))
	waitFor(t, "generation", func() bool { return len(generated(t, s, before)) > 0 })
	if got := generated(t, s, before); !maps.Equal(got, map[string]float64{"EDS": inEach}) {
		t.Errorf("a gateway of another network: generated %v, want its %d assignments", got, inEach)
	}

	before = generated(t, s, nil)
	write(t, dirs[0], "gateway.yaml", gateway(0, "192.0.2.10"))
	waitFor(t, "the new address", func() bool {
		list := s.registry.Current().Gateways.ByNetwork["n0"]
		return len(list) == 1 && list[0].Address.String() == "192.0.2.10"
	})
	// A later change shows that the server has used the address.
	write(t, dirs[0], "service-0.yaml", serviceYAML(0)+"---\n"+sliceYAML(0, "10.1.0.1", "10.1.0.2"))
	waitFor(t, "generation", func() bool { return len(generated(t, s, before)) > 0 })
	if got := generated(t, s, before); !maps.Equal(got, map[string]float64{"EDS": 1}) {
		t.Errorf("a gateway of the own network: generated %v, want only the later assignment", got)
	}
}
