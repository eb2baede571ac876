// Package bucket limits how often something may happen: so many times a
// second, and more at once after a pause.
package bucket

import "time"

// Limit is how often: PerSecond times a second, Burst times at once.
type Limit struct{ PerSecond, Burst float64 }

// Bucket is how many times were left at a time.
type Bucket struct {
	left float64
	at   time.Time
}

// Full is a bucket that nothing was taken from.
func (l Limit) Full(now time.Time) Bucket { return Bucket{l.Burst, now} }

// Take takes one time from a bucket, if there is one left. A clock that was
// set back fills nothing.
func (l Limit) Take(b Bucket, now time.Time) (Bucket, bool) {
	b = Bucket{l.left(b, now), now}
	if b.left < 1 {
		return b, false
	}
	b.left--
	return b, true
}

// IsFull reports whether a bucket is as good as a new one.
func (l Limit) IsFull(b Bucket, now time.Time) bool { return l.left(b, now) >= l.Burst }

func (l Limit) left(b Bucket, now time.Time) float64 {
	return min(l.Burst, b.left+l.PerSecond*max(0, now.Sub(b.at).Seconds()))
}
