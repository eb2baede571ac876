package xds

import (
	"context"
	"slices"
	"sort"
	"strings"

	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/server/xdsgen"
)

// hostDiscovery is the state of virtual hosts that a stream gets one by one (VHDS). Envoy
// subscribes to all of them at once, and drops those whose route configuration it does not have.
// So virtual hosts wait until the proxy has accepted the route configurations, and are sent again
// with each route configuration that the proxy accepts.
type hostDiscovery struct {
	// inline is set if the proxy gets route configurations with their virtual hosts.
	inline bool
	// again are route configurations whose virtual hosts must be sent again.
	again []string
}

// isAggregated reports whether a stream is for all types.
func isAggregated(ctx context.Context) bool {
	method, _ := grpc.Method(ctx)
	return strings.HasSuffix(method, "AggregatedResources")
}

// keepsHostsInline reports whether a proxy gets route configurations with their virtual hosts
// although it supports others: it holds such route configurations from an earlier stream, and
// would send requests to unknown destinations until it has the virtual hosts.
func keepsHostsInline(n xdsgen.Node, held map[string]string) bool {
	if !n.DiscoversHosts || len(held) == 0 {
		return !n.DiscoversHosts
	}
	for _, version := range held {
		if strings.HasSuffix(version, xdsgen.WithoutHosts) {
			return false
		}
	}
	return true
}

// routesWait reports whether virtual hosts must wait for the newest route configurations.
func (s *session) routesWait(now viewSet) bool {
	t := &s.types[rds]
	return t.inflight || t.sent != now
}

// routesAccepted notes the route configurations in a response that the proxy accepted.
func (s *session) routesAccepted() {
	t, hosts := &s.types[rds], &s.types[vhds]
	if s.hosts.inline || !hosts.watched || hosts.all && !hosts.inflight {
		return // all virtual hosts will be sent
	}
	lists := [][]string{s.hosts.again, t.extra}
	if !t.namesOnly {
		for _, d := range t.sent.since(t.acked) {
			lists = append(lists, d.names())
		}
	}
	s.hosts.again = slices.DeleteFunc(sortedUnique(lists...), func(name string) bool { return !t.want.Has(name) })
}

// sendHostsAgain makes the virtual hosts of accepted route configurations due.
func (s *session) sendHostsAgain(now viewSet) {
	for _, routes := range s.hosts.again {
		prefix := routes + xdsgen.HostSeparator
		for _, state := range now {
			list := state.list()
			first := sort.Search(len(list), func(i int) bool { return list[i].Name >= prefix })
			end := first
			for end < len(list) && strings.HasPrefix(list[end].Name, prefix) {
				end++
			}
			s.types[vhds].addForce(namesOf(list[first:end]))
		}
	}
	s.hosts.again = nil
}
