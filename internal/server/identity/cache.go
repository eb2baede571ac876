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
	// cacheTime is how long a proof counts without being verified again, and so
	// how long a key that was taken out of a token issuer may still count.
	cacheTime = 10 * time.Second
	// cacheSize bounds each of the two halves of the cache.
	cacheSize = 4096
)

// proof names what a caller was authenticated by, in full.
type proof struct {
	sum   [sha256.Size]byte // of the token and its cluster header, or of the certificates
	roots *x509.CertPool    // that the certificates lead to
}

func proofOf[T []byte | string](roots *x509.CertPool, parts ...T) proof {
	h := sha256.New()
	var room [256]byte // in pieces: a copy of a token on the stack would make it grow
	for _, p := range parts {
		h.Write(binary.BigEndian.AppendUint32(room[:0], uint32(len(p))))
		for len(p) > 0 {
			n := copy(room[:], p)
			h.Write(room[:n])
			p = p[n:]
		}
	}
	p := proof{roots: roots}
	h.Sum(p.sum[:0])
	return p
}

// verified is who a proof proves, and until when.
type verified struct {
	caller      mesh.Caller
	shown       *mesh.ClientCertificate // nil when the proof is a token
	from, until time.Time
}

// cache remembers good proofs, so that who asks much costs little. The younger
// half takes new ones; when it is full or old, it becomes the older one.
type cache struct {
	mu    sync.Mutex // guards what follows
	young map[proof]verified
	old   map[proof]verified
	born  time.Time // of the young half
}

func (c *cache) get(p proof, now time.Time) (mesh.Caller, bool) {
	v, ok := c.find(p, now)
	return v.caller, ok
}

func (c *cache) find(p proof, now time.Time) (verified, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.young[p]
	if !ok {
		v, ok = c.old[p]
	}
	// A clock that was set back makes everything be verified again.
	if !ok || now.Before(v.from) || !now.Before(v.until) {
		return verified{}, false
	}
	return v, true
}

// put remembers a proof that itself is good until end.
func (c *cache) put(p proof, caller mesh.Caller, now, end time.Time) {
	c.keep(p, verified{caller: caller}, now, end)
}

func (c *cache) keep(p proof, v verified, now, end time.Time) {
	v.from, v.until = now, now.Add(cacheTime)
	if end.Before(v.until) {
		v.until = end
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.young == nil || len(c.young) >= cacheSize || now.Sub(c.born).Abs() >= cacheTime {
		c.old, c.young, c.born = c.young, map[proof]verified{}, now
	}
	c.young[p] = v
}
