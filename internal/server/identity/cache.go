package identity

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

const (
	// cacheTime is how long a proof counts without a new verification, and so how
	// long tokens of a key that a token issuer has dropped may still count.
	cacheTime = 10 * time.Second
	// cacheSize bounds each of the two halves of the cache.
	cacheSize = 4096
)

// proof identifies everything that authenticated a caller.
type proof struct {
	sum   [sha256.Size]byte // of the token and its cluster header, or of the certificates
	roots *x509.CertPool    // that verified the certificates
}

func proofOf[T []byte | string](roots *x509.CertPool, parts ...T) proof {
	h := sha256.New()
	var buf [256]byte // in pieces: the copy of a whole token would grow the stack
	for _, p := range parts {
		h.Write(binary.BigEndian.AppendUint32(buf[:0], uint32(len(p))))
		for len(p) > 0 {
			n := copy(buf[:], p)
			h.Write(buf[:n])
			p = p[n:]
		}
	}
	p := proof{roots: roots}
	h.Sum(p.sum[:0])
	return p
}

// verifiedCaller is the caller that a proof authenticates during a period.
type verifiedCaller struct {
	caller      mesh.Caller
	shown       *mesh.ClientCertificate // nil if the proof is a token
	from, until time.Time
}

// proofCache remembers valid proofs, so that frequent callers cost little. New
// proofs go to the young half; when it is full or old, it becomes the old half.
type proofCache struct {
	mu    sync.Mutex // guards what follows
	young map[proof]verifiedCaller
	old   map[proof]verifiedCaller
	born  time.Time // of the young half
}

func (c *proofCache) get(p proof, now time.Time) (verifiedCaller, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.young[p]
	if !ok {
		v, ok = c.old[p]
	}
	// A clock that was set back invalidates everything.
	if !ok || now.Before(v.from) || !now.Before(v.until) {
		return verifiedCaller{}, false
	}
	return v, true
}

// put remembers a proof that is valid until end.
func (c *proofCache) put(p proof, v verifiedCaller, now, end time.Time) {
	v.from, v.until = now, now.Add(cacheTime)
	if end.Before(v.until) {
		v.until = end
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.young == nil || len(c.young) >= cacheSize || now.Sub(c.born).Abs() >= cacheTime {
		c.old, c.young, c.born = c.young, map[proof]verifiedCaller{}, now
	}
	c.young[p] = v
}
