package serving

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// queued are requests that wait for slots, and the order in which they were admitted.
type queued struct {
	slots *Slots
	wg    sync.WaitGroup

	mu      sync.Mutex
	order   []Caller
	refused map[Caller]int
}

// ask sends a request, which waits in the queue or is decided when ask returns.
func (q *queued) ask(ctx context.Context, caller Caller) {
	q.wg.Go(func() {
		leave, err := q.slots.Enter(ctx, caller)
		q.mu.Lock()
		defer q.mu.Unlock()
		if err != nil {
			q.refused[caller]++
			return
		}
		q.order = append(q.order, caller)
		leave()
	})
	synctest.Wait()
}

func (q *queued) check(t *testing.T) {
	t.Helper()
	if s := q.slots; s.running+len(s.waiting)+len(s.sources)+len(s.parts) != 0 {
		t.Errorf("%d running, %d waiting requests, %d sources and %d parts are left", s.running, len(s.waiting), len(s.sources), len(s.parts))
	}
}

func newQueued(limits SlotLimits) *queued {
	return &queued{slots: NewSlots(limits), refused: map[Caller]int{}}
}

// TestSlotsTakeTurns: sources take turns, and so do the parts of a source. No source has all slots.
func TestSlotsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueued(SlotLimits{Running: 3, OfSource: 2, OfPart: 1, Waiting: 100, WaitingOfPart: 100})
		enter := func(source, part string) func() {
			leave, err := q.slots.Enter(t.Context(), Caller{source, part})
			if err != nil {
				t.Fatal(err)
			}
			return leave
		}
		held := []func(){enter("a", "1"), enter("a", "2")}
		q.ask(t.Context(), Caller{"a", "3"}) // waits: its source has its share
		q.ask(t.Context(), Caller{"b", ""})  // runs at once
		if len(q.order) != 1 || q.order[0].Source != "b" {
			t.Fatalf("admitted %v, want b", q.order)
		}
		held = append(held, enter("c", ""))
		for range 20 {
			q.ask(t.Context(), Caller{"a", "1"})
		}
		q.ask(t.Context(), Caller{"a", "4"})
		q.ask(t.Context(), Caller{"d", ""})
		q.ask(t.Context(), Caller{"d", ""})
		for _, leave := range slices.Backward(held) {
			leave()
			leave() // has no effect
			synctest.Wait()
		}
		q.wg.Wait()
		if len(q.order) != 1+1+20+1+2 || len(q.refused) != 0 {
			t.Errorf("%d requests were admitted, and refused %v", len(q.order), q.refused)
		}
		if at := slices.Index(q.order, Caller{"d", ""}); at > 2 {
			t.Errorf("d was admitted after %d others", at)
		}
		if at := slices.Index(q.order, Caller{"a", "4"}); at > 8 {
			t.Errorf("the other part of a was admitted after %d others", at)
		}
		q.check(t)
	})
}

// TestSlotsRefuse: when too many requests wait, the source with the most loses its newest. A request
// whose context ends leaves the queue.
func TestSlotsRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueued(SlotLimits{Running: 1, OfSource: 1, OfPart: 1, Waiting: 10, WaitingOfPart: 8})
		leave, err := q.slots.Enter(t.Context(), Caller{Source: "first"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		for range 9 {
			q.ask(ctx, Caller{"a", "1"})
		}
		if n := q.refused[Caller{"a", "1"}]; n != 1 {
			t.Errorf("%d requests of a part were refused, want 1", n)
		}
		for i := range 5 {
			q.ask(ctx, Caller{"a", fmt.Sprint(2 + i)})
		}
		if n := q.refused[Caller{"a", "1"}]; n != 4 {
			t.Errorf("%d requests of the part with the most were refused, want 4", n)
		}
		for range 3 {
			q.ask(t.Context(), Caller{Source: "b"})
		}
		if q.refused[Caller{Source: "b"}] != 0 || len(q.refused) != 1 {
			t.Errorf("refused %v, want requests of the source with the most", q.refused)
		}
		stop()
		synctest.Wait()
		leave()
		q.wg.Wait()
		if len(q.order) != 3 {
			t.Errorf("admitted %v, want those of b", q.order)
		}
		if _, err := q.slots.Enter(ctx, Caller{Source: "a"}); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("an ended request: %v", err)
		} else if err == nil {
			q.slots.leave(Caller{Source: "a"})
		}
		q.check(t)
	})
}

// TestSlotsOfHandler: requests of one address leave room for another, and have a bound.
func TestSlotsOfHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		h := NewSlots(SlotLimits{Running: 2, OfSource: 1, OfPart: 1, Waiting: 10, WaitingOfPart: 10}).Handler(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					<-stop
				}
				_, _ = w.Write([]byte("answer"))
			}), time.Minute)
		var wg sync.WaitGroup
		ask := func(path, from string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
			r.RemoteAddr = from
			wg.Go(func() { h.ServeHTTP(w, r) })
			synctest.Wait()
			return w
		}
		slow, second := ask("/slow", "10.0.0.1:1"), ask("/slow", "10.0.0.1:2")
		if w := ask("/", "10.0.0.2:1"); w.Body.String() != "answer" {
			t.Errorf("another address: %d %s", w.Code, w.Body)
		}
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if second.Code != http.StatusServiceUnavailable {
			t.Errorf("the second request of the address: %d %s", second.Code, second.Body)
		}
		close(stop)
		wg.Wait()
		if slow.Body.String() != "answer" {
			t.Errorf("the first request: %d %s", slow.Code, slow.Body)
		}
	})
}
