package xds

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
)

// hostDiscovery is the state of virtual hosts that a stream gets one by one (VHDS). Envoy
// subscribes to all of them at once, and drops those whose route configuration it does not have.
// So virtual hosts wait until the proxy has accepted the route configurations, and are sent again
// with each route configuration that the proxy accepts. When the proxy returns, its agent reports
// the virtual hosts that it has.
type hostDiscovery struct {
	mode hostMode
	// again are route configurations whose virtual hosts must be sent again.
	again []string
	requestedHosts
}

// hostMode is the way in which a proxy gets virtual hosts. It stays until the proxy starts again,
// because the route configurations of the modes differ.
type hostMode int

const (
	pushedHosts   hostMode = iota // all of them, one by one
	inlineHosts                   // in route configurations
	hostsOnDemand                 // by name
)

// isAggregated reports whether a stream is for all types.
func isAggregated(ctx context.Context) bool {
	method, _ := grpc.Method(ctx)
	return strings.HasSuffix(method, "AggregatedResources")
}

// hostModeOf returns the mode of a proxy. One that holds route configurations from an earlier stream
// keeps their mode: with route configurations of another one it would send requests to unknown
// destinations until it has the virtual hosts.
func (h *Hub) hostModeOf(n proxy.Node, held map[string]string) hostMode {
	switch {
	case !n.DiscoversHosts:
		return inlineHosts
	case len(held) == 0 && n.RequestsHosts && routes.ManyHosts(h.current.Load(), n, h.cfg.Limits.PushedHosts):
		return hostsOnDemand
	case len(held) == 0:
		return pushedHosts
	}
	for _, version := range held {
		switch {
		case strings.HasSuffix(version, xdsgen.WithoutHosts):
			return pushedHosts
		case strings.HasSuffix(version, xdsgen.HostsOnDemand) && n.RequestsHosts:
			return hostsOnDemand
		}
	}
	return inlineHosts
}

// routesWait reports whether virtual hosts must wait for the newest route configurations.
func (s *session) routesWait(now viewSet) bool {
	t := &s.types[rds]
	return t.inflight || t.sent != now
}

// routesAccepted notes the route configurations in a response that the proxy accepted.
func (s *session) routesAccepted() {
	t, hosts := &s.types[rds], &s.types[vhds]
	if s.hosts.mode == inlineHosts || !hosts.watched || hosts.all && !hosts.inflight {
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
	for _, config := range s.hosts.again {
		prefix := config + routes.HostSeparator
		for _, state := range now {
			var names []string
			for r := range state.list().From(prefix) {
				if !strings.HasPrefix(r.Name, prefix) {
					break
				}
				names = append(names, r.Name)
			}
			s.types[vhds].addForce(names)
		}
	}
	s.hosts.again = nil
}
