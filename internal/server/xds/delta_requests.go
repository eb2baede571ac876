package xds

import (
	"maps"
	"slices"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// delta handles a request of the delta variant. A long request has the names to which it subscribes
// in a set.
func (s *session) delta(req *discoveryv3.DeltaDiscoveryRequest, names *xdswire.NameSet) error {
	i := s.begin(req.GetTypeUrl(), req.GetResponseNonce(), req.GetErrorDetail())
	if i < 0 {
		return nil
	}
	t := &s.types[i]
	nonce := req.GetResponseNonce()
	more := s.subscription(names, req.GetResourceNamesSubscribe())
	if !t.watched {
		return s.deltaFirst(i, req, more)
	}
	switch {
	case nonce == "":
	case nonce != t.nonce:
		// It is not an answer, but its names count, as the proxy does not repeat them.
		s.hub.cfg.Metrics.expired[i].Inc()
	case req.GetErrorDetail() == nil:
		s.accept(i)
	}
	if len(req.GetResourceNamesUnsubscribe()) > 0 {
		s.unsubscribe(t, s.subscription(nil, req.GetResourceNamesUnsubscribe()))
	}
	if more == (xdswire.Subscription{}) {
		return nil
	}
	if i == vhds && s.hosts.mode == hostsOnDemand {
		s.requestHosts(more.Names.Names())
	} else {
		t.want.Names = s.hub.names.With(t.want.Names, more.Names.Names())
	}
	if err := s.allowed(i, t.want); err != nil {
		return err
	}
	// Send a name again that the proxy requests again: it may have dropped the
	// resource in between.
	t.addForce(more.Names.Names())
	if more.Wildcard && !t.want.Wildcard {
		t.want.Wildcard = true
		t.due, t.all = true, true
	}
	s.afterClusters(i)
	return nil
}

// deltaFirst handles the first request for a type. A reconnecting proxy reports the
// versions that it holds; compareHeld finds the names that differ.
func (s *session) deltaFirst(i int, req *discoveryv3.DeltaDiscoveryRequest, want xdswire.Subscription) error {
	t := &s.types[i]
	legacy := want == (xdswire.Subscription{}) && len(req.GetResourceNamesUnsubscribe()) == 0
	// Envoy subscribes to all virtual hosts, also when it returns with the names of some.
	want.Wildcard = want.Wildcard || fullList(i) && legacy || i == vhds
	var requested []string
	if i == vhds && s.hosts.mode == hostsOnDemand {
		requested, want.Names = want.Names.Names(), nil
	}
	held := req.GetInitialResourceVersions()
	if !want.Wildcard && len(held) > 0 {
		names := make([]string, 0, len(held))
		for name := range held {
			if name != xdswire.Wildcard { // no resource has this name
				names = append(names, name)
			}
		}
		want.Names = s.hub.names.With(want.Names, names)
	}
	if err := s.allowed(i, want); err != nil {
		return err
	}
	s.watch(i, want)
	if i == vhds && s.hosts.mode == hostsOnDemand {
		s.hosts.requestedHosts = requestedHosts{}
		s.requestHosts(requested)
		t.addForce(requested)
	}
	switch i {
	case cds:
		s.clusters.returned = len(held) > 0 && s.aggregated
	case rds:
		s.hosts.mode = s.hub.hostModeOf(s.sub.node, held)
	case vhds:
		maps.DeleteFunc(held, func(name, _ string) bool {
			return name == xdswire.Wildcard || strings.HasSuffix(name, routes.HostSeparator+routes.NoHost)
		})
		if s.hosts.mode == hostsOnDemand {
			t.doubt = slices.Sorted(maps.Keys(held))
		}
	}
	// Send endpoints even if held: the last stream may have ended after a changed
	// cluster, which waits for its endpoints, but before them. A relay reports only
	// endpoints for which no cluster waits.
	if len(held) > 0 && (i != vhds || s.hosts.mode == pushedHosts) && (i != eds || want.Wildcard || s.sub.node.Relayed) {
		t.all = false
		t.held = held
	}
	// Without names or wildcard there is nothing to wait for.
	t.due = want.Wildcard || want.Names.Len() > 0
	s.afterClusters(i)
	return nil
}

// unsubscribe removes names from a subscription.
func (s *session) unsubscribe(t *typeState, gone xdswire.Subscription) {
	before := t.want.Names
	t.want.Names = s.hub.names.Without(before, gone.Names.Names())
	t.want.Wildcard = t.want.Wildcard && !gone.Wildcard
	if !t.want.Wildcard {
		return
	}
	// The proxy cannot know whether the wildcard covers the names that it dropped.
	t.addForce(slices.DeleteFunc(slices.Clone(gone.Names.Names()), func(n string) bool { return !before.Has(n) }))
}

// compareHeld compares the held versions with the views and keeps only the names that
// differ, as names to send.
func (s *session) compareHeld(t *typeState, now viewSet) {
	force := slices.Clip(t.force)
	found := 0 // held resources that the views have
	for i, state := range now {
		for r := range state.list().All {
			if slices.ContainsFunc(now[:i], func(s *viewState) bool { return s.get(r.Name) != nil }) {
				continue // another view comes first
			}
			version, held := t.held[r.Name]
			if held {
				found++
			}
			if version != r.Version && t.want.Has(r.Name) {
				force = append(force, r.Name)
			}
		}
	}
	lacks := func(name string) bool { return t.want.Has(name) && now.get(name) == nil }
	if found < len(t.held) {
		for name := range t.held {
			switch {
			case !lacks(name):
			case t == &s.types[vhds]:
				t.doubt = append(t.doubt, name) // the proxy does not request it
			default:
				force = append(force, name)
			}
		}
	}
	for name := range t.want.Names.All() {
		if now.get(name) == nil {
			force = append(force, name)
		}
	}
	t.force, t.held = force, nil
	t.acked, t.sent, t.assumed = now, now, true
}
