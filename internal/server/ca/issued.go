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
	s := Issued{Authority: a, Last: now, Until: until}
	i := slices.IndexFunc(r.all, func(o Issued) bool { return o.Authority == a || o.Authority.Cert.Equal(a.Cert) })
	switch {
	case i >= 0:
		if o := r.all[i]; o.Until.After(until) {
			s.Until = o.Until
		}
		r.all = slices.Delete(r.all, i, i+1)
	case len(r.all) == maxSigners:
		r.all = slices.Delete(r.all, 0, 1)
	}
	r.all = append(r.all, s)
}

// Signed returns the authorities that signed certificates since the start, the latest
// last.
func (i *Issuer) Signed() []Issued {
	i.signed.mu.Lock()
	defer i.signed.mu.Unlock()
	return slices.Clone(i.signed.all)
}
