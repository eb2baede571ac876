package issuer

import (
	"slices"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
)

// maxSigners is how many authorities are remembered.
const maxSigners = 16

// Signed is what an authority signed for callers.
type Signed struct {
	Authority *certs.Authority
	Last      time.Time // when the last certificate was signed
	Until     time.Time // when the last of its certificates ends
}

// record remembers what was signed, the latest authority last.
type record struct {
	mu  sync.Mutex
	all []Signed
}

func (r *record) add(a *certs.Authority, now, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := len(r.all) - 1
	if i < 0 || r.all[i].Authority != a {
		i = slices.IndexFunc(r.all, func(s Signed) bool { return s.Authority.Cert.Equal(a.Cert) })
	}
	var s Signed
	if i >= 0 {
		s = r.all[i]
	}
	s.Authority, s.Last = a, now
	if until.After(s.Until) {
		s.Until = until
	}
	if i >= 0 && i == len(r.all)-1 {
		r.all[i] = s
		return
	}
	if i >= 0 {
		r.all = slices.Delete(r.all, i, i+1)
	}
	r.all = append(r.all, s)
	if len(r.all) > maxSigners {
		r.all = slices.Delete(r.all, 0, 1)
	}
}

// Signed returns what was signed since the start by each signer, the one that
// signed last being the last.
func (i *Issuer) Signed() []Signed {
	i.signed.mu.Lock()
	defer i.signed.mu.Unlock()
	return slices.Clone(i.signed.all)
}
