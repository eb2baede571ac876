package xds

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// typeStatus is the state of a type on a stream that status pages show. The
// subscriber's lock guards it.
type typeStatus struct {
	watched       bool
	isSent, acked bool
	sentVersion   uint64
	ackedVersion  uint64
	nack          *history.LastNACK
	sentAt        time.Time
	answeredAt    time.Time
	awaited       bool
	quarantined   []*history.QuarantinedResource
}

// answered notes an ACK or a NACK.
func (st *typeStatus) answered(at time.Time) { st.answeredAt, st.awaited = at, false }

// History returns the record of how changes reached the proxies.
func (h *Hub) History() *history.Recorder { return h.history }

// NACKs lists what proxies refused.
type NACKs struct {
	// NACKs are the refused responses in the history, oldest first.
	NACKs []history.NACK `json:"nacks"`
	// Refused are the quarantined resources of connected proxies.
	Refused []history.QuarantinedResource `json:"refused"`
}

// NACKs returns what proxies refused.
func (h *Hub) NACKs() NACKs {
	return NACKs{NACKs: h.history.NACKs(), Refused: h.quarantined()}
}

// LiveView describes a view in use, or the views of a type that one workload each uses.
type LiveView struct {
	Type string `json:"type"` // short name
	// Scope is "shared", or "own" for views of one workload.
	Scope string `json:"scope"`
	Of    string `json:"of"`    // what the view depends on
	Views int    `json:"views"` // the number of views in this entry
	// Streams use the view; Resources and Bytes are held once for all.
	Streams   int    `json:"streams"`
	Units     int    `json:"units"`
	Resources int    `json:"resources"`
	Bytes     int    `json:"bytes"`
	Version   string `json:"version,omitempty"`
}

// Views lists the views in use, those with most streams first. Views of one workload
// make one entry for each type. Views waits until the hub's current round is over.
func (h *Hub) Views(ctx context.Context) ([]LiveView, error) {
	answer := make(chan []LiveView, 1)
	h.post(func(m *mail) { m.inspect = append(m.inspect, answer) })
	select {
	case views := <-answer:
		return views, nil
	case <-h.done:
		return nil, errors.New("the server is stopping")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// inspect makes the result of Views. It runs on the hub's goroutine.
func (h *Hub) inspect() []LiveView {
	own := make(map[*liveView]bool)
	for sub := range h.subs.all {
		if a := sub.assigned.Load(); a != nil {
			for _, t := range a.types {
				own[t.views[len(t.views)-1]] = true
			}
		}
	}
	var out []LiveView
	folded := make(map[string]*LiveView)
	for key, v := range h.views.all {
		l := LiveView{Type: xdswire.ShortType(key.Type()), Scope: "shared", Views: 1, Streams: len(v.streams), Units: len(v.entries)}
		if s := v.state.Load(); s != nil {
			l.Version = versionInfo(s.resources.Sum())
			l.Resources = s.resources.Len()
			for r := range s.resources.All {
				l.Bytes += r.Size()
			}
		}
		if !own[v] {
			l.Of = xdsgen.Describe(key)
			out = append(out, l)
			continue
		}
		f := folded[l.Type]
		if f == nil {
			f = &LiveView{Type: l.Type, Scope: "own", Of: "single workloads"}
			folded[l.Type] = f
		}
		f.Views++
		f.Streams += l.Streams
		f.Units += l.Units
		f.Resources += l.Resources
		f.Bytes += l.Bytes
	}
	for _, f := range folded {
		out = append(out, *f)
	}
	slices.SortFunc(out, func(a, b LiveView) int {
		return cmp.Or(cmp.Compare(b.Streams, a.Streams), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Of, b.Of))
	})
	return out
}

// Proxies returns the connected streams, sorted by id.
func (h *Hub) Proxies() []history.Proxy {
	subs := h.subscribers()
	out := make([]history.Proxy, len(subs))
	for i, s := range subs {
		out[i] = s.proxy()
	}
	slices.SortFunc(out, func(a, b history.Proxy) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Versions counts the connected streams by the software version that their proxies
// report.
func (h *Hub) Versions() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make(map[string]int)
	for s := range h.proxies {
		out[s.node.Version]++
	}
	return out
}

func (s *subscriber) proxy() history.Proxy {
	p := history.Proxy{
		ID: s.id, Node: s.node, Caller: s.caller, Certificate: s.certificate, Address: s.address, Variant: s.variant, Connected: s.connected,
		Types: make(map[string]history.TypeStatus),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, st := range s.status {
		if !st.watched {
			continue
		}
		t := history.TypeStatus{NACK: st.nack, SentAt: st.sentAt, AnsweredAt: st.answeredAt, Awaited: st.awaited}
		for _, r := range st.quarantined {
			t.Quarantined = append(t.Quarantined, *r)
		}
		if st.isSent {
			t.Sent = versionInfo(st.sentVersion)
		}
		if st.acked {
			t.Acked = versionInfo(st.ackedVersion)
		}
		p.Types[typeName(i)] = t
	}
	return p
}

// Sent returns by type URL what a stream was sent last, for the types that it watches.
// It returns nil for an unknown id.
func (h *Hub) Sent(id string) map[string]history.SentConfig {
	subs := h.subscribers()
	i := slices.IndexFunc(subs, func(s *subscriber) bool { return s.id == id })
	if i < 0 {
		return nil
	}
	wants, pairs := subs[i].session.sentNow()
	out := make(map[string]history.SentConfig)
	for i, want := range wants {
		if want == nil {
			continue
		}
		sent := history.SentConfig{Wildcard: want.Wildcard, Names: want.Names.Names()}
		if pairs[i] != (viewSet{}) {
			sent.Version = versionInfo(pairs[i].version())
		}
		for r := range pairs[i].all {
			if want.Has(r.Name) {
				sent.Resources = append(sent.Resources, r)
			}
		}
		slices.SortFunc(sent.Resources, compareNames)
		out[xdswire.PushOrder[i]] = sent
	}
	return out
}

// Accepted returns by stream id the resources of a type that the stream accepted last.
// It leaves out streams that refused the last response or have not answered it.
func (h *Hub) Accepted(typeURL string) map[string][]*xdswire.Resource {
	i := typeIndex(typeURL)
	out := make(map[string][]*xdswire.Resource)
	for _, s := range h.subscribers() {
		s.mu.Lock()
		st := s.status[i]
		s.mu.Unlock()
		if !st.watched || !st.acked || st.awaited || st.nack != nil || len(st.quarantined) > 0 || st.ackedVersion != st.sentVersion {
			continue
		}
		_, pairs := s.session.sentNow()
		if pairs[i] == (viewSet{}) || pairs[i].version() != st.ackedVersion {
			continue // another response was sent in between
		}
		out[s.id] = slices.Collect(pairs[i].all)
	}
	return out
}

// sentNow returns the subscriptions of the stream, nil for types that it does not watch,
// and the pairs sent last.
func (s *session) sentNow() (wants [numTypes]*xdswire.Subscription, pairs [numTypes]viewSet) {
	s.mu.Lock()
	for i := range s.types {
		if t := &s.types[i]; t.watched {
			want := t.want
			wants[i], pairs[i] = &want, t.sent
		}
	}
	s.mu.Unlock()
	// A worker that found the lock taken left its work to the holder, which is us.
	if s.pending.Load() {
		s.hub.queue.add(s)
	}
	return wants, pairs
}
