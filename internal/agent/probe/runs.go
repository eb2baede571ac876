package probe

import (
	"context"
	"sync"
	"time"
)

// runs lets the callers that want the same thing at the same time share one run of it.
type runs struct {
	mu  sync.Mutex
	all map[string]*run
}

// run ends when it is done, when its time is over, or when no caller waits for it.
type run struct {
	waiting int
	end     context.CancelFunc
	done    chan struct{} // closed when result is set
	result  answer
}

func newRuns() *runs { return &runs{all: map[string]*run{}} }

// join returns what do returns, or a failure when ctx ends. do starts unless it runs for the same
// key already, and its context ends after the timeout.
func (r *runs) join(ctx context.Context, key string, timeout time.Duration, do func(context.Context) answer) answer {
	r.mu.Lock()
	now := r.all[key]
	if now == nil {
		running, end := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		now = &run{end: end, done: make(chan struct{})}
		r.all[key] = now
		go func() {
			defer end()
			now.result = do(running)
			r.leave(key, now, true)
			close(now.done)
		}()
	}
	now.waiting++
	r.mu.Unlock()
	select {
	case <-now.done:
		return now.result
	case <-ctx.Done():
		r.leave(key, now, false)
		return failed(timedOut(ctx, ctx.Err()))
	}
}

// leave notes that a run is over, or that a caller has left it.
func (r *runs) leave(key string, of *run, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !over {
		of.waiting--
	}
	if over || of.waiting == 0 {
		of.end()
		if r.all[key] == of { // the next caller starts another run
			delete(r.all, key)
		}
	}
}
