package xds

import (
	"slices"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// content is what one response carries.
type response struct {
	bodies  []xdswire.Body
	removed []string
	// empties are the names answered with an empty resource, sorted.
	empties []string
	// framed are the names told of that do not differ between the pair
	// acknowledged last and this one.
	extra []string
	// diffs are what leads from the pair acknowledged last to this one;
	// fromNothing says that nothing was acknowledged before.
	diffs       [2]*diff
	fromNothing bool
}

func (c *response) empty() bool { return len(c.bodies) == 0 && len(c.removed) == 0 }

func (c *response) addBody(b xdswire.Body) {
	if len(b) > 0 {
		c.bodies = append(c.bodies, b)
	}
}

// content chooses what to send of the pair: what differs from the pair
// acknowledged last, the names in doubt and the names to send anyway, as far
// as they are subscribed to. With aside it is only the last.
func (s *session) response(i int, now pair, aside bool) *response {
	t := &s.types[i]
	c := &response{fromNothing: t.acked == pair{}}
	if aside {
		c.diffs = [2]*diff{{}, {}}
		s.addNames(i, c, now, t.force, nil)
		return c
	}
	c.diffs = now.since(t.acked)
	list := s.sub.variant == xdswire.SotW && fullList(i)
	switch {
	case t.all || list && s.concerned(t, c):
		// A list that became empty must be told too: it removes the last.
		t.due = t.due || list
		s.addAll(i, c, now)
	case !list:
		for _, d := range c.diffs {
			s.addPicked(c, t.want, d.changed, d.body)
		}
		s.addNames(i, c, now, t.force, t.doubt)
	}
	if s.sub.variant == xdswire.Delta && !neverRemoved(i) {
		s.addRemoved(t, c, now)
	}
	return c
}

// concerned reports whether the full list differs for the subscription.
func (s *session) concerned(t *typeState, c *response) bool {
	has := t.want.Has
	return slices.ContainsFunc(t.doubt, has) || slices.ContainsFunc(t.force, has) ||
		slices.ContainsFunc(c.diffs[0].names(), has) || slices.ContainsFunc(c.diffs[0].removed, has) ||
		slices.ContainsFunc(c.diffs[1].names(), has) || slices.ContainsFunc(c.diffs[1].removed, has)
}

// addAll adds everything subscribed to.
func (s *session) addAll(i int, c *response, now pair) {
	t := &s.types[i]
	found := 0
	for _, state := range []*viewState{now.shared, now.own} {
		if state == nil {
			continue
		}
		full := state.since(nil)
		if t.want.Names == state.nameSet(s.hub.names) {
			c.addBody(full.body(s.sub.variant))
			found += len(full.changed)
			continue
		}
		found += s.addPicked(c, t.want, full.changed, full.body)
	}
	if t.all && !c.fromNothing {
		c.extra = slices.Concat(now.shared.since(nil).names(), now.own.since(nil).names())
	}
	if s.sub.variant == xdswire.SotW && fullList(i) {
		return // what is absent does not exist
	}
	if !t.want.Wildcard && found == t.want.Names.Len() {
		return
	}
	names := t.want.Names.Names()
	if len(t.force) > 0 { // with the wildcard, these may be others
		names = sortedUnique(names, t.force)
	}
	var loose []*xdswire.Resource
	for _, name := range names {
		if t.want.Has(name) && now.get(name) == nil {
			c.extra = append(c.extra, name)
			loose = s.addMissing(i, c, name, loose)
		}
	}
	c.addBody(xdswire.NewBody(s.sub.variant, loose...))
}

// addPicked adds those of the resources that are subscribed to, by their
// shared body when they all are. It returns their number.
func (s *session) addPicked(c *response, want xdswire.Subscription, resources []*xdswire.Resource, body func(xdswire.Variant) xdswire.Body) int {
	if len(resources) == 0 {
		return 0
	}
	if !want.Wildcard {
		picked := pick(want.Names, resources)
		if len(picked) < len(resources) {
			c.addBody(xdswire.NewBody(s.sub.variant, picked...))
			return len(picked)
		}
	}
	c.addBody(body(s.sub.variant))
	return len(resources)
}

// pick returns the resources whose names are in the set. Both are sorted.
func pick(set *xdswire.NameSet, resources []*xdswire.Resource) []*xdswire.Resource {
	if len(resources) <= 16 {
		lacks := func(r *xdswire.Resource) bool { return !set.Has(r.Name) }
		if !slices.ContainsFunc(resources, lacks) {
			return resources
		}
		return slices.DeleteFunc(slices.Clone(resources), lacks)
	}
	var picked []*xdswire.Resource
	names := set.Names()
	for _, r := range resources {
		for len(names) > 0 && names[0] < r.Name {
			names = names[1:]
		}
		if len(names) == 0 {
			break
		}
		if names[0] == r.Name {
			picked = append(picked, r)
		}
	}
	return picked
}

// addNames adds single names unless the changed resources have them already.
// A name that was asked for is answered even when no view has it.
func (s *session) addNames(i int, c *response, now pair, asked, doubt []string) {
	if len(asked) == 0 && len(doubt) == 0 {
		return
	}
	t := &s.types[i]
	asked = sortedUnique(asked)
	var loose []*xdswire.Resource
	for _, name := range sortedUnique(asked, doubt) {
		if !t.want.Has(name) || c.changed(name) {
			continue
		}
		c.extra = append(c.extra, name)
		if r := now.get(name); r != nil {
			loose = append(loose, r)
		} else if _, ok := slices.BinarySearch(asked, name); ok {
			loose = s.addMissing(i, c, name, loose)
		}
	}
	c.addBody(xdswire.NewBody(s.sub.variant, loose...))
}

func (c *response) changed(name string) bool {
	for _, d := range c.diffs {
		if _, ok := slices.BinarySearchFunc(d.changed, name, byName); ok {
			return true
		}
	}
	return false
}

// addMissing answers a name that was asked for and that no view has. Envoy
// waits until it has an answer: endpoints may be said to be removed in the
// delta variant; routes may not, because it ignores that of routes. An empty
// resource is added to loose, which is returned.
func (s *session) addMissing(i int, c *response, name string, loose []*xdswire.Resource) []*xdswire.Resource {
	if s.types[i].quarantine.has(name) {
		return loose // it keeps what it has
	}
	delta := s.sub.variant == xdswire.Delta
	if i == rds || i == eds && !delta {
		r, err := s.hub.fallbacks.get(i, name, func() (*xdswire.Resource, error) {
			return s.hub.cfg.Generation.Fallback(xdswire.PushOrder[i], name, &s.hub.encoder)
		})
		if err != nil {
			s.log.Error("no empty answer could be made", "name", clip(name), "error", err)
		}
		if r != nil {
			c.empties = append(c.empties, name)
			return append(loose, r)
		}
	}
	if delta && !neverRemoved(i) {
		c.removed = append(c.removed, name)
	}
	return loose
}

// addRemoved adds the names that the proxy may hold and that are gone.
func (s *session) addRemoved(t *typeState, c *response, now pair) {
	gone := func(names []string) {
		for _, name := range names {
			if _, empty := slices.BinarySearch(c.empties, name); !empty && t.want.Has(name) && now.get(name) == nil && !t.quarantine.has(name) {
				c.removed = append(c.removed, name)
			}
		}
	}
	for _, d := range c.diffs {
		gone(d.removed)
	}
	gone(t.doubt)
	c.removed = sortedUnique(c.removed)
}
