package xds

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// What proxies of two identities refused is held back from the other proxies
// of the view that run the same version of Envoy: they are given what was good
// before. Sessions report what their proxies refused by the hub's mail; the
// hub's goroutine alone judges, and publishes with each live view an immutable
// table that sessions read.

// Bounds of what proxies may report.
const (
	// maxReports is how many reports of one identity count at a time.
	maxReports = 128
	// maxViewReports is how many refused resources of one view count at a
	// time, maxAllReports how many reports of all views.
	maxViewReports = 1024
	maxAllReports  = 16_384
	// keepHeld is how long a view is kept that no stream uses but that holds
	// something back: when all proxies restart, what was good must not be
	// lost. At most maxKept views are kept.
	keepHeld = 10 * time.Minute
	maxKept  = 64
)

// vitalMarks are parts of the names of messages that decide who may connect or
// what they may do. A resource that has one of them is never held back: the
// rules of before could let in who is kept out now, and the other way round.
//
// They are looked for in the encoded bytes, where the type of each extension
// is spelled out, however deep it is nested, packed as Any or as TypedStruct,
// and whatever field it stands in. Walking structs would find only what we
// know, and miss what a later generator or a person's patch puts elsewhere. A
// mark found by chance costs only that the resource is not held back.
// Extensions that hold such messages as plain fields are marked themselves.
var vitalMarks = [...][]byte{
	// Transport sockets: certificates and whom they are checked against.
	[]byte(".transport_sockets.tls."), []byte(".transport_sockets.quic."), []byte(".transport_sockets.alts."),
	[]byte(".transport_sockets.s2a."), []byte(".transport_sockets.starttls."),
	// Filters of listeners and routes; their settings for a single route are
	// messages of the same packages.
	[]byte(".http.rbac."), []byte(".network.rbac."), []byte(".config.rbac."),
	[]byte(".http.jwt_authn."),
	[]byte(".http.ext_authz."), []byte(".network.ext_authz."),
	[]byte(".http.authn."), []byte(".http.basic_auth."), []byte(".http.api_key_auth."), []byte(".http.oauth2."),
	// Code of other people, which may do the same.
	[]byte(".http.ext_proc."), []byte(".network.ext_proc."),
	[]byte(".http.wasm."), []byte(".network.wasm."), []byte(".http.lua."), []byte(".http.golang."), []byte(".network.golang."),
	[]byte(".http.dynamic_modules."), []byte(".network.dynamic_modules."),
}

// vital reports whether the resource carries authentication or authorization.
func vital(r *xdswire.Resource) bool {
	return slices.ContainsFunc(vitalMarks[:], func(mark []byte) bool { return bytes.Contains(r.Delta(), mark) })
}

// goodVersion is a resource as a proxy accepted it. The zero goodVersion is
// none.
type goodVersion struct {
	resource *xdswire.Resource
	// view is of what it was accepted, and seq the number of its state then; 0
	// when it is not known to be the view's own: then it must not be given to
	// other proxies.
	view xdsgen.View
	seq  uint64
}

func (g goodVersion) version() string {
	if g.resource == nil {
		return ""
	}
	return g.resource.Version
}

// heldBack is a resource that is held back. It is immutable.
type heldBack struct {
	id      uint64
	version string // of the refused bytes
	good    goodVersion
}

// heldNames is what is held back in one view from proxies of one version of
// Envoy.
type heldNames struct{ names map[string]*heldBack }

// heldTable is what is held back in one view, by the version of Envoy.
type heldTable struct{ byEnvoy map[string]*heldNames }

// heldPair is what is held back in the views that a proxy shares and in its
// own; nil where there is nothing.
type heldPair [2]*heldNames

// held must be called before pair: the hub publishes what views hold first.
func (t typeViews) held(envoy string) (p heldPair) {
	for k, v := range []*liveView{t.shared, t.own} {
		if v == nil {
			continue
		}
		if table := v.held.Load(); table != nil {
			p[k] = table.byEnvoy[envoy]
		}
	}
	return p
}

// claim is what a proxy that connects says to hold from its last stream.
type claim struct {
	version  string            // of the last response that it accepted, state of the world
	versions map[string]string // of the resources, delta
}

// standIn is what a proxy is given in place of a resource that is held back.
type standIn struct {
	id   uint64 // of what is held back
	good goodVersion
}

// standIns are what the proxy is given in place of resources that are held
// back from it, by name. It keeps those that it accepted before.
func (s *session) standIns(i int, now pair, held heldPair) map[string]standIn {
	t := &s.types[i]
	w, claimed := t.withheld, t.claim
	t.claim = claim{}
	current := claimed.version != "" && claimed.version == versionInfo(now.version())
	kept := make(map[string]string)
	unsure := make(map[string]bool)
	for _, name := range slices.Concat(t.doubt, t.force) {
		unsure[name] = true
	}
	out := make(map[string]standIn)
	for k, state := range []*viewState{now.shared, now.own} {
		if held[k] == nil {
			continue
		}
		for name, h := range held[k].names {
			if is := state.get(name); is == nil || is.Version != h.version {
				continue // the table will say so in a moment
			}
			wanted := t.want.Has(name)
			var has goodVersion
			if wanted && !unsure[name] {
				has = t.accepted(i, name, state)
			}
			if wanted && (current || slices.Contains([]string{claimed.versions[name], w.kept[name], has.version()}, h.version)) {
				kept[name] = h.version
			} else if good, ok := s.better(state, name, h, has); ok {
				out[name] = standIn{h.id, good}
			}
		}
	}
	w.kept = kept
	return out
}

// instead is the ids of what is held back from the proxy besides what it
// refused itself, sorted.
func (w *withheld) instead(standIns map[string]standIn) []uint64 {
	var ids []uint64
	for name, in := range standIns {
		if !w.has(name) {
			ids = append(ids, in.id)
		}
	}
	slices.Sort(ids)
	return ids
}

// better is what to give in place of a resource that is held back: what is
// published as good, unless the proxy itself has accepted something newer, of
// which the hub is told then. It is false when nothing may be given in place.
func (s *session) better(state *viewState, name string, h *heldBack, has goodVersion) (goodVersion, bool) {
	if has.resource == nil || h.good.resource != nil && has.seq <= h.good.seq {
		return h.good, true
	}
	isVital := vital(has.resource)
	if has.seq > 0 && s.sub.caller.Identity != (mesh.Identity{}) {
		r := report{key: reportKey{view: state.view, name: name, envoy: s.sub.node.Envoy, version: h.version}, good: has, vital: isVital}
		s.hub.post(func(m *mail) { m.report(r) })
	}
	return has, !isVital
}

// accepted is what the proxy accepted of a name, as something good for the view
// of a state.
func (t *typeState) accepted(i int, name string, view *viewState) goodVersion {
	if t.assumed && (slices.Contains(t.doubt, name) || t.withheld.has(name)) {
		return goodVersion{} // it had something else before, and refused this
	}
	for _, s := range []*viewState{t.acked.shared, t.acked.own} {
		r := s.get(name)
		if r == nil {
			continue
		}
		return t.goodIn(i, goodVersion{r, s.view, s.seqOf(name)}, view.view)
	}
	return goodVersion{}
}

// goodIn is what is left of something good when the proxy has that view.
func (t *typeState) goodIn(i int, g goodVersion, view xdsgen.View) goodVersion {
	if g.seq > 0 && g.view == view {
		return g
	}
	// Of names that it asked for just now, acked holds what the proxy never saw:
	// that must not come to it from another view.
	if !fullList(i) || !t.want.Wildcard {
		return goodVersion{}
	}
	g.seq = 0
	return g
}

// holder is the state of the pair that has the name, nil when none has.
func (p pair) holder(name string) *viewState {
	if p.shared.get(name) != nil {
		return p.shared
	}
	if p.own.get(name) != nil {
		return p.own
	}
	return nil
}

// seqOf is the number of the published state that the resource is of, 0 when
// it is of another view.
func (s *viewState) seqOf(name string) uint64 {
	if seq, ok := s.replaced[name]; ok {
		return seq
	}
	return s.seq
}

// report is one resource that a proxy refused. Without an identity it says
// only what a proxy accepted before.
type report struct {
	key   reportKey
	good  goodVersion
	vital bool // the good bytes carry authentication or authorization
	error string
	at    time.Time
}

type reportKey struct {
	view                 xdsgen.View
	name, envoy, version string
	who                  mesh.Identity
}

// report tells the hub of resources that the proxy refused. Proxies that have
// not proved who they are, or do not say what they are, count for nobody.
func (s *session) report(i int, names []string) {
	t := &s.types[i]
	who := s.sub.caller.Identity
	if i == sds || who == (mesh.Identity{}) || s.sub.node.Envoy == "" {
		return
	}
	var reports []report
	for _, name := range names[:min(len(names), maxReports)] {
		r := t.withheld.names[name]
		state := t.sent.holder(name)
		if state == nil || vital(state.get(name)) {
			continue
		}
		out := report{
			key:   reportKey{view: state.view, name: name, envoy: s.sub.node.Envoy, version: r.version, who: who},
			error: r.note.Error, at: r.note.Since,
		}
		if good := t.goodIn(i, r.good, state.view); good.seq > 0 {
			out.good, out.vital = good, vital(good.resource)
		}
		reports = append(reports, out)
	}
	if len(reports) == 0 {
		return
	}
	s.hub.post(func(m *mail) {
		for _, r := range reports {
			m.report(r)
		}
	})
}

// report adds a report. Those of one sender are bounded; the rest is as many
// as there are resources held back.
func (m *mail) report(r report) {
	if m.reports == nil {
		m.reports, m.reporters = make(map[reportKey]report), make(map[mesh.Identity]int)
	}
	old, known := m.reports[r.key]
	switch {
	case known && old.good.seq >= r.good.seq && old.vital == r.vital:
		return
	case known:
		r.vital = r.vital || old.vital
	case len(m.reports) >= maxAllReports || r.key.who != (mesh.Identity{}) && m.reporters[r.key.who] >= maxReports:
		return
	default:
		m.reporters[r.key.who]++
	}
	m.reports[r.key] = r
}

// suspect is a resource of a view that at least one proxy of a version of
// Envoy refused. It belongs to the hub's goroutine.
type suspect struct {
	id      uint64
	version string          // of the refused bytes
	by      []mesh.Identity // the first one or two
	good    goodVersion
	vital   bool
	error   string
	since   time.Time // it is held back; zero: it is not
}

type suspectKey struct{ name, envoy string }

// heldViews is what the hub knows of refused resources, of all views.
type heldViews struct {
	reports int
	by      map[mesh.Identity]int
	ids     uint64
	idle    map[*liveView]time.Time // kept without streams, since when
}

// judge brings what is held back up to date after a publication and with what
// was reported. It returns the views in which that changed.
func (h *Hub) judge(published []*liveView, reports map[reportKey]report) []*liveView {
	touched := make(map[*liveView]struct{})
	for _, v := range published {
		state := v.state.Load()
		for key, x := range v.suspects {
			if is := state.get(key.name); is == nil || is.Version != x.version {
				h.acquit(v, key, touched)
			}
		}
	}
	// In the order in which they came, so that the first are the first.
	for _, key := range slices.SortedFunc(maps.Keys(reports), func(a, b reportKey) int {
		return cmp.Or(reports[a].at.Compare(reports[b].at), cmp.Compare(a.who.String(), b.who.String()),
			cmp.Compare(a.name, b.name), cmp.Compare(a.version, b.version))
	}) {
		if v := h.views.all[key.view]; v != nil && h.note(v, reports[key]) {
			touched[v] = struct{}{}
		}
	}
	if len(touched) == 0 {
		return nil
	}
	for v := range touched {
		v.held.Store(v.table())
	}
	h.publishHeld()
	return slices.Collect(maps.Keys(touched))
}

// note takes one report and tells whether it changes what is held back.
func (h *Hub) note(v *liveView, r report) bool {
	if is := v.state.Load().get(r.key.name); is == nil || is.Version != r.key.version {
		return false // it is gone already
	}
	key := suspectKey{r.key.name, r.key.envoy}
	x := v.suspects[key]
	who := r.key.who
	if who != (mesh.Identity{}) && (x == nil || len(x.by) < 2 && !slices.Contains(x.by, who)) {
		if h.held.by[who] >= maxReports || h.held.reports >= maxAllReports || x == nil && len(v.suspects) >= maxViewReports {
			return false
		}
		if x == nil {
			h.held.ids++
			x = &suspect{id: h.held.ids, version: r.key.version, error: r.error}
			if v.suspects == nil {
				v.suspects = make(map[suspectKey]*suspect)
			}
			v.suspects[key] = x
		}
		x.by = append(x.by, who)
		h.held.by[who]++
		h.held.reports++
	}
	if x == nil {
		return false
	}
	was, good := x.isHeld(), x.good
	if r.good.seq > x.good.seq || r.good.seq == x.good.seq && r.good.version() > x.good.version() {
		x.good = r.good
	}
	x.vital = x.vital || r.vital
	if len(x.by) == 2 && x.since.IsZero() && !x.vital {
		x.since = h.cfg.Now()
		h.cfg.Log.Warn("a resource is held back: proxies of two identities refused it",
			"type", xdswire.ShortType(v.view.Type()), "resource", key.name, "version", x.version, "envoy", key.envoy,
			"view", xdsgen.Describe(v.view), "refused by", x.by, "served instead", x.good.version(), "error", x.error)
	}
	return was != x.isHeld() || was && good != x.good
}

func (x *suspect) isHeld() bool { return !x.since.IsZero() && !x.vital }

// acquit forgets a suspect.
func (h *Hub) acquit(v *liveView, key suspectKey, touched map[*liveView]struct{}) {
	x := v.suspects[key]
	for _, who := range x.by {
		h.held.reports--
		if h.held.by[who]--; h.held.by[who] == 0 {
			delete(h.held.by, who)
		}
	}
	delete(v.suspects, key)
	if x.isHeld() {
		touched[v] = struct{}{}
	}
}

// table is what is held back in the view, nil for nothing.
func (v *liveView) table() *heldTable {
	t := &heldTable{byEnvoy: make(map[string]*heldNames)}
	for key, x := range v.suspects {
		if !x.isHeld() {
			continue
		}
		n := t.byEnvoy[key.envoy]
		if n == nil {
			n = &heldNames{names: make(map[string]*heldBack)}
			t.byEnvoy[key.envoy] = n
		}
		n.names[key.name] = &heldBack{id: x.id, version: x.version, good: x.good}
	}
	if len(t.byEnvoy) == 0 {
		return nil
	}
	return t
}

// kept reports whether a view without streams stays for what it holds back.
func (h *Hub) kept(v *liveView) bool {
	now := h.cfg.Now()
	since, known := h.held.idle[v]
	switch {
	case v.held.Load() == nil:
	case !known && len(h.held.idle) < maxKept:
		h.held.idle[v] = now
		// Nothing else may happen until then.
		time.AfterFunc(keepHeld, func() { signal(h.wake) })
		return true
	case known && now.Sub(since) < keepHeld:
		return true
	}
	delete(h.held.idle, v)
	return false
}

// endView forgets what is held back in a view that ends.
func (h *Hub) endView(v *liveView) {
	if len(v.suspects) == 0 {
		return
	}
	touched := make(map[*liveView]struct{})
	for key := range v.suspects {
		h.acquit(v, key, touched)
	}
	if len(touched) > 0 {
		h.publishHeld()
	}
}

// HeldBack is a resource that proxies of two identities refused and that no
// other proxy of the view with their version of Envoy is given.
type HeldBack struct {
	Type     string `json:"type"`
	Resource string `json:"resource"`
	Version  string `json:"version"` // of the resource that was refused
	// Envoy is the version of Envoy, as major.minor.patch.
	Envoy string `json:"envoy"`
	View  string `json:"view"` // what the view depends on
	// RefusedBy are the two identities that refused it first.
	RefusedBy []string  `json:"refusedBy"`
	Since     time.Time `json:"since"`
	Error     string    `json:"error"` // the first proxy's
	// Served is the version that is given in its place, empty for nothing.
	Served string `json:"served,omitempty"`
	// Streams is from how many streams it is held back; those that refused or
	// accepted it do not count.
	Streams int `json:"streams"`

	id uint64
}

// publishHeld shows what is held back on status pages.
func (h *Hub) publishHeld() {
	list := []HeldBack{}
	var count [numTypes]int
	for _, v := range h.views.all {
		for key, x := range v.suspects {
			if !x.isHeld() {
				continue
			}
			b := HeldBack{
				Type: xdswire.ShortType(v.view.Type()), Resource: key.name, Version: x.version, Envoy: key.envoy,
				View: xdsgen.Describe(v.view), Since: x.since, Error: x.error, Served: x.good.version(), id: x.id,
			}
			for _, who := range x.by {
				b.RefusedBy = append(b.RefusedBy, who.String())
			}
			list = append(list, b)
			if i := typeIndex(v.view.Type()); i >= 0 {
				count[i]++
			}
		}
	}
	slices.SortFunc(list, func(a, b HeldBack) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.id, b.id)) })
	h.heldList.Store(&list)
	for i, n := range count {
		h.cfg.Metrics.heldBack[i].Set(float64(n))
	}
}

// heldBack lists what is held back, the oldest first.
func (h *Hub) heldBack() []HeldBack {
	published := h.heldList.Load()
	if published == nil {
		return []HeldBack{}
	}
	streams := make(map[uint64]int)
	for _, sub := range h.subscribers() {
		sub.mu.Lock()
		for _, st := range sub.status {
			for _, id := range st.heldBack {
				streams[id]++
			}
		}
		sub.mu.Unlock()
	}
	out := slices.Clone(*published)
	for i := range out {
		out[i].Streams = streams[out[i].id]
	}
	return out
}
