package xds

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"weak"

	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// refusal is a resource whose bytes the proxy refused, or may have refused.
// It is not sent these bytes again.
type quarantined struct {
	version string                       // of the refused bytes
	good    good                         // what the proxy has instead
	entry    *history.QuarantinedResource // nil while it is only a suspect
}

// good is a resource as a proxy accepted it, and the view that it was of. The zero
// good is none.
type good struct {
	resource *xdswire.Resource
	view     xdsgen.View
}

func (g good) version() string {
	if g.resource == nil {
		return ""
	}
	return g.resource.Version
}

// goodIn returns what is left of a good resource when the proxy has that view. Of
// names that it asked for just now, acked holds what the proxy never saw: that must
// not come to it from another view.
func (t *typeState) goodIn(i int, g good, view xdsgen.View) good {
	if g.view == view || fullList(i) && t.want.Wildcard {
		return g
	}
	return good{}
}

// accepted returns what the proxy accepted of a name, as far as it may be given that
// with the view of a state.
func (t *typeState) accepted(i int, name string, of *viewState) good {
	if t.assumed && (slices.Contains(t.doubt, name) || t.quarantine.has(name)) {
		return good{} // it had something else before, and refused this
	}
	for _, s := range []*viewState{t.acked.shared, t.acked.own} {
		if r := s.get(name); r != nil {
			return t.goodIn(i, good{r, s.view}, of.view)
		}
	}
	return good{}
}

// withheld is what one proxy is not sent of one type. The rest of the session
// works with the pair that is left, as if the hub had published that.
type quarantine struct {
	names map[string]quarantined
	// suspects are groups of names, one of which made the proxy refuse a
	// response that did not say which. They are sent group by group; a group
	// that is refused is halved.
	suspects [][]string
	tries    int
	// to is what was left of the last pair of the hub, from.
	from, to pair
}

// changed has what is left worked out again.
func (w *quarantine) changed() { w.from, w.to = pair{}, pair{} }

// maxTries bounds the responses that look for a resource to blame. What is
// not found by then stays withheld with the suspects that are left.
const maxTries = 64

// maxWithheld bounds the resources that are withheld from a proxy of one
// type: one that refuses more than that is sent them again when they change.
const maxQuarantined = 10_000

// oneOfSeveral is how resources were found that may be innocent.
const oneOfSeveral = "one of several"

func (w *quarantine) has(name string) bool {
	if w == nil {
		return false
	}
	_, ok := w.names[name]
	return ok
}

// blame withholds what a refused response may have been refused for, and
// returns the names that are certain. The names are those of the resources in
// the response that were new to the proxy; raw is its error text.
func (s *session) quarantine(i int, names []string, raw string, nack *history.LastNACK) []string {
	t := &s.types[i]
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !s.mayQuarantine(i, n) })
	if len(names) == 0 || t.quarantine != nil && len(t.quarantine.names)+len(names) > maxQuarantined {
		t.release() // the search goes on without this answer
		return nil
	}
	if t.quarantine == nil {
		t.quarantine = &quarantine{names: make(map[string]quarantined)}
	}
	w := t.quarantine
	w.changed()
	found, how := namesInNACK(raw, func(n string) bool { _, ok := slices.BinarySearch(names, n); return ok }), "error text"
	if len(found) == 0 && len(names) == 1 {
		found, how = names, "alone in the response"
	}
	if len(found) == 0 && w.tries >= maxTries {
		found, how = names, oneOfSeveral
		for _, group := range w.suspects {
			found = append(found, slices.DeleteFunc(slices.Clone(group), func(n string) bool { return !w.has(n) })...)
		}
		w.suspects, w.tries = nil, 0
	}
	for _, name := range found {
		r, suspect := w.names[name]
		if !suspect {
			r = s.newQuarantined(i, name)
		}
		r.entry = &history.QuarantinedResource{
			Type: xdswire.ShortType(xdswire.PushOrder[i]), Resource: name, Version: r.version,
			Found: how, Since: nack.At, Error: nack.Message,
		}
		w.names[name] = r
	}
	s.showQuarantine(i)
	if len(found) > 0 {
		return found
	}
	for _, name := range names {
		w.names[name] = s.newQuarantined(i, name)
	}
	half := len(names) / 2
	w.suspects = slices.Insert(w.suspects, 0, names[:half], names[half:])
	t.release()
	return nil
}

// mayWithhold reports whether the proxy can be left without the bytes that it
// was sent: in a full list, what is absent is removed, so what the proxy has
// instead must be known.
func (s *session) mayQuarantine(i int, name string) bool {
	t := &s.types[i]
	now := t.sent.get(name)
	if now == nil {
		return false
	}
	if s.sub.variant == xdswire.Delta || !fullList(i) {
		return true
	}
	if t.acked == (pair{}) {
		return t.fresh
	}
	good := t.acked.get(name)
	return good == nil || good.Version != now.Version
}

func (s *session) newQuarantined(i int, name string) quarantined {
	t := &s.types[i]
	sent := t.sent.holder(name)
	r := quarantined{version: sent.get(name).Version, good: t.accepted(i, name, sent)}
	if r.good.version() == r.version {
		r.good = good{}
	}
	return r
}

// release lets the next group of suspects be sent, as far as they are still
// withheld. It reports whether there was one.
func (t *typeState) release() bool {
	w := t.quarantine
	if w == nil {
		return false
	}
	freed := false
	for len(w.suspects) > 0 && !freed {
		group := w.suspects[0]
		w.suspects = w.suspects[1:]
		for _, name := range group {
			if r, ok := w.names[name]; ok && r.entry == nil {
				delete(w.names, name)
				freed = true
			}
		}
		if freed {
			t.doubt = sortedUnique(t.doubt, group) // it may be gone since
			w.tries++
			w.changed()
		}
	}
	if len(w.suspects) == 0 {
		w.tries = 0
	}
	return freed
}

// left is what is to be sent of the hub's pair. Resources that are other than
// those refused are sent like any, and told of even if the proxy had them
// before, as it may have taken what it refused.
func (s *session) withoutQuarantined(i int, now pair) pair {
	t := &s.types[i]
	w := t.quarantine
	switch {
	case w == nil:
		return now
	case w.from == now:
		return w.to
	case t.inflight:
		return now // only compared; an ACK would forget the doubts of now
	}
	gone := 0
	for name, r := range w.names {
		if is := now.get(name); is == nil || is.Version != r.version {
			delete(w.names, name)
			t.doubt = append(slices.Clip(t.doubt), name)
			gone++
		}
	}
	if gone > 0 {
		s.showQuarantine(i)
		t.sent = pair{} // the hub's may become that of the refused response again
	}
	if len(w.names) == 0 && len(w.suspects) == 0 {
		t.quarantine = nil
		return now
	}
	w.from = now
	replaced := make(map[string]*xdswire.Resource, len(w.names))
	for name, r := range w.names {
		// The proxy may have another view since.
		replaced[name] = t.goodIn(i, r.good, now.holder(name).view).resource
	}
	w.to = pair{s.hub.overlay(now.shared, replaced), s.hub.overlay(now.own, replaced)}
	return w.to
}

// overlay is the state with what was refused replaced by what was good.
// Proxies that refuse the same share it.
func (h *Hub) overlay(s *viewState, replaced map[string]*xdswire.Resource) *viewState {
	if s == nil {
		return nil
	}
	changes := make(map[string]*xdswire.Resource)
	var key strings.Builder
	for _, name := range slices.Sorted(maps.Keys(replaced)) {
		if s.get(name) == nil {
			continue
		}
		changes[name] = replaced[name]
		fmt.Fprintf(&key, "%d %s %s ", len(name), name, good{resource: replaced[name]}.version())
	}
	if len(changes) == 0 {
		return s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.overlays[key.String()].Value(); known != nil {
		return known
	}
	// The ids of published states count up from 1.
	made := s.next(h.overlays.Add(1)|1<<63, changes)
	made.round, made.view = s.round, s.view
	if len(s.overlays) >= 64 {
		maps.DeleteFunc(s.overlays, func(_ string, p weak.Pointer[viewState]) bool { return p.Value() == nil })
	}
	if s.overlays == nil {
		s.overlays = make(map[string]weak.Pointer[viewState])
	}
	s.overlays[key.String()] = weak.Make(made)
	return made
}

// publishRefused shows on status pages what is certain.
func (s *session) showQuarantine(i int) {
	var notes []*history.QuarantinedResource
	if w := s.types[i].quarantine; w != nil {
		for _, r := range w.names {
			if r.entry != nil {
				notes = append(notes, r.entry)
			}
		}
	}
	before := 0
	s.sub.setStatus(i, func(st *typeStatus) { before, st.quarantined = len(st.quarantined), notes })
	s.hub.cfg.Metrics.refused[i].Add(float64(len(notes) - before))
}

// refused joins what the connected proxies refused, by type and resource.
func (h *Hub) quarantined() []history.QuarantinedResource {
	type key struct{ typ, name, version string }
	found := make(map[key]*history.QuarantinedResource)
	for _, sub := range h.subscribers() {
		sub.mu.Lock()
		for _, st := range sub.status {
			for _, n := range st.quarantined {
				k := key{n.Type, n.Resource, n.Version}
				r := found[k]
				if r == nil || n.Since.Before(r.Since) {
					first := *n
					if r != nil {
						first.Streams = r.Streams
					}
					r = &first
					found[k] = r
				}
				r.Streams = append(r.Streams, sub.id)
			}
		}
		sub.mu.Unlock()
	}
	out := make([]history.QuarantinedResource, 0, len(found))
	for _, r := range found {
		slices.Sort(r.Streams)
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b history.QuarantinedResource) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Resource, b.Resource))
	})
	return out
}

// forgetRefused has nothing withheld any more.
func (s *session) endQuarantine(i int) {
	if s.types[i].quarantine != nil {
		s.types[i].quarantine = nil
		s.showQuarantine(i)
	}
}
