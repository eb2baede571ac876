package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Cause is an object whose change was pushed.
type Cause struct {
	Kind      string `json:"kind"`
	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Place is the file and line, or the Kubernetes API; empty for a deleted object.
	Place string `json:"place,omitempty"`
	Gone  bool   `json:"gone,omitempty"`
}

// Publication is a Round as status pages show it.
type Publication struct {
	Snapshot   uint64    `json:"snapshot"`
	Causes     []Cause   `json:"causes"`
	Events     int       `json:"events"` // Causes are the first of them
	Arrived    time.Time `json:"arrived,omitzero"`
	Started    time.Time `json:"started"`
	Generated  time.Time `json:"generated"`
	LastAnswer time.Time `json:"lastAnswer,omitzero"`
	Resources  int       `json:"resources"` // generated
	Pushes     int64     `json:"pushes"`
	ACKs       int64     `json:"acks"`
	NACKs      int64     `json:"nacks"`
	Bytes      int64     `json:"bytes"` // sent
}

// Push is a response as status pages show it. Times in the future are left out.
type Push struct {
	Number    uint64       `json:"number"` // in the stream, from 0
	Type      string       `json:"type"`
	Version   string       `json:"version"`
	Why       string       `json:"why"`             // change, request or repair
	Change    *Publication `json:"change,omitzero"` // the newest in the response
	Queued    time.Time    `json:"queued,omitzero"`
	Sent      time.Time    `json:"sent"`
	Written   time.Time    `json:"written,omitzero"`
	Answered  time.Time    `json:"answered,omitzero"`
	Answer    string       `json:"answer"` // ACK, NACK or empty
	Error     string       `json:"error,omitempty"`
	Refused   []string     `json:"refused,omitempty"` // resources, as far as known
	Resources int          `json:"resources"`
	Removed   int          `json:"removed"`
	Bytes     int          `json:"bytes"`
}

// History is the record of one stream.
type History struct {
	Info
	Forgotten uint64 `json:"forgotten"` // pushes before those listed
	Pushes    []Push `json:"pushes"`    // oldest first
}

// NACK is a response that a proxy refused.
type NACK struct {
	Stream    string    `json:"stream"`
	Number    uint64    `json:"number"` // of the push in its stream
	Type      string    `json:"type"`
	Version   string    `json:"version"`
	At        time.Time `json:"at"`
	Resources []string  `json:"resources"` // as far as known
	Error     string    `json:"error"`
}

// Streams returns the streams in the history, sorted by name.
func (r *Recorder) Streams() []Info {
	out := []Info{}
	for _, s := range r.streams() {
		out = append(out, s.who())
	}
	return out
}

// History returns the records of a proxy's streams, or of one stream if the name is a
// stream's. It returns none for an unknown name.
func (r *Recorder) History(name string) []History {
	var out []History
	for _, s := range r.streams() {
		if info := s.who(); info.Stream == name || info.Proxy == name {
			out = append(out, s.history())
		}
	}
	return out
}

// NACKs returns the refused responses in the history, oldest first. Later responses
// displace NACKs of a live stream; NACKs of an ended stream disappear with its record.
func (r *Recorder) NACKs() []NACK {
	out := []NACK{}
	for _, s := range r.streams() {
		out = append(out, s.nacks()...)
	}
	slices.SortStableFunc(out, func(a, b NACK) int { return a.At.Compare(b.At) })
	return out
}

// Timeline returns the publications in the history, oldest first.
func (r *Recorder) Timeline() []Publication {
	r.mu.Lock()
	rounds := slices.Clone(r.rounds)
	r.mu.Unlock()
	out := make([]Publication, len(rounds))
	for i, round := range rounds {
		out[i] = *round.report()
	}
	return out
}

func (r *Recorder) streams() []*StreamRecord {
	r.mu.Lock()
	out := slices.Clone(r.ended)
	for s := range r.live {
		out = append(out, s)
	}
	r.mu.Unlock()
	slices.SortFunc(out, func(a, b *StreamRecord) int { return cmp.Compare(a.info.Stream, b.info.Stream) })
	return out
}

func (s *StreamRecord) who() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

func (s *StreamRecord) history() History {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := History{Info: s.info, Forgotten: s.count - uint64(len(s.ring)), Pushes: []Push{}}
	for n := h.Forgotten; n < s.count; n++ {
		h.Pushes = append(h.Pushes, s.at(n).report(n))
	}
	return h
}

func (s *StreamRecord) nacks() []NACK {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []NACK
	for n := s.count - uint64(len(s.ring)); n < s.count; n++ {
		if p := s.at(n); p.refused != nil {
			out = append(out, NACK{
				Stream: s.info.Stream, Number: n, Type: p.Type, Version: version(p.Version), At: p.answered,
				Resources: p.refused.resources, Error: p.refused.message,
			})
		}
	}
	return out
}

func (p *push) report(n uint64) Push {
	out := Push{
		Number: n, Type: p.Type, Version: version(p.Version), Why: whyNames[p.Why],
		Queued: p.Queued, Sent: p.At, Written: p.written, Answered: p.answered,
		Resources: p.Resources, Removed: p.Removed, Bytes: p.Bytes,
	}
	if p.Round != nil {
		out.Change = p.Round.report()
	}
	switch {
	case p.refused != nil:
		out.Answer, out.Error, out.Refused = "NACK", p.refused.message, p.refused.resources
	case !p.answered.IsZero():
		out.Answer = "ACK"
	}
	return out
}

// version formats a version for the wire.
func version(v uint64) string { return fmt.Sprintf("%016x", v) }

func (r *Round) report() *Publication {
	p := &Publication{
		Snapshot: r.Snapshot, Causes: causes(r.Causes), Events: r.Events,
		Arrived: r.Arrived, Started: r.Started, Generated: r.Generated, Resources: r.Resources,
		Pushes: r.pushes.Load(), ACKs: r.acks.Load(), NACKs: r.nacks.Load(), Bytes: r.bytes.Load(),
	}
	if last := r.lastAnswer.Load(); last != 0 {
		p.LastAnswer = time.Unix(0, last)
	}
	return p
}

func causes(list []snapshot.Cause) []Cause {
	out := make([]Cause, len(list))
	for i, c := range list {
		out[i] = Cause{Kind: string(c.Kind), Cluster: string(c.Cluster), Namespace: c.Namespace, Name: c.Name, Gone: c.Gone}
		if !c.Gone && c.Kind.IsObject() {
			out[i].Place = c.Place.String()
		}
	}
	return out
}
