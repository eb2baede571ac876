package xds

import (
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/server/xdsgen/extensionconfig"
	"github.com/meshctl/meshctl/internal/server/xdsgen/plugins"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// assignment holds the live views of one stream for the types that it asks for.
type assignment struct {
	err error // the hub could not choose views
	// moving is set while old versions of moved policies are in force, too, or the proxy may not
	// have a new filter of policies yet.
	moving bool
	types  [numTypes]typeViews
}

type typeViews struct {
	served bool
	views  [units.NumViews]*liveView // in the order of xdsgen.Views; some may be nil
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

// pulledPlugins returns the view of the plugins that need credentials, nil if there is none.
func (a *assignment) pulledPlugins() *plugins.PulledPlugins {
	if a == nil {
		return nil
	}
	for _, v := range a.types[ecds].views {
		if v != nil {
			if pulled, ok := v.view.(plugins.PulledPlugins); ok {
				return &pulled
			}
		}
	}
	return nil
}

// choose chooses the views of streams that connected, that read changed facts or that
// ask for other types. The hub shows the assignments once their views are generated.
func (h *Hub) choose(m mail, changes *snapshot.Changes) map[*subscriber]*assignment {
	chosen := make(map[*subscriber]*assignment)
	if changes != nil {
		others := h.cfg.Generator.Concerned(h.current.Load(), changes)
		for sub := range h.subs.concerned(changes, others) {
			if chosen[sub] == nil && h.assign(sub, sub.views[ecds].Shared) == nil {
				chosen[sub] = h.liveViewsFor(sub)
			} // After a panic, which guard logs, the stream keeps its views.
		}
	}
	for sub, has := range m.moved {
		if _, ok := h.subs.all[sub]; ok && chosen[sub] == nil && sub.assigned.Load() == has && h.movedAndDrained(sub, has) && h.assign(sub, sub.latest) == nil {
			chosen[sub] = h.liveViewsFor(sub)
		}
	}
	for sub := range h.subs.concerned(&snapshot.Changes{Pods: m.reconsider}, nil) {
		if chosen[sub] == nil {
			chosen[sub] = h.liveViewsFor(sub)
		}
	}
	for _, sub := range m.attach {
		inForce := h.inForce(sub)
		h.subs.add(sub)
		sub.draining = inForce.draining
		sub.err = h.assign(sub, inForce.extensions)
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
		h.left.add(sub, h.cfg.Now())
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

// assign chooses the views that a stream may use. Policies that have moved since the extensions
// in force stay in them.
func (h *Hub) assign(sub *subscriber, inForce units.View) error {
	return h.guard("choose views", sub.id, func() {
		h.cfg.Metrics.assigned.Inc()
		node := sub.node
		chosen := h.cfg.Generator.Assign(h.current.Load(), node)
		latest := chosen[xdswire.ExtensionType].Shared
		if node.Moving = extensionconfig.MovedPolicies(inForce, latest); len(node.Moving) > 0 {
			chosen = h.cfg.Generator.Assign(h.current.Load(), node)
		}
		var views [numTypes]allowedViews
		for url, v := range chosen {
			if i := typeIndex(url); i >= 0 {
				views[i] = allowedViews{true, v}
			}
		}
		sub.views, sub.err, sub.latest, sub.moving = views, nil, latest, len(node.Moving) > 0
		sub.gained = sub.gained || extensionconfig.GainsFilter(inForce, latest)
	})
}

// allowedViews are the views of a type that a stream gets if it asks for the type.
type allowedViews struct {
	served bool
	units.Views
}

// liveViewsFor returns the live views of the types that a stream asks for.
func (h *Hub) liveViewsFor(sub *subscriber) *assignment {
	a := &assignment{err: sub.err, moving: sub.moving || sub.gained}
	for i, d := range sub.demands {
		v := sub.views[i]
		if i == sds && h.cfg.Generator.Secrets != nil {
			v = allowedViews{true, units.Views{Shared: d.secrets}}
		}
		if own, ok := v.Own.(plugins.PulledPlugins); ok {
			v.Own = own.For(sub.caller, d.pull)
		}
		switch view := v.Shared.(type) {
		case xdsgen.RoutesWithoutHosts:
			switch d.hosts {
			case inlineHosts:
				v.Shared = view.View
			case hostsOnDemand:
				v.Shared = view.OnDemand()
			case pushedHosts:
			}
		case xdsgen.HostView:
			if d.hosts == hostsOnDemand {
				v.Shared = view.OnDemand()
			}
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
