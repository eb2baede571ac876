// Package history remembers how changes reached proxies: what caused a push,
// how long each stage took, how the proxy answered. Memory is bounded for
// each stream and in total; records have a fixed size, and what many pushes
// have in common they share. Nothing is kept for each resource.
package history

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Bounds of what is remembered.
const (
	maxPushes     = 32  // of one stream
	maxEnded      = 128 // streams that ended
	maxEndedProxy = 4   // of these, streams of one proxy
	maxRounds     = 256 // publications
)

// Round is one publication: what caused it and when it passed each stage.
// After Publish only its counters change.
type Round struct {
	Snapshot  uint64 // sequence number of the snapshot
	Causes    []snapshot.Cause
	Events    int // behind the publication, Causes are the first of them
	Arrived   time.Time
	Taken     time.Time // the batch was closed
	Built     time.Time // the snapshot was made
	Started   time.Time // generation began
	Generated time.Time
	Resources int // that were generated
	// Types are when which type was generated, for an Observer alone.
	Types []Generation
	// Trace is what the Observer said of the round.
	Trace any

	pushes, acks, nacks, bytes atomic.Int64
	lastAnswer                 atomic.Int64 // Unix nanoseconds
}

// Generation is when resources of a type were generated, by several goroutines.
type Generation struct {
	Type         string // short name
	Units        int    // generated pieces, of one or more resources each
	Began, Ended time.Time
}

// Observer is told of each round and of the responses that carried it. It is
// called by those who work for the proxies, so it must not block.
type Observer interface {
	// Published is told of a round before anything is sent for it. What it returns
	// is kept as the round's Trace; of a round without one nothing more is told.
	Published(r *Round) any
	// Answered is told of a response that a proxy answered, or that had no answer
	// when its stream ended. It carries the round and all before it since first;
	// p has no Change.
	Answered(of Info, p Push, round, first *Round)
}

// Why says what made a push necessary.
type Why uint8

// Reasons of pushes.
const (
	Change  Why = iota // something published
	Request            // the proxy asked
	Repair             // the proxy refused the response before
)

var whyNames = [...]string{Change: "change", Request: "request", Repair: "repair"}

// Response describes one response that is being sent.
type Response struct {
	Type      string // short name
	Version   uint64
	Why       Why
	Round     *Round // the newest that it shows, nil unless Why is Change
	First     *Round // the oldest that had not been sent before, with Round
	Resources int
	Removed   int
	Bytes     int
	// Queued is when the oldest change in it could have been sent; zero when
	// nothing waited.
	Queued time.Time
	At     time.Time
}

// push is what is kept of a response.
type push struct {
	Response
	written, answered time.Time
	refused           *refusal // set by a NACK
}

type refusal struct {
	message   string
	resources []string
}

// Recorder remembers the rounds and streams of a hub. It is safe for use by
// several goroutines.
type Recorder struct {
	observer Observer // may be nil

	mu     sync.Mutex
	rounds []*Round // oldest first
	live   map[*Stream]struct{}
	ended  []*Stream // oldest first
}

// New returns an empty Recorder; the observer may be nil.
func New(o Observer) *Recorder { return &Recorder{observer: o, live: make(map[*Stream]struct{})} }

// Publish remembers a round. Only its counters may change from then on.
func (r *Recorder) Publish(round *Round) {
	if r.observer != nil {
		round.Trace = r.observer.Published(round)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rounds = appendBounded(r.rounds, round, maxRounds)
}

// appendBounded appends and forgets the oldest beyond most.
func appendBounded[T any](list []T, v T, most int) []T {
	if len(list) == most {
		list = slices.Delete(list, 0, 1)
	}
	return append(list, v)
}

// Info says whose stream it is.
type Info struct {
	Stream    string    `json:"stream"` // <name>.<namespace>-<number>
	Proxy     string    `json:"proxy"`  // <name>.<namespace>
	Variant   string    `json:"variant"`
	Connected time.Time `json:"connected"`
	Ended     time.Time `json:"ended,omitzero"`
}

// Stream is the record of one stream.
type Stream struct {
	recorder *Recorder

	mu    sync.Mutex
	info  Info
	ring  []push // the last ones; the one of number n is at n%maxPushes
	count uint64 // pushes so far
}

// Open begins the record of a stream.
func (r *Recorder) Open(info Info) *Stream {
	s := &Stream{recorder: r, info: info}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live[s] = struct{}{}
	return s
}

// Close notes the end of the stream. Its record stays until enough others
// have ended; those of one proxy make room for each other first, so that one
// that keeps connecting does not push out the rest.
func (s *Stream) Close(now time.Time) {
	r := s.recorder
	s.mu.Lock()
	s.info.Ended = now
	if r.observer != nil {
		for n := s.count - uint64(len(s.ring)); n < s.count; n++ {
			if p := s.at(n); p.answered.IsZero() {
				s.observe(p, n)
			}
		}
	}
	s.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.live, s)
	// Info.Proxy never changes, so it is read without the stream's lock.
	same := func(e *Stream) bool { return e.info.Proxy == s.info.Proxy }
	of := 0
	for _, e := range r.ended {
		if same(e) {
			of++
		}
	}
	if of >= maxEndedProxy {
		oldest := slices.IndexFunc(r.ended, same)
		r.ended = slices.Delete(r.ended, oldest, oldest+1)
	}
	r.ended = appendBounded(r.ended, s, maxEnded)
}

// Send notes a response that goes out and returns its number.
func (s *Stream) Send(p Response) uint64 {
	if p.Round != nil {
		p.Round.pushes.Add(1)
		p.Round.bytes.Add(int64(p.Bytes))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.count
	s.count++
	if len(s.ring) < maxPushes {
		s.ring = append(s.ring, push{Response: p})
	} else {
		s.ring[n%maxPushes] = push{Response: p}
	}
	return n
}

// at is the push of the number while it is remembered.
func (s *Stream) at(n uint64) *push {
	if n >= s.count || s.count-n > maxPushes {
		return nil
	}
	return &s.ring[n%maxPushes]
}

// Written notes that the response was handed to the connection whole.
func (s *Stream) Written(n uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.at(n); p != nil && p.written.IsZero() {
		p.written = now
	}
}

// ACK notes that the proxy accepted the response.
func (s *Stream) ACK(n uint64, now time.Time) { s.answer(n, now, nil) }

// NACK notes that the proxy refused the response, for its message, and the
// resources to blame as far as they are known.
func (s *Stream) NACK(n uint64, now time.Time, message string, resources []string) {
	s.answer(n, now, &refusal{message, resources})
}

func (s *Stream) answer(n uint64, now time.Time, no *refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.at(n)
	if p == nil {
		return
	}
	p.answered, p.refused = now, no
	if p.written.IsZero() { // what writes has not come to say so
		p.written = now
	}
	if s.recorder.observer != nil {
		s.observe(p, n)
	}
	r := p.Round
	if r == nil {
		return
	}
	if no == nil {
		r.acks.Add(1)
	} else {
		r.nacks.Add(1)
	}
	for last := r.lastAnswer.Load(); now.UnixNano() > last && !r.lastAnswer.CompareAndSwap(last, now.UnixNano()); {
		last = r.lastAnswer.Load()
	}
}

// observe tells the observer of a response.
func (s *Stream) observe(p *push, n uint64) {
	if p.Round != nil && p.Round.Trace != nil {
		alone := *p
		alone.Round = nil // which is told of by itself
		s.recorder.observer.Answered(s.info, alone.report(n), p.Round, p.First)
	}
}
