package backoff_test

import (
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/backoff"
)

func TestWait(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		failures     int
		least, most  time.Duration
		fewest, long time.Duration
	}{
		{1, time.Second, time.Minute, time.Second / 2, time.Second},
		{0, time.Second, time.Minute, time.Second / 2, time.Second},
		{3, time.Second, time.Minute, 2 * time.Second, 4 * time.Second},
		{7, time.Second, time.Minute, 30 * time.Second, time.Minute},
		{1 << 40, time.Second, time.Minute, 30 * time.Second, time.Minute},
		{2, time.Minute, time.Second, time.Second / 2, time.Second},
	} {
		for random, want := range map[float64]time.Duration{0: tt.fewest, 1: tt.long} {
			if got := backoff.Wait(tt.failures, tt.least, tt.most, func() float64 { return random }); got != want {
				t.Errorf("after %d failures from %v to %v: %v, want %v", tt.failures, tt.least, tt.most, got, want)
			}
		}
	}
}
