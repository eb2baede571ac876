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

// quarantine holds the resources of one type that a proxy refused, or may have refused:
// they are not sent to it again in the same version. The rest of the session works
// with the pair that is left, as if the hub had published that.
type quarantine struct {
	names map[string]quarantined
	// suspects are groups of names, one of which made the proxy refuse a response
	// without naming it. The groups are sent one by one; a group that is refused is
	// halved.
	suspects [][]string
	tries    int
	// to is the rest of from, the last pair of the hub.
	from, to viewSet
}

// quarantined is a resource in quarantine.
type quarantined struct {
	version string                       // the refused version
	good    lastGood                     // the resource that the proxy has instead
	entry   *history.QuarantinedResource // nil while the resource is only a suspect
}

// lastGood is a resource that a proxy accepted and the view that it came from. The zero
// value is none.
type lastGood struct {
	resource *xdswire.Resource
	view     xdsgen.View
}

func (g lastGood) version() string {
	if g.resource == nil {
		return ""
	}
	return g.resource.Version
}

// usableWith returns g if the proxy may keep it with the view. For names that the proxy
// asked for just now, acked may hold resources that the proxy never saw; these must
// not reach it from another view.
func (t *typeState) usableWith(i int, g lastGood, view xdsgen.View) lastGood {
	if g.view == view || fullList(i) && t.want.Wildcard {
		return g
	}
	return lastGood{}
}

// lastAccepted returns the resource of the name that the proxy accepted, if it may keep
// that with the view of the state.
func (t *typeState) lastAccepted(i int, name string, of *viewState) lastGood {
	if t.assumed && (slices.Contains(t.doubt, name) || t.quarantine.has(name)) {
		return lastGood{} // the proxy held another version before, and refused this one
	}
	for _, s := range t.acked {
		if r := s.get(name); r != nil {
			return t.usableWith(i, lastGood{r, s.view}, of.view)
		}
	}
	return lastGood{}
}

// changed drops the result of withoutQuarantined.
func (q *quarantine) changed() { q.from, q.to = viewSet{}, viewSet{} }

// maxTries bounds the responses in the search for a refused resource. Afterwards the
// remaining suspects stay in quarantine.
const maxTries = 64

// maxQuarantined bounds the quarantine of one type. A proxy that refuses more resources
// gets them again when they change.
const maxQuarantined = 10_000

// oneOfSeveral is the evidence against resources that may be innocent.
const oneOfSeveral = "one of several"

func (q *quarantine) has(name string) bool {
	if q == nil {
		return false
	}
	_, ok := q.names[name]
	return ok
}

// quarantine puts the resources in quarantine for which the proxy may have refused a
// response, and returns the names that are certain. The names are the resources in the
// response that were new to the proxy; raw is the proxy's error text.
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
	q := t.quarantine
	q.changed()
	found, how := namesInNACK(raw, func(n string) bool { _, ok := slices.BinarySearch(names, n); return ok }), "error text"
	if len(found) == 0 && len(names) == 1 {
		found, how = names, "alone in the response"
	}
	if len(found) == 0 && q.tries >= maxTries {
		found, how = names, oneOfSeveral
		for _, group := range q.suspects {
			found = append(found, slices.DeleteFunc(slices.Clone(group), func(n string) bool { return !q.has(n) })...)
		}
		q.suspects, q.tries = nil, 0
	}
	searched := xdsgen.MaxSearched
	for _, name := range found {
		r, suspect := q.names[name]
		if !suspect {
			r = s.newQuarantined(i, name)
		}
		r.entry = &history.QuarantinedResource{
			Type: typeName(i), Resource: name, Version: r.version,
			Found: how, Since: nack.At, Error: nack.Message,
		}
		if sent := t.sent.holder(name); sent != nil {
			r.entry.Objects = xdsgen.SourcesOf(sent.view, sent.get(name), &searched)
		}
		q.names[name] = r
	}
	s.showQuarantine(i)
	if len(found) > 0 {
		return found
	}
	for _, name := range names {
		q.names[name] = s.newQuarantined(i, name)
	}
	half := len(names) / 2
	q.suspects = slices.Insert(q.suspects, 0, names[:half], names[half:])
	t.release()
	return nil
}

// mayQuarantine reports whether the proxy can do without the version that it was sent.
// In a full list absent resources are removed, so it must be known what the proxy has
// instead.
func (s *session) mayQuarantine(i int, name string) bool {
	t := &s.types[i]
	now := t.sent.get(name)
	if now == nil {
		return false
	}
	if s.sub.variant == xdswire.Delta || !fullList(i) {
		return true
	}
	if t.acked == (viewSet{}) {
		return t.fresh
	}
	good := t.acked.get(name)
	return good == nil || good.Version != now.Version
}

func (s *session) newQuarantined(i int, name string) quarantined {
	t := &s.types[i]
	sent := t.sent.holder(name)
	r := quarantined{version: sent.get(name).Version, good: t.lastAccepted(i, name, sent)}
	if r.good.version() == r.version {
		r.good = lastGood{}
	}
	return r
}

// release releases the next group of suspects that are still in quarantine, so that
// they are sent. It reports whether there was one.
func (t *typeState) release() bool {
	q := t.quarantine
	if q == nil {
		return false
	}
	freed := false
	for len(q.suspects) > 0 && !freed {
		group := q.suspects[0]
		q.suspects = q.suspects[1:]
		for _, name := range group {
			if r, ok := q.names[name]; ok && r.entry == nil {
				delete(q.names, name)
				freed = true
			}
		}
		if freed {
			t.doubt = sortedUnique(t.doubt, group) // the resource may be gone since
			q.tries++
			q.changed()
		}
	}
	if len(q.suspects) == 0 {
		q.tries = 0
	}
	return freed
}

// withoutQuarantined returns the part of the hub's pair to send. A resource leaves the
// quarantine when its version changes. It is then in doubt and sent even if the proxy
// had the new version before, because the proxy may have applied the refused one.
func (s *session) withoutQuarantined(i int, now viewSet) viewSet {
	t := &s.types[i]
	q := t.quarantine
	switch {
	case q == nil:
		return now
	case q.from == now:
		return q.to
	case t.inflight:
		return now // only compared; an ACK would clear the doubts about now
	}
	gone := 0
	for name, r := range q.names {
		if is := now.get(name); is == nil || is.Version != r.version {
			delete(q.names, name)
			t.doubt = append(slices.Clip(t.doubt), name)
			gone++
		}
	}
	if gone > 0 {
		s.showQuarantine(i)
		t.sent = viewSet{} // or the hub's pair may become the refused one again, unnoticed
	}
	if len(q.names) == 0 && len(q.suspects) == 0 {
		t.quarantine = nil
		return now
	}
	q.from = now
	replaced := make(map[string]*xdswire.Resource, len(q.names))
	for name, r := range q.names {
		// The proxy may use another view since.
		replaced[name] = t.usableWith(i, r.good, now.holder(name).view).resource
	}
	for i, state := range now {
		q.to[i] = s.hub.overlay(state, replaced)
	}
	return q.to
}

// overlay returns the state with refused resources replaced by good ones. Proxies that
// refuse the same resources share it.
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
		fmt.Fprintf(&key, "%d %s %s ", len(name), name, lastGood{resource: replaced[name]}.version())
	}
	if len(changes) == 0 {
		return s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.overlays[key.String()].Value(); known != nil {
		return known
	}
	// Bit 63 separates the ids of overlays from the ids of published states, which count from 1.
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

// showQuarantine shows the certain entries of the quarantine on status pages.
func (s *session) showQuarantine(i int) {
	var entries []*history.QuarantinedResource
	if q := s.types[i].quarantine; q != nil {
		for _, r := range q.names {
			if r.entry != nil {
				entries = append(entries, r.entry)
			}
		}
	}
	before := 0
	s.sub.setStatus(i, func(st *typeStatus) { before, st.quarantined = len(st.quarantined), entries })
	s.hub.cfg.Metrics.refused[i].Add(float64(len(entries) - before))
}

// quarantined merges the quarantines of all connected proxies.
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

// endQuarantine releases everything of a type.
func (s *session) endQuarantine(i int) {
	if s.types[i].quarantine != nil {
		s.types[i].quarantine = nil
		s.showQuarantine(i)
	}
}
