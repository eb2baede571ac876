package xds

import (
	"runtime"
	"sync"
)

// sessionQueue lets sessions send what the hub published, on as many goroutines as there are
// processors. A session is in the queue at most once, and delays no other session, as
// sessions never block.
type sessionQueue struct {
	mu      sync.Mutex
	waiting []*session
	workers int
}

func (q *sessionQueue) add(sessions ...*session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range sessions {
		if !s.queued {
			s.queued = true
			q.waiting = append(q.waiting, s)
		}
	}
	for range min(len(q.waiting), runtime.GOMAXPROCS(0)) - q.workers {
		q.workers++
		go q.work()
	}
}

func (q *sessionQueue) work() {
	for s := q.next(); s != nil; s = q.next() {
		s.catchUp()
		runtime.Gosched()
	}
}

// next returns nil if no session waits; the worker then ends.
func (q *sessionQueue) next() *session {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		q.waiting = nil
		q.workers--
		return nil
	}
	s := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	s.queued = false
	return s
}
