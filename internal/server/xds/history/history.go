// Package history holds connected proxies, and how changes reached them, as values to
// show: the causes of a push, the duration of each stage, the answer of the proxy.
// Memory is bounded for each stream and in total. Records have a fixed size and share
// what they have in common; nothing is kept for single resources.
package history

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Bounds of the history.
const (
	maxPushes     = 32  // per stream
	maxEnded      = 128 // ended streams
	maxEndedProxy = 4   // ended streams of one proxy
	maxRounds     = 256 // publications
)

// Round is one publication: its causes and the time of each stage. After
// Recorder.Publish only its counters change.
type Round struct {
	Snapshot  uint64 // sequence number of the snapshot
	Causes    []snapshot.Cause
	Events    int // of the publication; Causes are the first of them
	Arrived   time.Time
	Started   time.Time // generation began
	Generated time.Time
	Resources int // generated

	pushes, acks, nacks, bytes atomic.Int64
	lastAnswer                 atomic.Int64 // Unix nanoseconds
}

// Why is the reason of a push.
type Why uint8

// Reasons of pushes.
const (
	Change  Why = iota // a publication
	Request            // the proxy asked
	Repair             // the proxy refused the response before
)

var whyNames = [...]string{Change: "change", Request: "request", Repair: "repair"}

// SentResponse describes one response that is being sent.
type SentResponse struct {
	Type      string // short name
	Version   uint64
	Why       Why
	Round     *Round // the newest in the response, nil unless Why is Change
	First     *Round // the oldest that was not sent before, with Round
	Resources int
	Removed   int
	Bytes     int
	// Queued is when the oldest change in the response could have been sent; zero
	// if nothing waited.
	Queued time.Time
	At     time.Time
}

// push is the record of a response.
type push struct {
	SentResponse
	written, answered time.Time
	refused           *refusal // set by a NACK
}

type refusal struct {
	message   string
	resources []string
}

// Recorder keeps the rounds and streams of a hub. Several goroutines may use it.
type Recorder struct {
	mu     sync.Mutex
	rounds []*Round // oldest first
	live   map[*StreamRecord]struct{}
	ended  []*StreamRecord // oldest first
}

// New returns an empty Recorder.
func New() *Recorder { return &Recorder{live: make(map[*StreamRecord]struct{})} }

// Publish adds a round. From then on only its counters may change.
func (r *Recorder) Publish(round *Round) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rounds = appendBounded(r.rounds, round, maxRounds)
}

// appendBounded appends v and drops the oldest value beyond most values.
func appendBounded[T any](list []T, v T, most int) []T {
	if len(list) == most {
		list = slices.Delete(list, 0, 1)
	}
	return append(list, v)
}

// Info identifies a stream.
type Info struct {
	Stream    string    `json:"stream"` // <name>.<namespace>-<number>
	Proxy     string    `json:"proxy"`  // <name>.<namespace>
	Variant   string    `json:"variant"`
	Connected time.Time `json:"connected"`
	Ended     time.Time `json:"ended,omitzero"`
}

// StreamRecord is the record of one stream.
type StreamRecord struct {
	recorder *Recorder

	mu    sync.Mutex
	info  Info
	ring  []push // the last pushes; push n is at n%maxPushes
	count uint64 // pushes so far
}

// Open starts the record of a stream.
func (r *Recorder) Open(info Info) *StreamRecord {
	s := &StreamRecord{recorder: r, info: info}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live[s] = struct{}{}
	return s
}

// Close notes the end of the stream. Its record is kept until enough other streams have
// ended. Streams of the same proxy are dropped first, so that a proxy that keeps
// reconnecting does not displace others.
func (s *StreamRecord) Close(now time.Time) {
	r := s.recorder
	s.mu.Lock()
	s.info.Ended = now
	s.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.live, s)
	// Info.Proxy never changes, so it is read without the stream's lock.
	same := func(e *StreamRecord) bool { return e.info.Proxy == s.info.Proxy }
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

// Send adds a response that is being sent and returns its number.
func (s *StreamRecord) Send(p SentResponse) uint64 {
	if p.Round != nil {
		p.Round.pushes.Add(1)
		p.Round.bytes.Add(int64(p.Bytes))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.count
	s.count++
	if len(s.ring) < maxPushes {
		s.ring = append(s.ring, push{SentResponse: p})
	} else {
		s.ring[n%maxPushes] = push{SentResponse: p}
	}
	return n
}

// at returns the push with the number, or nil if it was dropped.
func (s *StreamRecord) at(n uint64) *push {
	if n >= s.count || s.count-n > maxPushes {
		return nil
	}
	return &s.ring[n%maxPushes]
}

// Written notes that all of the response was written to the connection.
func (s *StreamRecord) Written(n uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.at(n); p != nil && p.written.IsZero() {
		p.written = now
	}
}

// ACK notes that the proxy accepted the response.
func (s *StreamRecord) ACK(n uint64, now time.Time) { s.answer(n, now, nil) }

// NACK notes that the proxy refused the response: its error message and the refused
// resources, as far as they are known.
func (s *StreamRecord) NACK(n uint64, now time.Time, message string, resources []string) {
	s.answer(n, now, &refusal{message, resources})
}

func (s *StreamRecord) answer(n uint64, now time.Time, no *refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.at(n)
	if p == nil {
		return
	}
	p.answered, p.refused = now, no
	if p.written.IsZero() { // Written comes after the answer
		p.written = now
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
