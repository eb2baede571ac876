package ca

import (
	"context"
	"runtime"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/mesh"
)

const (
	// maxWaiting bounds the requests that wait for their turn. Further callers would
	// give up before their turn.
	maxWaiting = 1000
	// maxWaitingEach bounds the waiting requests of one identity.
	maxWaitingEach = 100
)

// fairQueue admits as many requests at once as there are processors, but only one of
// each identity. Identities take turns, so an identity with many requests delays
// another by one request at most.
type fairQueue struct {
	slots chan struct{} // holds one element for each admitted request

	mu         sync.Mutex // guards what follows
	waiting    int
	identities map[mesh.Identity]*identityQueue
}

// identityQueue has the requests of one identity.
type identityQueue struct {
	head chan struct{} // full while a request is admitted or waits for a slot
	all  int
}

func newFairQueue() *fairQueue {
	return &fairQueue{slots: make(chan struct{}, runtime.GOMAXPROCS(0)), identities: make(map[mesh.Identity]*identityQueue)}
}

// take waits for the turn of a request of the identity. The turn ends with done.
func (q *fairQueue) take(ctx context.Context, id mesh.Identity) (done func(), err error) {
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

func (q *fairQueue) join(id mesh.Identity) (*identityQueue, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.identities[id]
	switch {
	case q.waiting >= maxWaiting:
		return nil, status.Error(codes.ResourceExhausted, "too many certificate requests at once")
	case l != nil && l.all >= maxWaitingEach:
		return nil, status.Errorf(codes.ResourceExhausted, "more than %d certificate requests at once of %s", maxWaitingEach, id)
	case l == nil:
		l = &identityQueue{head: make(chan struct{}, 1)}
		q.identities[id] = l
	}
	q.waiting++
	l.all++
	return l, nil
}

func (q *fairQueue) stopWaiting() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting--
}

func (q *fairQueue) leave(id mesh.Identity, l *identityQueue) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.all--; l.all == 0 {
		delete(q.identities, id)
	}
}
