// Package flight remembers how changes reached proxies: what caused a push,
// how long each stage took, how the proxy answered. Memory is bounded for
// each stream and in total; records have a fixed size, and what many pushes
// have in common they share. Nothing is kept for each resource.
package flight

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
	Started   time.Time // the batch was closed and generation began
	Generated time.Time
	Resources int // that were generated

	pushes, acks, nacks, bytes atomic.Int64
	lastAnswer                 atomic.Int64 // Unix nanoseconds
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

// Sent is one response as it goes out.
type Sent struct {
	Type      string // short name
	Version   uint64
	Why       Why
	Round     *Round // the newest that it shows, nil unless Why is Change
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
	Sent
	written, answered time.Time
	refused           *refused // set by a NACK
}

type refused struct {
	message   string
	resources []string
}

// Recorder remembers the rounds and streams of a hub. It is safe for use by
// several goroutines.
type Recorder struct {
	mu     sync.Mutex
	rounds []*Round // oldest first
	live   map[*Stream]struct{}
	ended  []*Stream // oldest first
}

// New returns an empty Recorder.
func New() *Recorder { return &Recorder{live: make(map[*Stream]struct{})} }

// Publish remembers a round. Only its counters may change from then on.
func (r *Recorder) Publish(round *Round) {
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
	s.mu.Lock()
	s.info.Ended = now
	s.mu.Unlock()
	r := s.recorder
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
func (s *Stream) Send(p Sent) uint64 {
	if p.Round != nil {
		p.Round.pushes.Add(1)
		p.Round.bytes.Add(int64(p.Bytes))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.count
	s.count++
	if len(s.ring) < maxPushes {
		s.ring = append(s.ring, push{Sent: p})
	} else {
		s.ring[n%maxPushes] = push{Sent: p}
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
	if p := s.at(n); p != nil {
		p.written = now
	}
}

// ACK notes that the proxy accepted the response.
func (s *Stream) ACK(n uint64, now time.Time) { s.answer(n, now, nil) }

// NACK notes that the proxy refused the response, for its message, and the
// resources to blame as far as they are known.
func (s *Stream) NACK(n uint64, now time.Time, message string, resources []string) {
	s.answer(n, now, &refused{message, resources})
}

func (s *Stream) answer(n uint64, now time.Time, no *refused) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.at(n)
	if p == nil {
		return
	}
	p.answered, p.refused = now, no
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
