package issuer

import (
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/bucket"
	"github.com/meshctl/meshctl/internal/mesh"
)

const (
	// burst is how many seconds' requests an identity may make at once.
	burst = 10
	// maxBuckets bounds the memory of a limiter.
	maxBuckets = 100_000
)

// limiter has a token bucket for each identity. A full bucket is the same as
// none, so that only those are kept whose identity asked lately.
type limiter struct {
	limit bucket.Limit // none when it is 0 a second

	mu      sync.Mutex // guards what follows
	buckets map[mesh.Identity]bucket.Bucket
}

// newLimiter allows so many requests a second, and at once ten times as many,
// at least one.
func newLimiter(rate float64) *limiter {
	return &limiter{limit: bucket.Limit{PerSecond: rate, Burst: max(1, burst*rate)}, buckets: map[mesh.Identity]bucket.Bucket{}}
}

// allow takes a request from the bucket of an identity, if there is one left.
func (l *limiter) allow(id mesh.Identity, now time.Time) bool {
	if l.limit.PerSecond <= 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b, known := l.buckets[id]
	if !known {
		if len(l.buckets) >= maxBuckets {
			l.makeRoom(now)
		}
		b = l.limit.Full(now)
	}
	b, allowed := l.limit.Take(b, now)
	l.buckets[id] = b
	return allowed
}

// exhausted reports whether allow would refuse now. It takes nothing.
func (l *limiter) exhausted(id mesh.Identity, now time.Time) bool {
	if l.limit.PerSecond <= 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b, known := l.buckets[id]
	if !known {
		return false
	}
	_, allowed := l.limit.Take(b, now)
	return !allowed
}

// makeRoom drops full buckets and, when that is not enough, any.
func (l *limiter) makeRoom(now time.Time) {
	for id, b := range l.buckets {
		if l.limit.IsFull(b, now) {
			delete(l.buckets, id)
		}
	}
	for id := range l.buckets {
		if len(l.buckets) < maxBuckets*3/4 {
			return
		}
		delete(l.buckets, id)
	}
}
