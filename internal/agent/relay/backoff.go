package relay

import (
	"context"
	"time"
)

const (
	minRetry = 500 * time.Millisecond
	maxRetry = 30 * time.Second
)

// retry calls do until ctx ends, with a wait between calls that doubles up to maxRetry, and
// starts over after a call that worked. jitter returns a number from 0 to 1: proxies that lost
// the same control plane must not come back together. failed is called with the error of each
// call and the time until the next.
func retry(ctx context.Context, jitter func() float64, do func(context.Context) (worked bool, err error), failed func(err error, wait time.Duration)) {
	longest := minRetry
	for {
		worked, err := do(ctx)
		if worked {
			longest = minRetry
		}
		if ctx.Err() != nil {
			return
		}
		wait := longest/2 + time.Duration(jitter()*float64(longest/2))
		failed(err, wait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		longest = min(2*longest, maxRetry)
	}
}
