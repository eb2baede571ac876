package server

import (
	"fmt"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// generated returns the number of generated resources of all types.
func generated(t *testing.T, s *Server) float64 {
	t.Helper()
	sum := 0.0
	for name, n := range metrics(t, s) {
		if strings.HasPrefix(name, "meshctl_xds_generated_total") {
			sum += n
		}
	}
	return sum
}

// TestUnchangedObjectsGenerateNothing: an object that is applied again, with another version
// and other annotations, generates nothing.
func TestUnchangedObjectsGenerateNothing(t *testing.T) {
	const gateway = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: istio-system, resourceVersion: "%[1]d", annotations: {version: "%[1]d"}}
spec: {selector: {istio: gw}, servers: [{port: {number: 15443, name: tls, protocol: TLS}, tls: {mode: AUTO_PASSTHROUGH}, hosts: ["*.local"]}]}
`
	const node = `apiVersion: v1
kind: Node
metadata: {name: node, resourceVersion: "%[1]d", annotations: {version: "%[1]d"}, labels: {topology.kubernetes.io/zone: z}}
`
	const namespace = `apiVersion: v1
kind: Namespace
metadata: {name: istio-system, resourceVersion: "%[1]d", annotations: {version: "%[1]d"}, labels: {topology.istio.io/network: n1}}
`
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
		for i, object := range []string{gateway, node, namespace} {
			write(t, dir, fmt.Sprintf("object-%d.yaml", i), fmt.Sprintf(object, 1))
		}
		write(t, dir, "service.yaml", serviceYAML(7))
		write(t, dir, "slice.yaml", sliceYAML(7, "10.1.0.1"))
	})
	p := connect(t, s, "p")
	p.subscribeAll(t)
	before := generated(t, s)
	for i, object := range []string{gateway, node, namespace} {
		write(t, dir, fmt.Sprintf("object-%d.yaml", i), fmt.Sprintf(object, 2))
	}
	// A later change shows that the server has read the directory again.
	write(t, dir, "slice.yaml", sliceYAML(7, "10.1.0.1", "10.1.0.2"))
	if r := p.next(t); r.GetTypeUrl() != xdswire.EndpointType || len(r.GetResources()) != 1 {
		t.Errorf("sent %d resources of %s, want one assignment", len(r.GetResources()), r.GetTypeUrl())
	}
	if got := generated(t, s) - before; got != 1 {
		t.Errorf("generated %v resources, want only the assignment", got)
	}
}
