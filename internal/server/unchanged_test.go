package server

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// generated returns the number of resources that were generated since an earlier result,
// by type. Types without any are missing.
func generated(t *testing.T, s *Server, before map[string]float64) map[string]float64 {
	t.Helper()
	out := make(map[string]float64)
	for name, n := range metrics(t, s) {
		typ, ok := strings.CutPrefix(name, `meshctl_xds_generated_total{type="`)
		if typ = strings.TrimSuffix(typ, `"}`); ok && n > before[typ] {
			out[typ] = n - before[typ]
		}
	}
	return out
}

// TestUnchangedObjectsGenerateNothing: an object that is applied again, with another version
// and other annotations, generates nothing. Nor do changes that concern no proxy.
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
	before := generated(t, s, nil)
	for i, object := range []string{gateway, node, namespace} {
		write(t, dir, fmt.Sprintf("object-%d.yaml", i), fmt.Sprintf(object, 2))
	}
	irrelevant := strings.NewReplacer("*.local", "*.sample", "zone: z", "zone: y", "labels: {", "labels: {another: label, ")
	for i, object := range []string{gateway, node, namespace} {
		write(t, dir, fmt.Sprintf("object-%d.yaml", i), irrelevant.Replace(fmt.Sprintf(object, 3)))
	}
	// A later change shows that the server has read the directory again.
	write(t, dir, "slice.yaml", sliceYAML(7, "10.1.0.1", "10.1.0.2"))
	if r := p.next(t); r.GetTypeUrl() != xdswire.EndpointType || len(r.GetResources()) != 1 {
		t.Errorf("sent %d resources of %s, want one assignment", len(r.GetResources()), r.GetTypeUrl())
	}
	if got := generated(t, s, before); !maps.Equal(got, map[string]float64{"EDS": 1}) {
		t.Errorf("generated %v, want only the assignment", got)
	}
}
