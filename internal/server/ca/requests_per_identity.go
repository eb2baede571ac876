package ca

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/meshctl/meshctl/internal/mesh"
)

const (
	// DefaultPerIdentity is the default of Policy.PerIdentity, in requests a second.
	DefaultPerIdentity = 10
	// burst is the number of seconds that an identity may save up requests for.
	burst = 10
	// maxLimiters bounds the memory of an identityLimiter.
	maxLimiters = 100_000
)

// identityLimiter limits how often each identity may request a certificate. It
// keeps a token bucket for every identity with recent requests; a full bucket
// equals none.
type identityLimiter struct {
	perSecond rate.Limit // 0 is no limit
	burst     int

	mu       sync.Mutex // guards what follows
	limiters map[mesh.Identity]*rate.Limiter
}

// newIdentityLimiter allows each identity perSecond requests a second, and ten
// times as many at once, at least one.
func newIdentityLimiter(perSecond float64) *identityLimiter {
	return &identityLimiter{
		perSecond: rate.Limit(perSecond), burst: int(max(1, burst*perSecond)), limiters: make(map[mesh.Identity]*rate.Limiter),
	}
}

// allow reports whether the identity may make a request now, and counts it.
func (l *identityLimiter) allow(id mesh.Identity, now time.Time) bool {
	if l.perSecond <= 0 {
		return true
	}
	l.mu.Lock()
	limiter := l.limiters[id]
	if limiter == nil {
		if len(l.limiters) >= maxLimiters {
			l.makeRoom(now)
		}
		limiter = rate.NewLimiter(l.perSecond, l.burst)
		l.limiters[id] = limiter
	}
	l.mu.Unlock()
	return limiter.AllowN(now, 1)
}

// exhausted reports whether allow would refuse a request now. It counts nothing.
func (l *identityLimiter) exhausted(id mesh.Identity, now time.Time) bool {
	l.mu.Lock()
	limiter := l.limiters[id]
	l.mu.Unlock()
	return limiter != nil && limiter.TokensAt(now) < 1
}

// makeRoom drops full buckets and, if that is not enough, arbitrary ones.
func (l *identityLimiter) makeRoom(now time.Time) {
	for id, limiter := range l.limiters {
		if limiter.TokensAt(now) >= float64(l.burst) {
			delete(l.limiters, id)
		}
	}
	for id := range l.limiters {
		if len(l.limiters) < maxLimiters*3/4 {
			return
		}
		delete(l.limiters, id)
	}
}
