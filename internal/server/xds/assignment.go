package xds

import (
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
)

// assignment holds the live views of one stream for the types that it asks for.
type assignment struct {
	err   error // the hub could not choose views
	types [numTypes]typeViews
}

type typeViews struct {
	served bool
	views  [xdsgen.NumViews]*liveView // in the order of xdsgen.Views; some may be nil
	demand demand
}

// pair returns the current states of the views; ok is false while one has none.
func (t typeViews) pair() (p viewSet, ok bool) {
	for i, v := range t.views {
		if v == nil {
			continue
		}
		if p[i] = v.state.Load(); p[i] == nil {
			return p, false
		}
	}
	return p, true
}

func (a *assignment) views(yield func(*liveView) bool) {
	for _, t := range a.types {
		for _, v := range t.views {
			if v != nil && !yield(v) {
				return
			}
		}
	}
}

// choose chooses the views of streams that connected, that read changed facts or that
// ask for other types. The hub shows the assignments once their views are generated.
func (h *Hub) choose(m mail, changes *snapshot.Changes) map[*subscriber]*assignment {
	chosen := make(map[*subscriber]*assignment)
	if changes != nil {
		others := h.cfg.Generator.Concerned(h.current.Load(), changes)
		for sub := range h.subs.concerned(changes, others) {
			if chosen[sub] == nil && h.assign(sub) == nil {
				chosen[sub] = h.liveViewsFor(sub)
			} // After a panic, which guard logs, the stream keeps its views.
		}
	}
	for sub := range h.subs.concerned(&snapshot.Changes{Pods: m.reconsider}, nil) {
		if chosen[sub] == nil {
			chosen[sub] = h.liveViewsFor(sub)
		}
	}
	for _, sub := range m.attach {
		h.subs.add(sub)
		sub.err = h.assign(sub)
		chosen[sub] = h.liveViewsFor(sub)
	}
	for _, sub := range h.takeDemands(m.demands) {
		chosen[sub] = h.liveViewsFor(sub)
	}
	for sub, a := range chosen {
		h.leaveViews(sub, sub.assigned.Load())
		for v := range a.views {
			v.streams[sub] = struct{}{}
		}
	}
	for _, sub := range m.detach {
		h.leaveViews(sub, chosen[sub])
		h.leaveViews(sub, sub.assigned.Load())
		h.subs.remove(sub)
		delete(chosen, sub)
	}
	return chosen
}

// leaveViews removes a stream from the views of an assignment, which may be nil.
func (h *Hub) leaveViews(sub *subscriber, a *assignment) {
	if a == nil {
		return
	}
	for v := range a.views {
		if delete(v.streams, sub); len(v.streams) == 0 {
			h.views.unused[v] = struct{}{}
		}
	}
}

// assign chooses the views that a stream may use.
func (h *Hub) assign(sub *subscriber) error {
	return h.guard("choose views", sub.id, func() {
		h.cfg.Metrics.assigned.Inc()
		var views [numTypes]allowedViews
		for url, v := range h.cfg.Generator.Assign(h.current.Load(), sub.node) {
			if i := typeIndex(url); i >= 0 {
				views[i] = allowedViews{true, v}
			}
		}
		sub.views, sub.err = views, nil
	})
}

// allowedViews are the views of a type that a stream gets if it asks for the type.
type allowedViews struct {
	served bool
	xdsgen.Views
}

// liveViewsFor returns the live views of the types that a stream asks for.
func (h *Hub) liveViewsFor(sub *subscriber) *assignment {
	a := &assignment{err: sub.err}
	for i, d := range sub.demands {
		v := sub.views[i]
		if i == sds && h.cfg.Generator.Secrets != nil {
			v = allowedViews{true, xdsgen.Views{Shared: d.secrets}}
		}
		a.types[i].demand = d
		if d.asked && v.served {
			a.types[i].served = true
			for j, view := range v.List() {
				a.types[i].views[j] = h.views.of(view)
			}
		}
	}
	return a
}
