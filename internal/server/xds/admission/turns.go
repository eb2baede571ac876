package admission

import (
	"container/list"
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// memoryFull is the used share of the memory limit above which no stream starts.
const memoryFull = 0.8

// memoryPoll is the interval of memory checks while streams wait for memory.
const memoryPoll = 100 * time.Millisecond

// Turns is a fair queue that lets a bounded number of streams start at a time. The
// streams of one caller start in order, and callers take turns, so that a caller with
// many streams does not delay others. No stream is refused for coming too often.
type Turns struct {
	memory func() float64 // used share of the limit; nil: no limit
	wait   time.Duration  // for memory

	mu      sync.Mutex
	slots   int // free slots
	callers map[string]*list.List
	next    list.List // callers with tickets, in order of their turns
	full    bool      // memory was short at the last check
	polling bool
}

// ticket is a waiting stream.
type ticket struct {
	granted chan struct{}
	caller  string
	element *list.Element // in the caller's list
}

// NewTurns returns a queue that lets starting streams start at a time. A stream waits
// at most wait for memory, which is short when more than four fifths of it are in use.
// Without a memory function it is never short.
func NewTurns(starting int, wait time.Duration, memory func() float64) *Turns {
	return &Turns{memory: memory, wait: wait, slots: starting, callers: make(map[string]*list.List)}
}

// ErrShutdown returns the error for peers of a server that stops.
func ErrShutdown() error { return status.Error(codes.Unavailable, "server is shutting down") }

// Enter waits for the caller's turn, which ends with leave; leave may be called twice.
// The error has code Unavailable if memory was short for too long or the hub is done,
// and is ctx's error if that ended.
func (a *Turns) Enter(ctx context.Context, done <-chan struct{}, caller string) (leave func(), err error) {
	t := a.queue(caller)
	patience := time.NewTimer(a.wait)
	defer patience.Stop()
	for {
		select {
		case <-t.granted:
			return sync.OnceFunc(a.leave), nil
		case <-patience.C:
			if !a.isFull() {
				patience.Reset(a.wait) // it waits for other streams, which proceed
				continue
			}
			err = status.Error(codes.Unavailable, "the server is short of memory, try again later")
		case <-done:
			err = ErrShutdown()
		case <-ctx.Done():
			err = ctx.Err()
		}
		if a.giveUp(t) {
			return nil, err
		}
		a.leave() // granted at the same moment
		return nil, err
	}
}

func (a *Turns) queue(caller string) *ticket {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := &ticket{granted: make(chan struct{}), caller: caller}
	tickets := a.callers[caller]
	if tickets == nil {
		tickets = list.New()
		a.callers[caller] = tickets
		a.next.PushBack(caller)
	}
	t.element = tickets.PushBack(t)
	a.grant()
	return t
}

// grant gives free slots to the next streams. The lock must be held.
func (a *Turns) grant() {
	for a.slots > 0 && a.next.Len() > 0 {
		if a.full = a.memory != nil && a.memory() > memoryFull; a.full {
			a.poll()
			return
		}
		e := a.next.Front()
		caller, _ := e.Value.(string)
		tickets := a.callers[caller]
		if tickets.Len() == 0 { // all gave up
			a.next.Remove(e)
			delete(a.callers, caller)
			continue
		}
		t, _ := tickets.Remove(tickets.Front()).(*ticket)
		t.element = nil
		a.next.MoveToBack(e)
		a.slots--
		close(t.granted)
	}
}

// poll checks memory again later. The lock must be held.
func (a *Turns) poll() {
	if a.polling {
		return
	}
	a.polling = true
	time.AfterFunc(memoryPoll, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.polling = false
		a.grant()
	})
}

// giveUp withdraws a ticket. It returns false if the ticket was granted.
func (a *Turns) giveUp(t *ticket) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.element == nil {
		return false
	}
	a.callers[t.caller].Remove(t.element)
	t.element = nil
	return true
}

func (a *Turns) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.slots++
	a.grant()
}

func (a *Turns) isFull() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.full
}
