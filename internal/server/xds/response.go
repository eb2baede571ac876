package xds

import (
	"slices"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// response is the content of one response, before it is framed.
type response struct {
	bodies  []xdswire.Body
	removed []string
	// empties are the names that get an empty resource, sorted.
	empties []string
	// unresolved are the requested names of virtual hosts that do not exist.
	unresolved []string
	// extra are the names in the response that do not differ between the pair
	// acknowledged last and this one.
	extra []string
	// diffs lead from the pair acknowledged last to this one; fromNothing is set
	// when none was acknowledged.
	diffs       diffs
	fromNothing bool
}

func (resp *response) empty() bool { return len(resp.bodies) == 0 && len(resp.removed) == 0 }

func (resp *response) addBody(b xdswire.Body) {
	if !b.Empty() {
		resp.bodies = append(resp.bodies, b)
	}
}

// response selects what to send of the pair, as far as it is subscribed to: the
// differences from the pair acknowledged last, the names in doubt and the forced
// names; with namesOnly just the latter.
func (s *session) response(i int, now viewSet, namesOnly bool) *response {
	t := &s.types[i]
	resp := &response{fromNothing: t.acked == viewSet{}}
	if namesOnly {
		resp.diffs = viewSet{}.since(viewSet{})
		s.addNames(i, resp, now, t.force, nil)
		s.addUnresolved(resp)
		return resp
	}
	resp.diffs = now.since(t.acked)
	list := s.sub.variant == xdswire.SotW && fullList(i)
	switch {
	case t.all || list && s.concerned(t, resp):
		// An empty list must be sent too, because it removes the resources sent before.
		t.due = t.due || list
		s.addAll(i, resp, now)
	case !list:
		for _, d := range resp.diffs {
			changed := d.changed
			if !t.want.Wildcard {
				changed = pick(t.want.Names, changed)
			}
			resp.addBody(changed.Body(s.sub.variant))
		}
		s.addNames(i, resp, now, t.force, t.doubt)
	}
	s.addUnresolved(resp)
	if s.sub.variant == xdswire.Delta && !neverRemoved(i) {
		s.addRemoved(t, resp, now)
	}
	return resp
}

// concerned reports whether the subscription's full list changed.
func (s *session) concerned(t *typeState, resp *response) bool {
	has := t.want.Has
	return slices.ContainsFunc(t.doubt, has) || slices.ContainsFunc(t.force, has) ||
		slices.ContainsFunc(resp.diffs[:], func(d *diff) bool {
			return slices.ContainsFunc(d.names(), has) || slices.ContainsFunc(d.removed, has)
		})
}

// addAll adds all subscribed resources.
func (s *session) addAll(i int, resp *response, now viewSet) {
	t := &s.types[i]
	found := 0
	for _, state := range now {
		if state == nil {
			continue
		}
		resources := state.resources
		if !t.want.Wildcard && !t.want.Names.HasAll(state.nameSet(s.hub.names)) {
			resources = pick(t.want.Names, resources)
		}
		resp.addBody(resources.Body(s.sub.variant))
		found += resources.Len()
	}
	if t.all && !resp.fromNothing {
		for r := range now.all {
			resp.extra = append(resp.extra, r.Name)
		}
	}
	if s.sub.variant == xdswire.SotW && fullList(i) {
		return // absence from the list is the answer
	}
	if !t.want.Wildcard && found == t.want.Names.Len() {
		return
	}
	names := t.want.Names.Names()
	if len(t.force) > 0 { // with the wildcard, names may lack some of them
		names = sortedUnique(names, t.force)
	}
	var loose []*xdswire.Resource
	for _, name := range names {
		if t.want.Has(name) && now.get(name) == nil {
			resp.extra = append(resp.extra, name)
			loose = s.addMissing(i, resp, name, loose)
		}
	}
	resp.addBody(xdswire.NewBody(s.sub.variant, loose...))
}

// pick returns the resources with names in the set, as the same list if these are all.
func pick(set *xdswire.NameSet, resources *xdswire.List) *xdswire.List {
	var picked []*xdswire.Resource
	if resources.Len() <= 16 {
		for r := range resources.All {
			if set.Has(r.Name) {
				picked = append(picked, r)
			}
		}
	} else {
		names := set.Names()
		for r := range resources.All {
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
	}
	if len(picked) == resources.Len() {
		return resources
	}
	return xdswire.NewList(picked...)
}

// addNames adds single names that the differences do not contain. A requested name
// gets an answer even if no view has it.
func (s *session) addNames(i int, resp *response, now viewSet, asked, doubt []string) {
	if len(asked) == 0 && len(doubt) == 0 {
		return
	}
	t := &s.types[i]
	asked = sortedUnique(asked)
	var loose []*xdswire.Resource
	for _, name := range sortedUnique(asked, doubt) {
		if !t.want.Has(name) || resp.changed(name) {
			continue
		}
		resp.extra = append(resp.extra, name)
		if r := now.get(name); r != nil {
			loose = append(loose, r)
		} else if _, ok := slices.BinarySearch(asked, name); ok {
			loose = s.addMissing(i, resp, name, loose)
		}
	}
	resp.addBody(xdswire.NewBody(s.sub.variant, loose...))
}

func (resp *response) changed(name string) bool {
	for _, d := range resp.diffs {
		if d.changed.Get(name) != nil {
			return true
		}
	}
	return false
}

// addMissing answers a requested name that no view has, as Envoy waits for an answer.
// In the delta variant endpoints are reported as removed; Envoy ignores the removal of
// routes, so these get an empty resource, appended to loose.
func (s *session) addMissing(i int, resp *response, name string, loose []*xdswire.Resource) []*xdswire.Resource {
	if i == vhds {
		resp.unresolved = append(resp.unresolved, name)
		return loose
	}
	if s.types[i].quarantine.has(name) {
		return loose // the proxy keeps what it has
	}
	delta := s.sub.variant == xdswire.Delta
	if i == rds || i == eds && !delta {
		r, err := s.hub.fallbacks.get(i, name, func() (*xdswire.Resource, error) {
			return s.hub.cfg.Generator.Fallback(xdswire.PushOrder[i], name, &s.hub.encoder)
		})
		if err != nil {
			s.log.Error("cannot make an empty answer", "name", clip(name), "error", err)
		}
		if r != nil {
			resp.empties = append(resp.empties, name)
			return append(loose, r)
		}
	}
	if delta && !neverRemoved(i) {
		resp.removed = append(resp.removed, name)
	}
	return loose
}

// addRemoved adds the removed names that the proxy may still hold.
func (s *session) addRemoved(t *typeState, resp *response, now viewSet) {
	gone := func(names []string) {
		for _, name := range names {
			if _, empty := slices.BinarySearch(resp.empties, name); !empty && t.want.Has(name) && now.get(name) == nil && !t.quarantine.has(name) {
				resp.removed = append(resp.removed, name)
			}
		}
	}
	for _, d := range resp.diffs {
		gone(d.removed)
	}
	gone(t.doubt)
	resp.removed = sortedUnique(resp.removed)
}
