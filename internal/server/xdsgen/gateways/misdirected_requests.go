package gateways

import (
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// hostsElsewhere returns gatewayRouteFacts.Elsewhere of the route configuration of servers.
func hostsElsewhere(p *snapshot.GatewayPort, routes string, servers []GatewayRouteServer) []string {
	own := hostsOf(slices.Values(servers))
	if !slices.ContainsFunc(own, isWild) || p.Servers[0].PlainHTTP() {
		return nil
	}
	var others []string
	for i := range p.Servers {
		if s := &p.Servers[i]; s.Routes != routes && s.Tls != nil {
			for _, h := range s.Hosts {
				if h = withoutNamespace(h); specificity(own, h) > 0 && !slices.Contains(own, h) {
					others = append(others, h)
				}
			}
		}
	}
	slices.Sort(others)
	return slices.Compact(others)
}

// hostsOf returns the hosts of servers.
func hostsOf(servers iter.Seq[GatewayRouteServer]) []string {
	var out []string
	for s := range servers {
		for h := range s.Hosts.All {
			out = append(out, withoutNamespace(h))
		}
	}
	return out
}

// withoutNamespace returns the host of <namespace>/<host> or <host>.
func withoutNamespace(host string) string { return host[strings.Index(host, "/")+1:] }

// specificity returns how specific the host of a list is that best covers another host, as Envoy
// compares hosts: 0 if none does.
func specificity(hosts []string, other string) int {
	best := 0
	for _, h := range hosts {
		suffix, wild := strings.CutPrefix(h, "*")
		switch {
		case h == other:
			return math.MaxInt
		case wild && strings.HasSuffix(strings.TrimPrefix(other, "*"), suffix):
			best = max(best, len(h))
		}
	}
	return best
}
