package ca

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/mesh"
)

// queueOf is a queue without free processors. ask sends a request, which then waits or is decided,
// and free frees the processors.
func queueOf(t *testing.T) (ask func(context.Context, mesh.Identity), free func() (order []mesh.Identity, refused map[mesh.Identity]int)) {
	t.Helper()
	var (
		q       = newFairQueue()
		busy    []func()
		mu      sync.Mutex
		wg      sync.WaitGroup
		order   []mesh.Identity
		refused = make(map[mesh.Identity]int)
	)
	for n := range runtime.GOMAXPROCS(0) {
		done, err := q.take(t.Context(), mesh.Identity{Namespace: "busy", ServiceAccount: fmt.Sprint(n)})
		if err != nil {
			t.Fatal(err)
		}
		busy = append(busy, done)
	}
	return func(ctx context.Context, id mesh.Identity) {
			wg.Go(func() {
				done, err := q.take(ctx, id)
				mu.Lock()
				defer mu.Unlock()
				switch status.Code(err) {
				case codes.OK:
					order = append(order, id)
					done()
				case codes.ResourceExhausted:
					refused[id]++
				default:
					t.Errorf("error is %v", err)
				}
			})
			synctest.Wait() // it waits in the queue
		}, func() ([]mesh.Identity, map[mesh.Identity]int) {
			for _, done := range busy {
				done()
				synctest.Wait()
			}
			wg.Wait()
			return order, refused
		}
}

func of(namespace string, n int) mesh.Identity {
	return mesh.Identity{Namespace: namespace, ServiceAccount: fmt.Sprint("sa", n)}
}

// TestQueueIsFair: an identity with many waiting requests delays another by one request at most, and
// so does a namespace with many identities.
func TestQueueIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, free := queueOf(t)
		for range maxWaitingEach {
			ask(t.Context(), of("flooding", 1))
		}
		for n := range 50 {
			ask(t.Context(), of("flooding", 2+n))
		}
		ask(t.Context(), of("calm", 1))
		order, refused := free()
		if len(order) != maxWaitingEach+51 || len(refused) != 0 {
			t.Fatalf("%d requests were admitted, and refused %v", len(order), refused)
		}
		if order[0] != of("calm", 1) && order[1] != of("calm", 1) {
			t.Errorf("the other namespace was not second but later, of %d", len(order))
		}
		// The flooding identity is among the first, and each other one before its second request.
		first := order[:52]
		for n := range 51 {
			found := false
			for _, id := range first {
				found = found || id == of("flooding", 1+n)
			}
			if !found {
				t.Errorf("identity %d of the flooding namespace has no turn among the first %d", 1+n, len(first))
			}
		}
	})
}

// TestQueueIsBounded: requests beyond the bound of an identity are refused at once, and beyond the
// bound of the queue those of the namespace that waits with most.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, free := queueOf(t)
		ended, end := context.WithCancel(t.Context())
		for range maxWaitingEach + 10 {
			ask(t.Context(), of("flooding", 0))
		}
		for n := range maxWaiting {
			ask(t.Context(), of("flooding", 1+n))
		}
		ask(t.Context(), of("calm", 0))
		ask(t.Context(), of("calm", 1))
		end()
		if _, err := newFairQueue().take(ended, of("calm", 2)); err != nil && status.Code(err) != codes.Canceled {
			t.Errorf("an ended request: %v", err)
		}
		order, refused := free()
		total := 0
		for id, n := range refused {
			total += n
			if id.Namespace != "flooding" {
				t.Errorf("%s was refused", id)
			}
		}
		if len(order) != maxWaiting || total != 10+maxWaitingEach+2 {
			t.Errorf("%d requests were admitted, and %d refused", len(order), total)
		}
	})
}
