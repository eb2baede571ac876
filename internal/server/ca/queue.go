package ca

import (
	"context"
	"errors"
	"runtime"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/serving"
)

const (
	// maxWaiting bounds the requests that wait for their turn. Further callers would
	// give up before their turn.
	maxWaiting = 1000
	// maxWaitingEach bounds the waiting requests of one identity.
	maxWaitingEach = 100
)

// fairQueue admits as many requests at once as there are processors, but only one of
// each identity. Namespaces take turns, and the identities of a namespace, so that a namespace
// with many identities or requests neither delays another nor fills the queue.
type fairQueue struct{ slots *serving.Slots }

func newFairQueue() *fairQueue {
	running := runtime.GOMAXPROCS(0)
	return &fairQueue{serving.NewSlots(serving.SlotLimits{
		Running: running, OfSource: running, OfPart: 1, Waiting: maxWaiting, WaitingOfPart: maxWaitingEach,
	})}
}

// take waits for the turn of a request of the identity. The turn ends with done.
func (q *fairQueue) take(ctx context.Context, id mesh.Identity) (done func(), err error) {
	done, err = q.slots.Enter(ctx, serving.Caller{Source: id.TrustDomain + "/" + id.Namespace, Part: id.ServiceAccount})
	switch {
	case errors.Is(err, serving.ErrPartFull):
		return nil, status.Errorf(codes.ResourceExhausted, "more than %d certificate requests at once of %s", maxWaitingEach, id)
	case errors.Is(err, serving.ErrFull):
		return nil, status.Error(codes.ResourceExhausted, "too many certificate requests at once")
	case err != nil:
		return nil, status.FromContextError(err).Err()
	}
	return done, nil
}
