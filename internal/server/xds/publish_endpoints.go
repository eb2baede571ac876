package xds

import (
	"maps"
	"slices"

	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// publishEndpoints publishes the endpoint changes in the mail while a round for other
// changes runs, so that they do not wait for its end. A round calls it between two steps.
// The mail stays: the next round handles these changes, too, and publishes the endpoints
// that are left out here, because the present round changes their view, or because they
// are new or gone with their service.
func (h *Hub) publishEndpoints() {
	h.mu.Lock()
	s, changes := h.mail.snapshot, h.mail.changes
	h.mu.Unlock()
	if changes == nil || changes == h.early || !changes.OnlyEndpoints() {
		return
	}
	h.early = changes
	started := h.cfg.Now()
	// What the round lists from now on has the newer endpoints, too: no view returns to
	// older ones.
	h.current.Store(s)
	missing := h.missing
	h.missing = nil
	var touched []*liveView
	l := h.newListing(changes)
	for v := range h.views.touched(changes) {
		if v.view.Type() != xdswire.PushOrder[eds] || v.want != nil || len(v.streams) == 0 || !l.list(v, false) {
			continue
		}
		maps.DeleteFunc(v.want, func(key units.Key, u *unit) bool {
			return u == nil || v.entries[key] == nil || slices.Contains(missing, u)
		})
		if len(v.want) == 0 {
			v.want = nil
			continue
		}
		touched = append(touched, v)
	}
	h.generate(h.missing, func() {}) // the round may list these units, too
	if len(touched) > 0 {
		h.show(h.publish(touched, h.record(changes, s, started)), nil)
	}
	h.idle = append(h.idle, h.missing...)
	h.missing = missing
}
