package trust

import (
	"crypto/x509"
	"slices"
	"sync"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Peers joins the roots that authenticate callers and peers, by trust domain:
//
//   - the own trust domain has the roots of the signing CA and those added to it;
//   - a trust domain with a source, from MeshConfig or a flag, has the roots of that
//     source, and none while the source has none;
//   - an alias without a source has the roots of the own trust domain.
//
// It is safe for concurrent use.
type Peers struct {
	// Bundles has the sources. Peers sets the sources of MeshConfig.
	Bundles *Bundles
	changed chan struct{} // capacity 1

	mu      sync.RWMutex // guards what follows
	ca      []*x509.Certificate
	caPool  *x509.CertPool // of ca, nil before SetCA
	own     string         // trust domain
	aliases []string
	pools   map[string]*x509.CertPool
	foreign map[string]bool // trust domains with sources, without the own one
	bundle  []string        // own roots, PEM, sorted
	publish func(roots []string)
}

// NewPeers returns the Peers of a mesh. It sets cfg.Changed. The trust domain may be
// empty until SetMesh.
func NewPeers(trustDomain string, cfg Config) (_ *Peers, err error) {
	p := &Peers{own: trustDomain, changed: make(chan struct{}, 1)}
	cfg.Changed = p.gather
	p.Bundles, err = New(cfg)
	return p, err
}

// Changed receives after the roots of callers have changed: authenticate them again.
func (p *Peers) Changed() <-chan struct{} { return p.changed }

// SetCA sets the roots of the signing CA, and their pool.
func (p *Peers) SetCA(roots []*x509.Certificate, pool *x509.CertPool) {
	p.mu.Lock()
	p.ca, p.caPool = roots, pool
	p.mu.Unlock()
	p.gather()
}

// SetMesh sets the trust domains and sources of MeshConfig.
func (p *Peers) SetMesh(m *snapshot.Mesh) {
	p.mu.Lock()
	same := p.own == m.TrustDomain && slices.Equal(p.aliases, m.Aliases)
	p.own, p.aliases = m.TrustDomain, m.Aliases
	p.mu.Unlock()
	p.Bundles.Set(sourcesOf(m.CACertificates)) // gathers if they changed
	if !same {
		p.gather()
	}
}

// sourcesOf returns the sources that MeshConfig names.
func sourcesOf(list []snapshot.CACertificate) []Source {
	var out []Source
	for _, c := range list {
		s := Source{PEM: c.PEM, URL: c.BundleURL, Via: "caCertificates of MeshConfig"}
		if len(c.TrustDomains) == 0 {
			out = append(out, s)
		}
		for _, td := range c.TrustDomains {
			s.TrustDomain = td
			out = append(out, s)
		}
	}
	return out
}

// gather makes the pools.
func (p *Peers) gather() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.caPool == nil {
		return
	}
	named := p.Bundles.Domains()
	extra := append(named[""], named[p.own]...)
	delete(named, "")
	delete(named, p.own)
	own := p.caPool
	all := append(slices.Clip(p.ca), extra...)
	if len(extra) > 0 {
		own = certs.Pool(all)
	}
	p.pools, p.foreign = map[string]*x509.CertPool{p.own: own}, map[string]bool{}
	for td, roots := range named {
		p.foreign[td] = true
		if len(roots) > 0 {
			p.pools[td] = certs.Pool(roots)
		}
	}
	for _, alias := range p.aliases {
		if !p.foreign[alias] {
			p.pools[alias] = own
		}
	}
	p.setBundle(all)
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// setBundle publishes the roots by which workloads verify each other, of the own trust
// domain only. If Envoy had the roots of another domain, that domain could sign for the
// own one. The caller holds the lock.
func (p *Peers) setBundle(roots []*x509.Certificate) {
	p.bundle = make([]string, len(roots))
	for i, r := range roots {
		p.bundle[i] = string(certs.EncodeCerts(r))
	}
	slices.Sort(p.bundle)
	if p.bundle = slices.Compact(p.bundle); p.publish != nil {
		p.publish(p.bundle)
	}
}

// PublishTo calls publish with the roots by which workloads verify each other, now
// and after each change.
func (p *Peers) PublishTo(publish func(roots []string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.publish = publish; p.bundle != nil {
		publish(p.bundle)
	}
}

// Roots returns the roots of the callers of a trust domain, nil without any.
func (p *Peers) Roots(trustDomain string) *x509.CertPool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.pools[trustDomain]
}

// Foreign reports whether a trust domain has a CA other than ours.
func (p *Peers) Foreign(trustDomain string) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.foreign[trustDomain]
}
