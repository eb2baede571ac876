package bucket

import (
	"testing"
	"time"
)

func TestLimit(t *testing.T) {
	t.Parallel()
	limit, now := Limit{PerSecond: 2, Burst: 3}, time.Unix(0, 0)
	b := limit.Full(now)
	take := func() (n int) {
		for {
			var ok bool
			if b, ok = limit.Take(b, now); !ok {
				return n
			}
			n++
		}
	}
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 3}, {0, 0}, {400 * time.Millisecond, 0}, {100 * time.Millisecond, 1}, {time.Second, 2}, {time.Hour, 3}, {-time.Hour, 0}, {time.Second, 2}} {
		now = now.Add(step.after)
		if got := take(); got != step.want {
			t.Errorf("after %v: %d, want %d", step.after, got, step.want)
		}
	}
	if limit.IsFull(b, now) || limit.IsFull(b, now.Add(time.Second)) || !limit.IsFull(b, now.Add(1500*time.Millisecond)) {
		t.Error("it is full too early or too late")
	}
}
