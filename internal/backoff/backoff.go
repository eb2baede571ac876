// Package backoff computes the waits before attempts are repeated.
package backoff

import "time"

// Wait returns the wait after a number of failures in a row, from 1. It doubles from least to most,
// and up to half of it is random, so that clients that failed together do not retry together.
// random returns a number from 0 to 1.
func Wait(failures int, least, most time.Duration, random func() float64) time.Duration {
	wait := most
	if shift := max(failures-1, 0); shift < 32 && least <= most>>shift {
		wait = least << shift
	}
	return wait/2 + time.Duration(random()*float64(wait/2))
}
