package admission

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestCallersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewTurns(1, time.Second, nil)
		leave, err := a.Enter(t.Context(), nil, "first")
		if err != nil {
			t.Fatal(err)
		}
		order := make(chan string, 10)
		wait := func(name, caller string) {
			go func() {
				leave, err := a.Enter(t.Context(), nil, caller)
				if err != nil {
					t.Error(err)
					return
				}
				order <- name
				leave()
				leave() // has no effect the second time
			}()
			synctest.Wait()
		}
		for i := range 4 {
			wait(fmt.Sprint("many", i), "many")
		}
		wait("few0", "few")
		wait("few1", "few")
		time.Sleep(time.Hour) // a stream that waits for others is not refused
		leave()
		synctest.Wait()
		close(order)
		var got []string
		for name := range order {
			got = append(got, name)
		}
		if want := "[many0 few0 many1 few1 many2 many3]"; fmt.Sprint(got) != want {
			t.Errorf("got %v, want %s", got, want)
		}
	})
}

func TestWhoGivesUpTakesNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewTurns(1, time.Second, nil)
		leave, err := a.Enter(t.Context(), nil, "first")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := a.Enter(ctx, nil, "impatient")
			ended <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		leave()
		for range 3 {
			leave, err := a.Enter(t.Context(), nil, "next")
			if err != nil {
				t.Fatal(err)
			}
			leave()
		}
		if len(a.callers) > 1 || a.slots != 1 {
			t.Errorf("%d callers and %d free slots are left", len(a.callers), a.slots)
		}
	})
}

func TestNewStreamsWaitForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var low atomic.Bool
		a := NewTurns(5, 30*time.Second, func() float64 {
			if low.Load() {
				return 0.79
			}
			return 0.81
		})
		begin := time.Now()
		if _, err := a.Enter(t.Context(), nil, "p"); status.Code(err) != codes.Unavailable {
			t.Errorf("got %v, want Unavailable", err)
		}
		if d := time.Since(begin); d != 30*time.Second {
			t.Errorf("refused after %v", d)
		}
		time.AfterFunc(20*time.Second, func() { low.Store(true) })
		if _, err := a.Enter(t.Context(), nil, "p"); err != nil {
			t.Error(err)
		}
	})
}
