package xds

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// unit is one generated piece of configuration. All live views that contain it share
// it.
type unit struct {
	key       xdsgen.Unit
	resources []*xdswire.Resource // sorted by name; nil if list has them
	list      *xdswire.List
	err       error
	refs      int // entries of live views
}

// all returns the resources, sorted by name.
func (u *unit) all() []*xdswire.Resource {
	if u.list.Len() > 0 {
		return slices.Collect(u.list.All)
	}
	return u.resources
}

// share replaces many resources by the list of a view that has only these, so that they are in
// memory once.
func (u *unit) share(list *xdswire.List) {
	if len(u.resources) < 64 || len(u.resources) != list.Len() {
		return
	}
	rest := u.resources
	for r := range list.All {
		if rest[0] != r {
			return
		}
		rest = rest[1:]
	}
	u.resources, u.list = nil, list
}

// liveView is a view that some stream uses.
type liveView struct {
	view    xdsgen.View
	streams map[*subscriber]struct{}
	entries map[xdsgen.Key]*unit
	// want holds the entries that the current round replaces; nil removes one.
	want map[xdsgen.Key]*unit
	// contested is set while several units make resources of the same name.
	contested bool
	// pieces are the parts of the resource of a Joined view.
	pieces *viewState
	// state is nil until the view has listed its units once.
	state atomic.Pointer[viewState]
	next  *viewState // the state that Hub.show stores
}

// resolveContested decides which unit provides a resource that several units of the
// view make, such as the listeners of two headless services with one pod and one
// port: the unit with the first key, so that the result depends neither on the order
// of changes nor on chance. It corrects changes accordingly, and reports whether
// several units still make some resource.
func (v *liveView) resolveContested(changes map[string]*xdswire.Resource) bool {
	first := make(map[string]*xdswire.Resource)
	contested := false
	for _, key := range slices.SortedFunc(maps.Keys(v.entries), xdsgen.Key.Compare) {
		for _, r := range v.entries[key].all() {
			if first[r.Name] != nil {
				contested = true
				continue
			}
			first[r.Name] = r
		}
	}
	for name := range changes {
		changes[name] = first[name]
	}
	return contested
}

// joined turns changes of the pieces of a joined resource into the change of the
// resource.
func (h *Hub) joined(v *liveView, to xdsgen.Joined, changes map[string]*xdswire.Resource) map[string]*xdswire.Resource {
	pieces := v.pieces.next(h.states, changes)
	if pieces == v.pieces {
		return nil
	}
	v.pieces = pieces
	r := to.Join(&h.encoder, pieces.resources)
	return map[string]*xdswire.Resource{r.Name: r}
}
