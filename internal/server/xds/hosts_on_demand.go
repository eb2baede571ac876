package xds

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// requestedHosts is the state of virtual hosts that a proxy requests by name. The proxy subscribes
// to all virtual hosts, and requests those that it needs. It gets only the requested ones, and all
// their changes.
type requestedHosts struct {
	// order holds the requested names, the oldest first.
	order []string
	// to are the requested virtual hosts of from, for these names and route configurations.
	from, to      viewSet
	names, routes *xdswire.NameSet
}

// maxHostName bounds the names of requested virtual hosts. A longer host gets no virtual host.
const maxHostName = 1024

// requestHosts handles the request of a proxy for virtual hosts. If the proxy has requested too
// many, it loses the oldest ones, and requests them again when it needs them.
func (s *session) requestHosts(names []string) {
	t, h, l := &s.types[vhds], &s.hosts, &s.hub.cfg.Limits
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return len(name) > maxHostName || t.want.Names.Has(name) })
	slices.Sort(names)
	names = slices.Compact(names)
	h.order = append(h.order, names...)
	if len(h.order) <= l.RequestedHosts {
		t.want.Names = s.hub.names.With(t.want.Names, names)
		return
	}
	lost := len(h.order) - l.RequestedHosts*9/10 // so that the next requests cost little
	h.order = slices.Clone(h.order[lost:])
	t.want.Names = s.hub.names.Of(h.order)
	s.log.Info("the proxy requested many virtual hosts and loses the oldest", "lost", lost, "held", len(h.order))
}

// onlyRequested returns the virtual hosts that a proxy has requested. Each has the host of the
// request as its domain, because the route configuration ignores ports.
func (s *session) onlyRequested(now viewSet) viewSet {
	h, names, routes := &s.hosts, s.types[vhds].want.Names, s.types[rds].want.Names
	if h.from == now && h.names == names && h.routes == routes {
		return h.to
	}
	for i, state := range now {
		if state == nil {
			h.to[i] = nil
			continue
		}
		h.to[i] = s.requestedOf(state, h.from[i], h.to[i], names, routes)
	}
	h.from, h.names, h.routes = now, names, routes
	return h.to
}

// requestedOf returns the requested virtual hosts of a state. before holds the requested virtual hosts
// of the earlier state.
func (s *session) requestedOf(state, earlier, before *viewState, names, routes *xdswire.NameSet) *viewState {
	index := state.hostIndex(earlier)
	changes := make(map[string]*xdswire.Resource)
	for _, r := range before.list() {
		changes[r.Name] = nil
	}
	add := func(routes, host string) {
		of := index.find(routes, host)
		if of == nil {
			return
		}
		name := routes + xdsgen.HostSeparator + host
		if changes[name] != nil {
			return
		}
		r, err := xdsgen.RequestedHost(&s.hub.encoder, of, routes, host)
		if err != nil {
			s.log.Error("cannot make a requested virtual host", "name", clip(name), "error", err)
			return
		}
		changes[name] = r
	}
	for name := range routes.All() {
		if state.get(name+xdsgen.HostSeparator+xdsgen.FirstHost) != nil {
			add(name, xdsgen.FirstHost)
		}
	}
	for name := range names.All() {
		if routes, host, ok := splitHostName(name); ok && host != "" {
			add(routes, withoutPort(host))
		}
	}
	made := before.next(s.hub.overlays.Add(1)|1<<63, changes)
	if made != before {
		made.round, made.view = state.round, state.view
	}
	return made
}

// withoutPort returns a host without its port, as Envoy compares it.
func withoutPort(host string) string {
	i := strings.LastIndexByte(host, ':')
	if i < 0 || strings.IndexByte(host[:i], ':') >= 0 && !strings.HasSuffix(host[:i], "]") {
		return host
	}
	if _, err := strconv.ParseUint(host[i+1:], 10, 16); err != nil {
		return host
	}
	return host[:i]
}

// addUnresolved answers the requests for virtual hosts that do not exist under the requested names:
// either there is none, or it has the name without the port. Envoy refuses a resource without a
// message, so the names are aliases of a virtual host without requests.
func (s *session) addUnresolved(resp *response) {
	if len(resp.unresolved) == 0 {
		return
	}
	byRoutes := make(map[string][]string)
	for _, name := range resp.unresolved {
		if routes, _, ok := splitHostName(name); ok {
			byRoutes[routes] = append(byRoutes[routes], name)
		}
	}
	var answers []*xdswire.Resource
	for _, routes := range slices.Sorted(maps.Keys(byRoutes)) {
		answers = append(answers, xdsgen.UnresolvedHosts(&s.hub.encoder, routes, byRoutes[routes]))
	}
	resp.addBody(xdswire.NewBody(s.sub.variant, answers...))
}
