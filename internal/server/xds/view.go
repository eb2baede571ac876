package xds

import (
	"iter"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// first decides who gives a resource that several units of the view make, such
// as the listeners of two headless services with one pod and one port: the
// first by id, so that neither the order of changes nor chance decides. In
// changes it puts right what the view has of each name; it reports whether
// some resource is still made by several units.
func (v *liveView) resolveContested(changes map[string]*xdswire.Resource) bool {
	claimed := make(map[string]*xdswire.Resource)
	contested := false
	for _, id := range slices.Sorted(maps.Keys(v.entries)) {
		for _, r := range v.entries[id].resources {
			if claimed[r.Name] != nil {
				contested = true
				continue
			}
			claimed[r.Name] = r
		}
	}
	for name := range changes {
		changes[name] = claimed[name]
	}
	return contested
}

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

// liveViews are the views in use, found by what they read.
type viewIndex struct {
	all     map[xdsgen.View]*liveView
	readers index[snapshot.Kinds, *liveView]
	// stale are those that may miss more than the next changes name: nothing was
	// listed yet or for a while, or listing failed.
	stale map[*liveView]struct{}
	// unused are those that may be without a stream since the last sweep.
	unused map[*liveView]struct{}
}

func newViewIndex() viewIndex {
	return viewIndex{
		make(map[xdsgen.View]*liveView), make(index[snapshot.Kinds, *liveView]),
		make(map[*liveView]struct{}), make(map[*liveView]struct{}),
	}
}

// of finds or makes the live view; of no view it is nil.
func (l *viewIndex) of(v xdsgen.View) *liveView {
	if v == nil {
		return nil
	}
	lv := l.all[v]
	if lv == nil {
		lv = &liveView{view: v, streams: make(map[*subscriber]struct{}), entries: make(map[string]*unit)}
		l.all[v] = lv
		l.readers.add(v.Reads(), lv)
		l.stale[lv], l.unused[lv] = struct{}{}, struct{}{}
	}
	return lv
}

func (l *viewIndex) remove(lv *liveView) {
	delete(l.all, lv.view)
	l.readers.remove(lv.view.Reads(), lv)
	delete(l.stale, lv)
	delete(l.unused, lv)
}

// isStale reports whether the view is to be listed whole.
func (l *viewIndex) isStale(lv *liveView) bool {
	_, ok := l.stale[lv]
	return ok
}

// touched yields the views that changes may touch and that are not stale. Nil
// changes touch none.
func (l *viewIndex) touched(c *snapshot.Changes) iter.Seq[*liveView] {
	return func(yield func(*liveView) bool) {
		if c == nil {
			return
		}
		kinds := c.Kinds()
		for reads, views := range l.readers {
			if !c.Everywhere && reads&kinds == 0 {
				continue
			}
			for lv := range views {
				if !l.isStale(lv) && !yield(lv) {
					return
				}
			}
		}
	}
}

// joined turns changes of the pieces of a resource into that of the resource.
func (h *Hub) joined(v *liveView, to xdsgen.Joined, changes map[string]*xdswire.Resource) map[string]*xdswire.Resource {
	pieces := v.pieces.next(h.states, changes)
	if pieces == v.pieces {
		return nil
	}
	v.pieces = pieces
	r := to.Join(&h.encoder, pieces.resources)
	return map[string]*xdswire.Resource{r.Name: r}
}
