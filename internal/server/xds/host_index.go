package xds

import (
	"maps"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// hostIndex finds virtual hosts by their domains. It is immutable.
type hostIndex struct {
	// all holds the virtual hosts by route configuration and domain. changed, which is small,
	// overrides it; nil removes a domain.
	all, changed map[string]*xdswire.Resource
	// suffixes are the lengths of the domains that begin with a wildcard, the longest first;
	// prefixes are the lengths of the domains that end with one. Some of these domains may be gone.
	suffixes, prefixes []int
}

// hostIndex returns the index of a state. It starts with the index of an earlier state, if that
// has one; from may be nil.
func (s *viewState) hostIndex(from *viewState) *hostIndex {
	d := s.since(from)
	var old *hostIndex
	if from != nil && from != s {
		from.mu.Lock()
		old = from.hosts
		from.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.hosts != nil:
	case old != nil && d.size() < s.resources.Len()/16:
		s.hosts = old.with(from, d)
	default:
		s.hosts = &hostIndex{all: make(map[string]*xdswire.Resource, 4*s.resources.Len())}
		for r := range s.resources.All {
			s.hosts.add(s.hosts.all, r)
		}
	}
	return s.hosts
}

// with returns the index after a change of the state that it is for.
func (x *hostIndex) with(from *viewState, d *diff) *hostIndex {
	out := &hostIndex{all: x.all, changed: maps.Clone(x.changed), suffixes: x.suffixes, prefixes: x.prefixes}
	if out.changed == nil {
		out.changed = make(map[string]*xdswire.Resource)
	}
	remove := func(name string) {
		if old := from.get(name); old != nil {
			for key := range domainsOf(old) {
				out.changed[key] = nil
			}
		}
	}
	for _, name := range d.removed {
		remove(name)
	}
	for r := range d.changed.All {
		remove(r.Name)
	}
	for r := range d.changed.All {
		out.add(out.changed, r)
	}
	if len(out.changed) > len(out.all)/8 {
		all := maps.Clone(out.all)
		for key, r := range out.changed {
			if r == nil {
				delete(all, key)
			} else {
				all[key] = r
			}
		}
		out.all, out.changed = all, nil
	}
	return out
}

// domainsOf iterates over the keys of a virtual host's domains.
func domainsOf(r *xdswire.Resource) func(yield func(string, string) bool) {
	return func(yield func(key, domain string) bool) {
		config, _, _ := splitHostName(r.Name)
		for _, domain := range routes.HostDomains(r) {
			if !yield(config+routes.HostSeparator+domain, domain) {
				return
			}
		}
	}
}

// add adds the domains of a virtual host to a map.
func (x *hostIndex) add(to map[string]*xdswire.Resource, r *xdswire.Resource) {
	for key, domain := range domainsOf(r) {
		to[key] = r
		switch {
		case domain == "*":
		case strings.HasPrefix(domain, "*"):
			x.suffixes = withLength(x.suffixes, len(domain)-1)
		case strings.HasSuffix(domain, "*"):
			x.prefixes = withLength(x.prefixes, len(domain)-1)
		}
	}
}

// withLength adds a length to a list with the longest first. It does not modify the list.
func withLength(lengths []int, n int) []int {
	i, found := slices.BinarySearchFunc(lengths, n, func(a, b int) int { return b - a })
	if found {
		return lengths
	}
	return slices.Insert(slices.Clone(lengths), i, n)
}

// get returns the virtual host of a key, or nil.
func (x *hostIndex) get(key string) *xdswire.Resource {
	if r, ok := x.changed[key]; ok {
		return r
	}
	return x.all[key]
}

// find returns the virtual host that Envoy would choose for a host: by the whole domain, by the
// longest suffix, by the longest prefix, or the one for all hosts. It returns nil if there is none.
func (x *hostIndex) find(config, host string) *xdswire.Resource {
	prefix := config + routes.HostSeparator
	if r := x.get(prefix + host); r != nil {
		return r
	}
	for _, n := range x.suffixes {
		if n < len(host) {
			if r := x.get(prefix + "*" + host[len(host)-n:]); r != nil {
				return r
			}
		}
	}
	for _, n := range x.prefixes {
		if n < len(host) {
			if r := x.get(prefix + host[:n] + "*"); r != nil {
				return r
			}
		}
	}
	return x.get(prefix + "*")
}

// splitHostName splits the name of a virtual host. No host has a slash.
func splitHostName(name string) (config, host string, ok bool) {
	i := strings.LastIndex(name, routes.HostSeparator)
	if i < 0 {
		return "", "", false
	}
	return name[:i], name[i+1:], true
}
