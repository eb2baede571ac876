package serving

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Caller is who a request counts for: a source, such as an address or a namespace, and a part of
// it, which may be empty.
type Caller struct{ Source, Part string }

// SlotLimits bound the requests of Slots. All fields are required.
type SlotLimits struct {
	// Running, OfSource and OfPart are the requests that run at a time: of all callers, of one
	// source and of one part of a source.
	Running, OfSource, OfPart int
	// Waiting and WaitingOfPart are the requests that wait for their turn.
	Waiting, WaitingOfPart int
}

// The errors of Enter, besides that of the context.
var (
	ErrFull     = errors.New("too many requests at once")
	ErrPartFull = errors.New("too many requests of the same caller at once")
)

// Slots lets a bounded number of requests run at a time. Sources take turns, and so do the parts of
// a source. A source that waits with many requests therefore delays others by no more than the
// requests that run, and loses the last of its own when too many wait.
type Slots struct {
	limits SlotLimits

	mu      sync.Mutex // guards what follows
	running int
	waiting []*ticket // in the order of their arrival
	sources map[string]*share
	parts   map[Caller]*share
	turn    uint64
}

// share is what a source, or a part of one, has of the slots.
type share struct {
	running, waiting int
	last             uint64 // its last turn
}

// ticket is a waiting request.
type ticket struct {
	caller Caller
	done   chan struct{} // closed when it is admitted, or refused with err
	err    error
}

// NewSlots returns free slots.
func NewSlots(limits SlotLimits) *Slots {
	return &Slots{limits: limits, sources: make(map[string]*share), parts: make(map[Caller]*share)}
}

// Enter waits for the turn of a request, which ends with leave.
func (s *Slots) Enter(ctx context.Context, caller Caller) (leave func(), err error) {
	t, err := s.queue(caller)
	if err != nil {
		return nil, err
	}
	select {
	case <-t.done:
	case <-ctx.Done():
		if s.withdraw(t) {
			return nil, ctx.Err()
		}
		<-t.done // decided at the same moment
	}
	if t.err != nil {
		return nil, t.err
	}
	return sync.OnceFunc(func() { s.leave(caller) }), nil
}

func (s *Slots) queue(caller Caller) (*ticket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.parts[caller]; p != nil && p.waiting >= s.limits.WaitingOfPart {
		return nil, ErrPartFull
	}
	t := &ticket{caller: caller, done: make(chan struct{})}
	s.count(caller, 0, 1)
	s.waiting = append(s.waiting, t)
	s.admit()
	if len(s.waiting) > s.limits.Waiting {
		s.refuse()
	}
	if t.err != nil {
		return nil, t.err
	}
	return t, nil
}

// count adds to the shares of a caller, and forgets those that become empty. The lock must be held.
func (s *Slots) count(caller Caller, running, waiting int) {
	countIn(s.sources, caller.Source, running, waiting)
	countIn(s.parts, caller, running, waiting)
}

func countIn[K comparable](shares map[K]*share, of K, running, waiting int) {
	c := shares[of]
	if c == nil {
		c = &share{}
		shares[of] = c
	}
	c.running += running
	c.waiting += waiting
	if c.running+c.waiting == 0 {
		delete(shares, of)
	}
}

// admit gives free slots to the waiting requests whose turn it is. The lock must be held.
func (s *Slots) admit() {
	for s.running < s.limits.Running {
		var next *ticket
		for _, t := range s.waiting {
			if s.sources[t.caller.Source].running < s.limits.OfSource && s.parts[t.caller].running < s.limits.OfPart &&
				(next == nil || s.before(t.caller, next.caller)) {
				next = t
			}
		}
		if next == nil {
			return
		}
		s.drop(next)
		s.count(next.caller, 1, -1)
		s.running++
		s.turn++
		s.sources[next.caller.Source].last, s.parts[next.caller].last = s.turn, s.turn
		close(next.done)
	}
}

// before reports whether it is the turn of a before that of b. The lock must be held.
func (s *Slots) before(a, b Caller) bool {
	compare := func(a, b *share) int { return cmp.Or(cmp.Compare(a.running, b.running), cmp.Compare(a.last, b.last)) }
	return cmp.Or(compare(s.sources[a.Source], s.sources[b.Source]), compare(s.parts[a], s.parts[b])) < 0
}

// refuse refuses the newest request of the part that waits with the most, of the source that waits
// with the most. The lock must be held.
func (s *Slots) refuse() {
	var last *ticket
	most := [2]int{-1, -1}
	for _, t := range s.waiting {
		if n := [2]int{s.sources[t.caller.Source].waiting, s.parts[t.caller].waiting}; slices.Compare(n[:], most[:]) >= 0 {
			last, most = t, n
		}
	}
	s.drop(last)
	s.count(last.caller, 0, -1)
	last.err = ErrFull
	close(last.done)
}

// drop removes a ticket from the queue. The lock must be held.
func (s *Slots) drop(t *ticket) {
	at := slices.Index(s.waiting, t)
	s.waiting = slices.Delete(s.waiting, at, at+1)
}

// withdraw removes a waiting request. It returns false if it was decided.
func (s *Slots) withdraw(t *ticket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.waiting, t) {
		return false
	}
	s.drop(t)
	s.count(t.caller, 0, -1)
	return true
}

func (s *Slots) leave(caller Caller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	s.count(caller, -1, 0)
	s.admit()
}

// Handler lets the requests of next run in the slots, by the address of their sender. Each may take
// most, its turn included.
func (s *Slots) Handler(next http.Handler, most time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := WithTimeout(w, r, most)
		defer cancel()
		leave, err := s.Enter(ctx, Caller{Source: SourceOf(r.RemoteAddr).String()})
		if err != nil {
			http.Error(w, ErrFull.Error(), http.StatusServiceUnavailable)
			return
		}
		defer leave()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
