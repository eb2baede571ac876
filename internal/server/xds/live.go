package xds

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// unit is one generated piece, shared by all live views that hold it.
type unit struct {
	key       xdsgen.Unit
	resources []*xdswire.Resource
	err       error
	refs      int // entries of live views
}

// liveView is a view that some stream uses.
type liveView struct {
	view    xdsgen.View
	streams map[*subscriber]struct{}
	entries map[string]*unit
	// want is what the round now running found: the units that are new or
	// other than those in entries, nil for those that are gone.
	want map[string]*unit
	// contested says that several units make a resource of one name.
	contested bool
	// pieces are what a Joined view's resource is made of.
	pieces *viewState
	// state is nil until the view was listed once.
	state atomic.Pointer[viewState]
	next  *viewState // to be shown
}

// assignment is the live views of one stream, by type index: of the types that
// it asks for.
type assignment struct {
	err   error // no views could be chosen
	types [numTypes]typeViews
}

type typeViews struct {
	served      bool
	shared, own *liveView
	demand      demand
}

// pair is what the views hold now; ok is false when they hold nothing yet.
func (t typeViews) pair() (p pair, ok bool) {
	if t.shared != nil {
		if p.shared = t.shared.state.Load(); p.shared == nil {
			return p, false
		}
	}
	if t.own != nil {
		if p.own = t.own.state.Load(); p.own == nil {
			return p, false
		}
	}
	return p, true
}

func (a *assignment) views(yield func(*liveView) bool) {
	for _, t := range a.types {
		if t.shared != nil && !yield(t.shared) || t.own != nil && !yield(t.own) {
			return
		}
	}
}

// round brings everything to the newest snapshot: chooses views, generates
// the units that are missing, publishes what changed, tells the streams.
func (h *Hub) round(m mail) {
	changes := m.changes
	started := h.cfg.Now()
	if m.snapshot != nil {
		h.current.Store(m.snapshot)
	}
	chosen := h.choose(m, changes)
	touched := h.collect(changes)
	if h.cfg.Observer != nil {
		h.times = &generationTimes{}
	}
	h.generate(h.missing)
	changed := h.publish(touched, h.record(changes, started))
	h.show(changed, chosen)
	var news []*session
	for sub := range chosen {
		news = append(news, sub.session)
	}
	for _, v := range changed {
		for sub := range v.streams {
			news = append(news, sub.session)
		}
	}
	h.queue.add(news...)
	if s := h.current.Load(); s != nil {
		h.seq.Store(s.Seq)
	}
	h.idle = append(h.idle, h.missing...)
	h.missing = nil
	h.sweep()
	for _, to := range m.inspect {
		to <- h.inspect()
	}
}

// record remembers a publication that changes caused; nil when none did.
func (h *Hub) record(changes *snapshot.Changes, started time.Time) *history.Round {
	if changes == nil {
		return nil
	}
	r := &history.Round{
		Snapshot: h.current.Load().Seq, Causes: changes.Causes, Events: changes.Events,
		Arrived: changes.Since, Taken: changes.Taken, Built: changes.Built, Started: started, Generated: h.cfg.Now(),
		Types: h.times.list(),
	}
	for _, u := range h.missing {
		r.Resources += len(u.resources)
	}
	h.history.Publish(r)
	return r
}

// show lets streams see what was published, and the assignments that were
// chosen, at once.
func (h *Hub) show(changed []*liveView, chosen map[*subscriber]*assignment) {
	h.showing.Lock()
	defer h.showing.Unlock()
	for _, v := range changed {
		v.state.Store(v.next)
	}
	for sub, a := range chosen {
		sub.assigned.Store(a)
	}
}

// choose gives streams that came, whose facts changed or that ask for other
// types their views. The assignments it returns are to be shown once their
// views are generated.
func (h *Hub) choose(m mail, changes *snapshot.Changes) map[*subscriber]*assignment {
	chosen := make(map[*subscriber]*assignment)
	if changes != nil {
		all := h.cfg.Generation.AssignAll(h.current.Load(), changes)
		for sub := range h.subs.concerned(changes, all) {
			if chosen[sub] == nil && h.assign(sub) == nil {
				chosen[sub] = h.give(sub)
			} // After a panic, which guard tells of, the stream keeps its views.
		}
	}
	for sub := range h.subs.concerned(&snapshot.Changes{Pods: m.reconsider}, false) {
		if chosen[sub] == nil {
			chosen[sub] = h.give(sub)
		}
	}
	for _, sub := range m.attach {
		h.subs.add(sub)
		sub.err = h.assign(sub)
		chosen[sub] = h.give(sub)
	}
	for _, sub := range h.heed(m.demands) {
		chosen[sub] = h.give(sub)
	}
	for sub, a := range chosen {
		h.leave(sub, sub.assigned.Load())
		for v := range a.views {
			v.streams[sub] = struct{}{}
		}
	}
	for _, sub := range m.detach {
		h.leave(sub, chosen[sub])
		h.leave(sub, sub.assigned.Load())
		h.subs.remove(sub)
		delete(chosen, sub)
	}
	return chosen
}

// leave takes a stream out of the views of an assignment, which may be nil.
func (h *Hub) leave(sub *subscriber, a *assignment) {
	if a == nil {
		return
	}
	for v := range a.views {
		if delete(v.streams, sub); len(v.streams) == 0 {
			h.views.unused[v] = struct{}{}
		}
	}
}

// assign chooses the views that a stream may have.
func (h *Hub) assign(sub *subscriber) error {
	return h.guard("choose views", sub.id, func() {
		h.cfg.Metrics.assigned.Inc()
		var views [numTypes]mayHave
		for url, v := range h.cfg.Generation.Assign(h.current.Load(), sub.node) {
			if i := typeIndex(url); i >= 0 {
				views[i] = mayHave{true, v}
			}
		}
		sub.views, sub.err = views, nil
	})
}

// mayHave is what a stream is given of a type when it asks for it.
type mayHave struct {
	served bool
	xdsgen.Views
}

// give finds or makes the live views of the types that a stream asks for.
func (h *Hub) give(sub *subscriber) *assignment {
	a := &assignment{err: sub.err}
	for i, d := range sub.demands {
		v := sub.views[i]
		if i == sds && h.cfg.Generation.Secrets != nil {
			v = mayHave{true, xdsgen.Views{Shared: d.secrets}}
		}
		a.types[i].demand = d
		if d.asked && v.served {
			a.types[i] = typeViews{served: true, shared: h.views.of(v.Shared), own: h.views.of(v.Own), demand: d}
		}
	}
	return a
}

// collect asks the views for their units, stale ones for all and the others for
// those that the changes may touch. It returns the views to publish anew; the
// units to generate are then in missing.
func (h *Hub) collect(changes *snapshot.Changes) []*liveView {
	var touched []*liveView
	l := &listing{hub: h, changes: changes}
	run := l.run // bound once: there may be many views
	l.yield = l.note
	ask := func(v *liveView) bool {
		if len(v.streams) == 0 {
			return false // it goes, or is listed whole when it is used again
		}
		h.cfg.Metrics.listed.Inc()
		l.view, l.whole = v, h.views.isStale(v) || changes.Everywhere
		if err := h.guard("list units", v.view.Type(), run); err != nil {
			v.want = nil // the last good state stays
			return false
		}
		if v.want != nil || h.views.isStale(v) {
			touched = append(touched, v)
		}
		return true
	}
	var failed []*liveView
	for v := range h.views.touched(changes) {
		if !ask(v) {
			failed = append(failed, v)
		}
	}
	for v := range h.views.stale {
		if ask(v) {
			delete(h.views.stale, v)
		}
	}
	for _, v := range failed {
		h.views.stale[v] = struct{}{}
	}
	return touched
}

// listing notes in want of one view after the other what it holds now and did
// not hold before.
type listing struct {
	hub     *Hub
	changes *snapshot.Changes
	yield   func(id string, key xdsgen.Unit) // note
	view    *liveView
	whole   bool                // list everything
	seen    map[string]struct{} // ids, then
}

func (l *listing) run() {
	v := l.view
	l.seen = nil
	if !l.whole {
		v.view.Touched(l.hub.current.Load(), l.changes, l.yield)
		return
	}
	l.seen = make(map[string]struct{})
	v.view.Units(l.hub.current.Load(), l.yield)
	for id := range v.entries {
		if _, ok := l.seen[id]; !ok {
			l.want(id, nil)
		}
	}
}

func (l *listing) want(id string, u *unit) {
	if l.view.want == nil {
		l.view.want = make(map[string]*unit)
	}
	l.view.want[id] = u
}

func (l *listing) note(id string, key xdsgen.Unit) {
	if l.seen != nil {
		l.seen[id] = struct{}{}
	}
	old := l.view.entries[id]
	switch {
	case key == nil && old == nil, key != nil && old != nil && old.key == key:
		delete(l.view.want, id)
		return
	case key == nil:
		l.want(id, nil)
		return
	}
	u := l.hub.units[key]
	if u == nil {
		u = &unit{key: key}
		l.hub.units[key] = u
		l.hub.missing = append(l.hub.missing, u)
	}
	l.want(id, u)
}

// generate makes the units' resources on all processors.
func (h *Hub) generate(units []*unit) {
	var next atomic.Int64
	var wg sync.WaitGroup
	work := func() {
		for i := next.Add(1) - 1; int(i) < len(units); i = next.Add(1) - 1 {
			h.generateOne(units[i])
		}
	}
	for range min(runtime.GOMAXPROCS(0), len(units)) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}

func (h *Hub) generateOne(u *unit) {
	t := typeIndex(u.key.Type())
	if h.times != nil && t >= 0 {
		began := h.cfg.Now()
		defer func() { h.times.note(t, began, h.cfg.Now()) }()
	}
	err := h.guard("generate", u.key.Type(), func() { u.resources, u.err = u.key.Generate(&h.encoder) })
	if err != nil {
		u.err = err
	}
	if u.err != nil {
		u.resources = nil
		h.cfg.Metrics.failures.Inc()
		h.cfg.Log.Error("generation failed, the last good version stays",
			"type", xdswire.ShortType(u.key.Type()), "unit", fmt.Sprintf("%T", u.key), "error", u.err)
		return
	}
	if t >= 0 {
		h.cfg.Metrics.generated[t].Add(float64(len(u.resources)))
	}
}

// publish makes the next states of the views and returns those that have one.
func (h *Hub) publish(touched []*liveView, round *history.Round) []*liveView {
	var changed []*liveView
	for _, v := range touched {
		changes := make(map[string]*xdswire.Resource)
		before := v.state.Load()
		// A resource may move from one unit to another: first what the units
		// gave before, then what they give now.
		for id, u := range v.want {
			if old := v.entries[id]; old != nil && (u == nil || u.err == nil) {
				for _, r := range old.resources {
					changes[r.Name] = nil
				}
				h.release(old)
				delete(v.entries, id)
			}
		}
		for id, u := range v.want {
			if u == nil || u.err != nil {
				continue
			}
			for _, r := range u.resources {
				other, known := changes[r.Name]
				v.contested = v.contested || other != nil || !known && before.get(r.Name) != nil
				changes[r.Name] = r
			}
			u.refs++
			v.entries[id] = u
		}
		v.want = nil
		if v.contested {
			v.contested = v.first(changes)
		}
		h.states++
		if to, ok := v.view.(xdsgen.Joined); ok {
			changes = h.joined(v, to, changes)
		}
		if s := before.next(h.states, changes); s != before {
			s.round, s.view = round, v.view
			v.next = s
			changed = append(changed, v)
		}
	}
	return changed
}

// release gives up one use of a unit.
func (h *Hub) release(u *unit) {
	u.refs--
	h.idle = append(h.idle, u)
}

// sweep forgets views that no stream uses and units that no view holds.
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
		}
	}
	h.idle = nil
	h.cfg.Metrics.views.Set(float64(len(h.views.all)))
}

// guard runs a piece of generation; a panic in it becomes an error and costs
// only that piece.
func (h *Hub) guard(what, of string, f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s of %s: panic: %v", what, of, p)
			h.cfg.Metrics.panics.Inc()
			h.cfg.Log.Error("panic in generation", "what", what, "of", of, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	f()
	return nil
}
