package xds

import (
	"time"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// round brings everything to the newest snapshot: it chooses views, generates missing
// units, publishes the changes and queues the sessions that they concern.
func (h *Hub) round(m mail) {
	changes := m.changes
	started := h.cfg.Now()
	if m.snapshot != nil {
		h.current.Store(m.snapshot)
	}
	chosen := h.choose(m, changes)
	touched := h.collect(changes)
	h.generate(h.missing, h.publishEndpoints)
	h.show(h.publish(touched, h.record(changes, m.snapshot, started)), chosen)
	if m.snapshot != nil {
		h.seq.Store(m.snapshot.Seq)
	}
	h.idle = append(h.idle, h.missing...)
	h.missing = nil
	h.sweep()
	for _, to := range m.inspect {
		to <- h.inspect()
	}
}

// record adds the publication of a snapshot to the history. It returns nil without
// changes.
func (h *Hub) record(changes *snapshot.Changes, s *snapshot.Snapshot, started time.Time) *history.Round {
	if changes == nil {
		return nil
	}
	r := &history.Round{
		Snapshot: s.Seq, Causes: changes.Causes, Events: changes.Events,
		Arrived: changes.Since, Started: started, Generated: h.cfg.Now(),
	}
	for _, u := range h.missing {
		r.Resources += len(u.resources)
	}
	h.history.Publish(r)
	return r
}

// show stores the new view states and assignments, so that streams see all of them at
// once, and queues the sessions that they concern.
func (h *Hub) show(changed []*liveView, chosen map[*subscriber]*assignment) {
	var sessions []*session
	h.showing.Lock()
	for _, v := range changed {
		v.state.Store(v.next)
		for sub := range v.streams {
			sessions = append(sessions, sub.session)
		}
	}
	for sub, a := range chosen {
		sub.assigned.Store(a)
		sessions = append(sessions, sub.session)
	}
	h.showing.Unlock()
	h.queue.add(sessions...)
}

// collect lists the units of stale views and the units of other views that the changes
// may affect. It returns the views to publish and leaves the units to generate in
// missing.
func (h *Hub) collect(changes *snapshot.Changes) []*liveView {
	var touched []*liveView
	l := h.newListing(changes)
	list := func(v *liveView) bool {
		if len(v.streams) == 0 {
			return false // unused: sweep removes it, or it lists everything when used again
		}
		stale := h.views.isStale(v)
		if !l.list(v, stale || changes.Everywhere) {
			return false
		}
		if v.want != nil || stale {
			touched = append(touched, v)
		}
		h.publishEndpoints()
		return true
	}
	var failed []*liveView
	for v := range h.views.touched(changes) {
		if !list(v) {
			failed = append(failed, v)
		}
	}
	for v := range h.views.stale {
		if list(v) {
			delete(h.views.stale, v)
		}
	}
	for _, v := range failed {
		h.views.stale[v] = struct{}{}
	}
	return touched
}

// listing collects in liveView.want the differences between the units that a view
// has and those that it lists now. It serves one view after another.
type listing struct {
	hub     *Hub
	changes *snapshot.Changes
	view    *liveView
	whole   bool   // list all units
	run     func() // units, bound once as there may be many views
}

func (h *Hub) newListing(changes *snapshot.Changes) *listing {
	l := &listing{hub: h, changes: changes}
	l.run = l.units
	return l
}

// list lists the units of a view: all, or those that the changes concern. It returns
// false after a panic, which guard logs: the last good state of the view remains.
func (l *listing) list(v *liveView, whole bool) bool {
	l.hub.cfg.Metrics.listed.Inc()
	l.view, l.whole = v, whole
	if err := l.hub.guard("list units", v.view.Type(), l.run); err != nil {
		v.want = nil
		return false
	}
	return true
}

func (l *listing) units() {
	v, s := l.view, l.hub.current.Load()
	if !l.whole {
		for key := range v.view.Keys().Touched(s, l.changes) {
			l.note(key, v.view.Unit(s, key))
		}
		return
	}
	seen := make(map[units.Key]struct{}, len(v.entries))
	for key, u := range units.Units(v.view, s) {
		seen[key] = struct{}{}
		l.note(key, u)
	}
	for key := range v.entries {
		if _, ok := seen[key]; !ok {
			l.want(key, nil)
		}
	}
}

func (l *listing) want(key units.Key, u *unit) {
	if l.view.want == nil {
		l.view.want = make(map[units.Key]*unit)
	}
	l.view.want[key] = u
}

// note records the unit that the view has now for a key. It may be nil.
func (l *listing) note(key units.Key, now units.Unit) {
	old := l.view.entries[key]
	switch {
	case now == nil && old == nil, now != nil && old != nil && old.key == now:
		return
	case now == nil:
		l.want(key, nil)
		return
	}
	u := l.hub.units[now]
	if u == nil {
		u = &unit{key: now}
		l.hub.units[now] = u
		l.hub.missing = append(l.hub.missing, u)
	}
	l.want(key, u)
}

// publish makes the next states of the views and returns the views that changed.
func (h *Hub) publish(touched []*liveView, round *history.Round) []*liveView {
	var changed []*liveView
	for _, v := range touched {
		s := h.nextState(v)
		v.want = nil
		if s == v.state.Load() {
			continue
		}
		s.round, s.view = round, v.view
		v.next = s
		changed = append(changed, v)
		if _, joined := v.view.(units.Joined); !joined && len(v.entries) == 1 {
			for _, u := range v.entries {
				u.share(s.resources)
			}
		}
	}
	return changed
}

// nextState brings the entries of a view up to date, and returns its next state.
func (h *Hub) nextState(v *liveView) *viewState {
	before := v.state.Load()
	h.states++
	to, joined := v.view.(units.Joined)
	if before == nil && !joined && len(v.want) == 1 {
		for id, u := range v.want {
			if u == nil || u.err != nil {
				continue
			}
			if all := u.all(); hasUniqueNames(all) { // without a map of all changes
				u.refs++
				v.entries[id] = u
				return newState(h.states, nil, all, nil, len(all) > 0)
			}
		}
	}
	changes := make(map[string]*xdswire.Resource)
	resources := before // by the names that units use
	if joined {
		resources = v.pieces
	}
	// A resource may move from one unit to another: remove the resources of the
	// old units first, then add the resources of the new ones.
	var added []*xdswire.Resource
	for id, u := range v.want {
		if u != nil && u.err != nil {
			continue
		}
		var before, now []*xdswire.Resource
		if old := v.entries[id]; old != nil {
			before = old.all()
			h.release(old)
			delete(v.entries, id)
		}
		if u != nil {
			now = u.all()
			u.refs++
			v.entries[id] = u
		}
		gone, came := differing(before, now)
		for _, r := range gone {
			changes[r.Name] = nil
		}
		added = append(added, came...)
	}
	for _, r := range added {
		other, known := changes[r.Name]
		v.contested = v.contested || other != nil || !known && resources.get(r.Name) != nil
		changes[r.Name] = r
	}
	if v.contested {
		v.contested = v.resolveContested(changes)
	}
	if joined {
		changes = h.joined(v, to, changes)
	}
	return before.next(h.states, changes)
}

// hasUniqueNames reports whether sorted resources have different names.
func hasUniqueNames(resources []*xdswire.Resource) bool {
	for i := range len(resources) - 1 {
		if resources[i].Name == resources[i+1].Name {
			return false
		}
	}
	return true
}

// differing returns the resources of two lists without resources that are in both. It finds these
// if the lists are sorted by name.
func differing(before, now []*xdswire.Resource) (gone, came []*xdswire.Resource) {
	if len(before) == 0 || len(now) == 0 {
		return before, now
	}
	for len(before) > 0 && len(now) > 0 {
		switch {
		case before[0] == now[0]:
			before, now = before[1:], now[1:]
		case before[0].Name <= now[0].Name:
			gone, before = append(gone, before[0]), before[1:]
		default:
			came, now = append(came, now[0]), now[1:]
		}
	}
	return append(gone, before...), append(came, now...)
}

// release drops one reference to a unit.
func (h *Hub) release(u *unit) {
	u.refs--
	h.idle = append(h.idle, u)
}

// sweep removes views without streams and units without views.
func (h *Hub) sweep() {
	for v := range h.views.unused {
		if len(v.streams) > 0 {
			delete(h.views.unused, v)
			continue
		}
		for _, u := range v.entries {
			h.release(u)
		}
		h.views.remove(v)
	}
	for _, u := range h.idle {
		if u.refs == 0 {
			delete(h.units, u.key)
			h.patchFaults.drop(u)
			h.patched.drop(u)
		}
	}
	h.idle = nil
	h.cfg.Metrics.views.Set(float64(len(h.views.all)))
}
