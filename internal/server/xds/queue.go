package xds

import (
	"runtime"
	"sync"
)

// queue has sessions look at what the hub published, on as many goroutines as
// there are processors. A session waits in it once, however much is published
// meanwhile, and none keeps the others waiting: sessions never block.
type queue struct {
	mu      sync.Mutex
	waiting []*session
	workers int
}

func (q *queue) add(sessions ...*session) {
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

func (q *queue) work() {
	for s := q.next(); s != nil; s = q.next() {
		s.catchUp()
		runtime.Gosched()
	}
}

// next is nil when nothing waits: the worker ends.
func (q *queue) next() *session {
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
