package issuer

import (
	"sync"
	"time"

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
	rate float64 // a second; 0 is no limit

	mu      sync.Mutex // guards what follows
	buckets map[mesh.Identity]bucket
}

// bucket is how many requests were left at a time.
type bucket struct {
	left float64
	at   time.Time
}

func newLimiter(rate float64) *limiter {
	return &limiter{rate: rate, buckets: map[mesh.Identity]bucket{}}
}

// allow takes a request from the bucket of an identity, if there is one left.
func (l *limiter) allow(id mesh.Identity, now time.Time) bool {
	if l.rate <= 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b, known := l.buckets[id]
	if !known {
		if len(l.buckets) >= maxBuckets {
			l.makeRoom(now)
		}
		b = bucket{l.full(), now}
	}
	b = bucket{l.leftOf(b, now), now}
	allowed := b.left >= 1
	if allowed {
		b.left--
	}
	l.buckets[id] = b
	return allowed
}

// full is what is in a bucket that nobody took from, at least one request.
func (l *limiter) full() float64 { return max(1, burst*l.rate) }

func (l *limiter) leftOf(b bucket, now time.Time) float64 {
	return min(l.full(), b.left+l.rate*max(0, now.Sub(b.at).Seconds()))
}

// makeRoom drops full buckets and, when that is not enough, any.
func (l *limiter) makeRoom(now time.Time) {
	for id, b := range l.buckets {
		if l.leftOf(b, now) >= l.full() {
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
