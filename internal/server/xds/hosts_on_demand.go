package xds

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// requestedHosts is the state of virtual hosts that a proxy requests by name. The proxy subscribes
// to all virtual hosts, and requests those that it needs. It gets only the requested ones, and all
// their changes.
type requestedHosts struct {
	// order holds the requested names, the oldest first.
	order []string
	// names and routes are the requested names and the route configurations to which wanted belongs.
	names, routes *xdswire.NameSet
	// wanted are the names of the virtual hosts that the proxy gets if they exist: the requested ones
	// without ports, and the first one of each route configuration.
	wanted *xdswire.NameSet
	// added holds the wanted names that to lacks.
	added []string
	// to are the virtual hosts of from with the wanted names.
	from, to viewSet
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
		known := h.names == t.want.Names
		if t.want.Names = s.hub.names.With(t.want.Names, names); known {
			hosts := hostsOf(names)
			h.names, h.wanted, h.added = t.want.Names, s.hub.names.With(h.wanted, hosts), append(h.added, hosts...)
		}
		return
	}
	lost := len(h.order) - l.RequestedHosts*9/10 // so that the next requests cost little
	h.order = slices.Clone(h.order[lost:])
	t.want.Names = s.hub.names.Of(h.order)
	s.log.Info("the proxy requested many virtual hosts and loses the oldest", "lost", lost, "held", len(h.order))
}

// hostsOf returns the names of virtual hosts without the ports of hosts.
func hostsOf(names []string) []string {
	out := make([]string, 0, len(names))
	for _, name := range names {
		if config, host, ok := splitHostName(name); ok && host != "" {
			out = append(out, config+routes.HostSeparator+withoutPort(host))
		}
	}
	return out
}

// onlyRequested returns the virtual hosts that a proxy has requested. Each has the host of the
// request as its domain, because the route configuration ignores ports.
func (s *session) onlyRequested(now viewSet) viewSet {
	h, names, config := &s.hosts, s.types[vhds].want.Names, s.types[rds].want.Names
	all := h.names != names || h.routes != config
	if !all && len(h.added) == 0 && h.from == now {
		return h.to
	}
	if all {
		wanted := hostsOf(names.Names())
		for name := range config.All() {
			wanted = append(wanted, name+routes.HostSeparator+routes.FirstHost)
		}
		h.wanted = s.hub.names.Of(wanted)
	}
	for i, state := range now {
		if state == nil {
			h.to[i] = nil
			continue
		}
		h.to[i] = s.requestedOf(state, h.from[i], h.to[i], all)
	}
	h.from, h.names, h.routes, h.added = now, names, config, nil
	return h.to
}

// requestedOf returns the wanted virtual hosts of a state. before holds the wanted virtual hosts of the
// earlier state. If all is set, the wanted names have changed.
func (s *session) requestedOf(state, earlier, before *viewState, all bool) *viewState {
	h, index := &s.hosts, state.hostIndex(earlier)
	changes := make(map[string]*xdswire.Resource)
	look := func(name string) {
		changes[name] = nil
		config, host, _ := splitHostName(name)
		of := index.find(config, host)
		if of == nil {
			return
		}
		r, err := routes.RequestedHost(&s.hub.encoder, of, config, host)
		if err != nil {
			s.log.Error("cannot make a requested virtual host", "name", clip(name), "error", err)
		}
		changes[name] = r
	}
	if d := state.since(earlier); all || earlier == nil || d.size() > h.wanted.Len() {
		for r := range before.list().All {
			changes[r.Name] = nil
		}
		for name := range h.wanted.All() {
			look(name)
		}
	} else {
		for _, name := range h.added {
			look(name)
		}
		for r := range d.changed.All {
			h.eachServed(earlier.get(r.Name), look)
			h.eachServed(r, look)
		}
		for _, name := range d.removed {
			h.eachServed(earlier.get(name), look)
		}
	}
	made := before.next(s.hub.overlays.Add(1)|1<<63, changes)
	if made != before {
		made.round, made.view = state.round, state.view
	}
	return made
}

// eachServed calls look with the wanted names that one of a virtual host's domains matches.
func (h *requestedHosts) eachServed(host *xdswire.Resource, look func(name string)) {
	if host == nil {
		return
	}
	config, _, _ := splitHostName(host.Name)
	prefix := config + routes.HostSeparator
	for _, domain := range routes.HostDomains(host) {
		start, end, wildcard := strings.Cut(domain, "*")
		switch {
		case wildcard:
			start = prefix + start
			for name := range h.wanted.All() {
				if strings.HasPrefix(name, start) && strings.HasSuffix(name, end) {
					look(name)
				}
			}
		case h.wanted.Has(prefix + domain):
			look(prefix + domain)
		}
	}
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
		if config, _, ok := splitHostName(name); ok {
			byRoutes[config] = append(byRoutes[config], name)
		}
	}
	var answers []*xdswire.Resource
	for _, config := range slices.Sorted(maps.Keys(byRoutes)) {
		answers = append(answers, routes.UnresolvedHosts(&s.hub.encoder, config, byRoutes[config]))
	}
	resp.addBody(xdswire.NewBody(s.sub.variant, answers...))
}
