package ca

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/mesh"
)

// TestQueueIsFair: an identity with many waiting requests delays another by one
// request at most.
func TestQueueIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFairQueue()
		free := make([]func(), 0, cap(q.slots))
		for n := range cap(q.slots) { // all processors are busy
			done, err := q.take(t.Context(), identity(100+n))
			if err != nil {
				t.Fatal(err)
			}
			free = append(free, done)
		}
		var (
			mu    sync.Mutex
			order []mesh.Identity
			wg    sync.WaitGroup
		)
		ask := func(id mesh.Identity) {
			wg.Go(func() {
				done, err := q.take(t.Context(), id)
				if err != nil {
					t.Error(err)
					return
				}
				defer done()
				mu.Lock()
				defer mu.Unlock()
				order = append(order, id)
			})
			synctest.Wait() // it waits in the queue
		}
		flooding, calm := identity(1), identity(2)
		for range maxWaitingEach {
			ask(flooding)
		}
		ask(calm)
		free[0]() // one processor works them off
		wg.Wait()
		if order[0] != flooding || order[1] != calm {
			t.Errorf("the other identity was not second but later, of %d", len(order))
		}
		for _, done := range free[1:] {
			done()
		}
		if len(q.identities) != 0 || q.waiting != 0 {
			t.Errorf("%d lines and %d waiting requests are left", len(q.identities), q.waiting)
		}
	})
}

// TestQueueIsBounded: requests beyond the bound of an identity or of the queue are
// refused at once.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFairQueue()
		for range cap(q.slots) {
			q.slots <- struct{}{}
		}
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		refused := make(map[mesh.Identity]int)
		ask := func(id mesh.Identity) {
			result := make(chan error, 1)
			wg.Go(func() {
				_, err := q.take(ctx, id)
				result <- err
			})
			synctest.Wait()
			select {
			case err := <-result:
				if status.Code(err) != codes.ResourceExhausted {
					t.Errorf("error is %v", err)
				}
				refused[id]++
			default:
			}
		}
		for range maxWaitingEach + 10 {
			ask(identity(0))
		}
		for n := range maxWaiting {
			ask(identity(1 + n))
		}
		if refused[identity(0)] != 10 || len(refused) != 1+maxWaitingEach {
			t.Errorf("%d requests of the first identity and %d of others are refused", refused[identity(0)], len(refused)-1)
		}
		stop()
		wg.Wait()
		if len(q.identities) != 0 || q.waiting != 0 {
			t.Errorf("%d lines and %d waiting requests are left", len(q.identities), q.waiting)
		}
	})
}
