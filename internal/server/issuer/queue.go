package issuer

import (
	"context"
	"runtime"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/mesh"
)

const (
	// maxWaiting bounds the requests that wait for their turn. Callers beyond it
	// would give up before they get one.
	maxWaiting = 1000
	// maxWaitingEach bounds the waiting requests of one identity.
	maxWaitingEach = 100
)

// queue is a fair queue: it works on as many requests at once as there are
// processors, but on only one of each identity. Identities take turns, so that
// one with many requests delays another by at most one request.
type queue struct {
	slots chan struct{} // holds one element for each request in work

	mu      sync.Mutex // guards what follows
	waiting int
	lines   map[mesh.Identity]*line
}

// line is the requests of one identity.
type line struct {
	head chan struct{} // full while a request is in work or waits for a slot
	all  int
}

func newQueue() *queue {
	return &queue{slots: make(chan struct{}, runtime.GOMAXPROCS(0)), lines: make(map[mesh.Identity]*line)}
}

// take waits for a turn of the identity, which ends with a call of done.
func (q *queue) take(ctx context.Context, id mesh.Identity) (done func(), err error) {
	l, err := q.join(id)
	if err != nil {
		return nil, err
	}
	defer q.stopWaiting()
	select {
	case l.head <- struct{}{}:
	case <-ctx.Done():
		q.leave(id, l)
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	select {
	case q.slots <- struct{}{}:
		return func() {
			<-q.slots
			<-l.head
			q.leave(id, l)
		}, nil
	case <-ctx.Done():
		<-l.head
		q.leave(id, l)
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func (q *queue) join(id mesh.Identity) (*line, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[id]
	switch {
	case q.waiting >= maxWaiting:
		return nil, status.Error(codes.ResourceExhausted, "too many certificate requests at once")
	case l != nil && l.all >= maxWaitingEach:
		return nil, status.Errorf(codes.ResourceExhausted, "more than %d certificate requests at once of %s", maxWaitingEach, id)
	case l == nil:
		l = &line{head: make(chan struct{}, 1)}
		q.lines[id] = l
	}
	q.waiting++
	l.all++
	return l, nil
}

func (q *queue) stopWaiting() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting--
}

func (q *queue) leave(id mesh.Identity, l *line) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.all--; l.all == 0 {
		delete(q.lines, id)
	}
}
