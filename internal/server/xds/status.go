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

// typeStatus is the part of a stream's state that others may read, under the
// subscriber's lock.
type typeStatus struct {
	watched       bool
	isSent, acked bool
	sentVersion   uint64
	ackedVersion  uint64
	nack          *history.LastNACK
	sentAt        time.Time
	answeredAt    time.Time
	awaited       bool
	quarantined       []*history.QuarantinedResource
}

// answered notes that an answer came.
func (st *typeStatus) answered(at time.Time) { st.answeredAt, st.awaited = at, false }

// History returns the record of how changes reached the proxies.
func (h *Hub) History() *history.Recorder { return h.history }

// NACKs is what proxies refused.
type NACKs struct {
	// NACKs are the refused responses that are remembered, oldest first.
	NACKs []history.NACK `json:"nacks"`
	// Refused are the resources that connected proxies are left without.
	Refused []history.QuarantinedResource `json:"refused"`
}

// NACKs tells what proxies refused.
func (h *Hub) NACKs() NACKs {
	return NACKs{NACKs: h.history.NACKs(), Refused: h.quarantined()}
}

// LiveView is a view in use, or several that one stream each uses.
type LiveView struct {
	Type string `json:"type"` // short name
	// Scope is shared or own: made for one workload.
	Scope string `json:"scope"`
	Of    string `json:"of"`    // what the view depends on
	Views int    `json:"views"` // how many are told of together
	// Streams use the view; Resources and Bytes are held once for all.
	Streams   int    `json:"streams"`
	Units     int    `json:"units"`
	Resources int    `json:"resources"`
	Bytes     int    `json:"bytes"`
	Version   string `json:"version,omitempty"`
}

// Views tells what views are in use and by how many streams, those with most
// streams first; views of one workload are told of together for each type. It
// waits until the hub's present work is done.
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

// inspect makes the answer of Views on the hub's goroutine.
func (h *Hub) inspect() []LiveView {
	own := make(map[*liveView]bool)
	for sub := range h.subs.all {
		if a := sub.assigned.Load(); a != nil {
			for _, t := range a.types {
				own[t.own] = true
			}
		}
	}
	var out []LiveView
	folded := make(map[string]*LiveView)
	for key, v := range h.views.all {
		l := LiveView{Type: xdswire.ShortType(key.Type()), Scope: "shared", Views: 1, Streams: len(v.streams), Units: len(v.entries)}
		if s := v.state.Load(); s != nil {
			l.Version = versionInfo(s.sum)
			l.Resources = len(s.resources)
			for _, r := range s.resources {
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

// Proxies lists the connected streams, sorted by id.
func (h *Hub) Proxies() []history.Proxy {
	subs := h.subscribers()
	out := make([]history.Proxy, len(subs))
	for i, s := range subs {
		out[i] = s.proxy()
	}
	slices.SortFunc(out, func(a, b history.Proxy) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Versions counts the connected streams by what their proxies say is the version
// of the mesh's software.
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
		p.Types[xdswire.ShortType(xdswire.PushOrder[i])] = t
	}
	return p
}

// Sent is what a stream was sent last, by type URL, for the types that it
// watches. It is nil when there is no stream of that id.
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
		if pairs[i] != (pair{}) {
			sent.Version = versionInfo(pairs[i].version())
		}
		for _, r := range slices.Concat(pairs[i].shared.list(), pairs[i].own.list()) {
			if want.Has(r.Name) {
				sent.Resources = append(sent.Resources, r)
			}
		}
		slices.SortFunc(sent.Resources, func(a, b *xdswire.Resource) int { return cmp.Compare(a.Name, b.Name) })
		out[xdswire.PushOrder[i]] = sent
	}
	return out
}

// Accepted are the resources of a type that streams accepted last, by their ids. A
// stream that has refused or not yet answered the last response has none.
func (h *Hub) Accepted(typeURL string) map[string][]*xdswire.Resource {
	i := slices.Index(xdswire.PushOrder[:], typeURL)
	out := make(map[string][]*xdswire.Resource)
	for _, s := range h.subscribers() {
		s.mu.Lock()
		st := s.status[i]
		s.mu.Unlock()
		if !st.watched || !st.acked || st.awaited || st.nack != nil || len(st.quarantined) > 0 || st.ackedVersion != st.sentVersion {
			continue
		}
		_, pairs := s.session.sentNow()
		if pairs[i] == (pair{}) || pairs[i].version() != st.ackedVersion {
			continue // something was sent meanwhile
		}
		out[s.id] = slices.Concat(pairs[i].shared.list(), pairs[i].own.list())
	}
	return out
}

// sentNow is what the stream subscribed to, nil for types that it does not
// watch, and what it was sent last.
func (s *session) sentNow() (wants [numTypes]*xdswire.Subscription, pairs [numTypes]pair) {
	s.mu.Lock()
	for i := range s.types {
		if t := &s.types[i]; t.watched {
			want := t.want
			wants[i], pairs[i] = &want, t.sent
		}
	}
	s.mu.Unlock()
	// Who came meanwhile to send something has left that to the lock's holder.
	if s.pending.Load() {
		s.hub.queue.add(s)
	}
	return wants, pairs
}
