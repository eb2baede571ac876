package xds

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

	"github.com/meshctl/meshctl/internal/xdswire"
)

func TestCallersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(Limits{Starting: 1, MemoryWait: time.Second}, nil)
		leave, err := a.enter(t.Context(), nil, "first")
		if err != nil {
			t.Fatal(err)
		}
		order := make(chan string, 10)
		wait := func(name, caller string) {
			go func() {
				leave, err := a.enter(t.Context(), nil, caller)
				if err != nil {
					t.Error(err)
					return
				}
				order <- name
				leave()
				leave() // twice is once
			}()
			synctest.Wait()
		}
		for i := range 4 {
			wait(fmt.Sprint("many", i), "many")
		}
		wait("few0", "few")
		wait("few1", "few")
		time.Sleep(time.Hour) // who waits for others is not refused
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
		a := newAdmission(Limits{Starting: 1, MemoryWait: time.Second}, nil)
		leave, err := a.enter(t.Context(), nil, "first")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := a.enter(ctx, nil, "impatient")
			ended <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		leave()
		for range 3 {
			leave, err := a.enter(t.Context(), nil, "next")
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
		a := newAdmission(Limits{Starting: 5, MemoryWait: 30 * time.Second}, func() float64 {
			if low.Load() {
				return 0.79
			}
			return 0.81
		})
		begin := time.Now()
		if _, err := a.enter(t.Context(), nil, "p"); status.Code(err) != codes.Unavailable {
			t.Errorf("got %v, want Unavailable", err)
		}
		if d := time.Since(begin); d != 30*time.Second {
			t.Errorf("refused after %v", d)
		}
		time.AfterFunc(20*time.Second, func() { low.Store(true) })
		if _, err := a.enter(t.Context(), nil, "p"); err != nil {
			t.Error(err)
		}
	})
}

// TestMemoryHoldsUpOnlyNewStreams is the same over a network.
func TestMemoryHoldsUpOnlyNewStreams(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		var full atomic.Bool
		b := start(t, small(), func(c *Config, _ *Access) {
			c.Limits.MemoryWait = time.Minute
			c.Memory = func() float64 {
				if full.Load() {
					return 0.9
				}
				return 0.1
			}
		})
		old := b.connect(v, "old")
		old.subscribe("CDS")
		old.wantAck("CDS", "a=a:1 b=b:1")
		full.Store(true)
		c := b.connect(v, "new")
		c.subscribe("CDS")
		b.eventually("waiting", func() bool { return b.metric("meshctl_xds_waiting_streams", "") == 1 })
		b.world.set("CDS", "shared", "a", "a:2")
		b.push()
		old.recv()
		if n := len(b.hub.Proxies()); n != 1 {
			t.Errorf("%d proxies, want the old one", n)
		}
		full.Store(false)
		c.wantAck("CDS", "a=a:2 b=b:1")
	})
}

// TestManyStartInTurns has more streams than may start at a time, some of
// which never ask for anything that is sent.
func TestManyStartInTurns(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small(), func(c *Config, _ *Access) { c.Limits.Starting = 1 })
		idle := b.connect(v, "idle")
		idle.request("unknown", "", []string{"x"}, nil, "")
		var clients []*client
		for i := range 30 {
			c := b.connect(v, fmt.Sprintf("p%d", i))
			c.subscribe("CDS")
			clients = append(clients, c)
		}
		for _, c := range clients {
			c.wantAck("CDS", "a=a:1 b=b:1")
		}
	})
}

// TestHubEndsStreamsThatWait ends a hub while a stream waits for its turn.
func TestHubEndsStreamsThatWait(t *testing.T) {
	b := start(t, small(), func(c *Config, _ *Access) { c.Memory = func() float64 { return 1 } })
	c := b.connect(xdswire.SotW, "p")
	c.subscribe("CDS")
	b.eventually("waiting", func() bool { return b.metric("meshctl_xds_waiting_streams", "") == 1 })
	b.stop()
	if s := c.status(); s.Code() != codes.Unavailable || s.Message() != "server is shutting down" {
		t.Errorf("got %v", s)
	}
}
