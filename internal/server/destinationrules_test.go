package server

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/meshctl/meshctl/internal/xdswire"
)

func ruleYAML(namespace, spec string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: rule, namespace: %s}
spec: {host: svc-7.ns-7.svc.cluster.local, %s}
`, namespace, spec)
}

// TestRuleIsGeneratedOnce: a changed DestinationRule generates the clusters and the
// subsets of its host once for each different result, whatever the number of namespaces
// and proxies.
func TestRuleIsGeneratedOnce(t *testing.T) {
	s, dir, all := connectTwenty(t)
	const cluster, subset = "outbound|80||svc-7.ns-7.svc.cluster.local", "outbound|80|v1|svc-7.ns-7.svc.cluster.local"
	check := generationCheck(t, s, xdswire.ClusterType)
	write(t, dir, "shared.yaml", ruleYAML("ns-7", "trafficPolicy: {connectionPool: {tcp: {maxConnections: 1}}}"))
	check("a rule for all", all, map[string]float64{"CDS": 1}, cluster)

	write(t, dir, "shared.yaml", ruleYAML("ns-7", "subsets: [{name: v1, labels: {version: v1}}]"))
	check("a subset", all, map[string]float64{"CDS": 2, "EDS": 2}, subset, cluster)

	// Proxy 3 and 13 are in this namespace. Their other clusters are the shared ones.
	write(t, dir, "private.yaml", ruleYAML("apps-3", "trafficPolicy: {connectionPool: {tcp: {maxConnections: 3}}}"))
	own := []*testProxy{all[3], all[13]}
	check("a rule of one namespace", own, map[string]float64{"CDS": 1, "EDS": 1}, cluster)

	write(t, dir, "private.yaml", ruleYAML("apps-3", "trafficPolicy: {connectionPool: {tcp: {maxConnections: 4}}}"))
	check("a change of it", own, map[string]float64{"CDS": 1}, cluster)

	shared := slices.DeleteFunc(slices.Clone(all), func(p *testProxy) bool { return slices.Contains(own, p) })
	write(t, dir, "shared.yaml", ruleYAML("ns-7", "subsets: [{name: v1, labels: {version: v1}, trafficPolicy: {loadBalancer: {simple: RANDOM}}}]"))
	check("a change of the rule for the others", shared, map[string]float64{"CDS": 2}, subset)
}

// TestHashGeneratesRoutes: a DestinationRule generates routes when it starts to hash
// requests, and not when it changes otherwise.
func TestHashGeneratesRoutes(t *testing.T) {
	s, dir, all := connectTwenty(t)
	const cluster = "outbound|80||svc-7.ns-7.svc.cluster.local"
	rule := func(header string, limit int) string {
		return ruleYAML("ns-7", fmt.Sprintf("trafficPolicy: {connectionPool: {tcp: {maxConnections: %d}}, loadBalancer: {consistentHash: {httpHeaderName: %s}}}", limit, header))
	}
	before := generated(t, s, nil)
	write(t, dir, "shared.yaml", rule("a", 1))
	for _, p := range all {
		var got []string
		for !slices.Contains(got, xdswire.RouteType) {
			got = append(got, p.next(t).TypeUrl)
		}
	}
	if got := generated(t, s, before); got["RDS"] != 1 {
		t.Errorf("a hash: generated %v, want one route configuration", got)
	}
	check := generationCheck(t, s, xdswire.ClusterType)
	write(t, dir, "shared.yaml", rule("b", 1))
	check("another header", all, map[string]float64{"CDS": 1}, cluster)
	write(t, dir, "shared.yaml", rule("b", 2))
	check("another limit", all, map[string]float64{"CDS": 1}, cluster)
}

// connectTwenty starts a server with 50 services and connects 20 proxies, two in each of the
// namespaces apps-0 to apps-9: apps-3 has proxies 3 and 13.
func connectTwenty(t *testing.T) (s *Server, dir string, all []*testProxy) {
	t.Helper()
	const services, namespaces = 50, 10
	s = start(t, func(c *Config) {
		dir = c.ConfigDir
		for i := range services {
			write(t, dir, fmt.Sprintf("service-%d.yaml", i), serviceYAML(i))
			write(t, dir, fmt.Sprintf("slice-%d.yaml", i), sliceYAML(i, "10.1.0.1", "10.1.0.2"))
		}
	})
	for i := range 2 * namespaces {
		p := connectIn(t, s, fmt.Sprint("proxy-", i), fmt.Sprint("apps-", i%namespaces))
		p.subscribeAll(t)
		all = append(all, p)
	}
	return s, dir, all
}

// generationCheck returns a function that checks what a change sends to proxies, one response
// with resources of a type and these names, and how many resources it generates. It counts
// from its last call.
func generationCheck(t *testing.T, s *Server, typeURL string) func(when string, to []*testProxy, want map[string]float64, names ...string) {
	t.Helper()
	before := generated(t, s, nil)
	return func(when string, to []*testProxy, want map[string]float64, names ...string) {
		t.Helper()
		for _, p := range to {
			r := p.next(t)
			for typeURL == xdswire.ClusterType && r.TypeUrl == xdswire.EndpointType { // Envoy waits for the endpoints of a changed cluster
				r = p.next(t)
			}
			var got []string
			for _, r := range r.Resources {
				got = append(got, r.Name)
			}
			if slices.Sort(got); r.TypeUrl != typeURL || !slices.Equal(got, names) {
				t.Fatalf("%s: sent %s %v, want %s %v", when, r.TypeUrl, got, typeURL, names)
			}
		}
		if got := generated(t, s, before); !maps.Equal(got, want) {
			t.Errorf("%s: generated %v, want %v", when, got, want)
		}
		before = generated(t, s, nil)
	}
}
