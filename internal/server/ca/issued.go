package ca

import (
	"slices"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
)

// maxSigners bounds the remembered authorities.
const maxSigners = 16

// Issued describes the certificates that an authority signed for callers.
type Issued struct {
	Authority *certs.Authority
	Last      time.Time // time of the last certificate
	Until     time.Time // time at which the last of its certificates expires
}

// issuedLog remembers the authorities that signed certificates, the latest last.
type issuedLog struct {
	mu  sync.Mutex
	all []Issued
}

func (r *issuedLog) add(a *certs.Authority, now, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := len(r.all) - 1
	if i < 0 || r.all[i].Authority != a {
		i = slices.IndexFunc(r.all, func(s Issued) bool { return s.Authority.Cert.Equal(a.Cert) })
	}
	var s Issued
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

// Signed returns the authorities that signed certificates since the start, the latest
// last.
func (i *Issuer) Signed() []Issued {
	i.signed.mu.Lock()
	defer i.signed.mu.Unlock()
	return slices.Clone(i.signed.all)
}
