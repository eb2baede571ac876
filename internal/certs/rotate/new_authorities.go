package rotate

import (
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
)

// complete replaces zero values of a specification by values of the old root.
func complete(r certs.CASpec, old *x509.Certificate) (_ certs.CASpec, err error) {
	if r.Algorithm == "" {
		if r.Algorithm, err = algorithmOf("root", old); err != nil {
			return r, err
		}
	}
	if r.Organization == "" && r.CommonName == "" && len(old.Subject.Names) == 0 {
		return r, refuse("give --cn", "the old root has no subject")
	}
	r.Like = old
	if r.TTL == 0 {
		r.TTL = lifeOf(old)
	}
	if r.PathLen == nil && (old.MaxPathLen > 0 || old.MaxPathLenZero) {
		r.PathLen = &old.MaxPathLen
	}
	return r, nil
}

func algorithmOf(what string, c *x509.Certificate) (certs.Algorithm, error) {
	a, ok := certs.AlgorithmOf(c.PublicKey)
	if !ok {
		return "", refuse("choose one with --algorithm", "the key of the old %s is of a kind that meshctl does not make", what)
	}
	return a, nil
}

// lifeOf returns the full life of a certificate.
func lifeOf(c *x509.Certificate) time.Duration { return c.NotAfter.Sub(c.NotBefore) }

// distinguishable refuses a new root that peers could confuse with the old one: if the
// names are equal, all certificates need key ids.
func distinguishable(fresh, old *x509.Certificate, clusters []*cluster) error {
	if fresh.Subject.String() != old.Subject.String() { // in whatever encoding
		return nil
	}
	without := func(c *cluster) bool { return len(c.authority.Cert.AuthorityKeyId) == 0 }
	if len(old.SubjectKeyId) > 0 && !slices.ContainsFunc(clusters, without) {
		return nil
	}
	return refuse("give the new root another name with --cn",
		"the new root has the subject of the old one (%s), and the old certificates have no key ids to tell them apart by", old.Subject)
}

// newSigner makes the new signer of a cluster, like its old one. An empty algorithm
// means the algorithm of the old signer.
func (d *Dir) newSigner(root *certs.Authority, c *cluster, algorithm certs.Algorithm) (*certs.Authority, error) {
	old := c.authority.Cert
	spec := certs.CASpec{Algorithm: algorithm, TTL: lifeOf(old), DNSNames: old.DNSNames, Like: old}
	if spec.Algorithm == "" {
		var err error
		if spec.Algorithm, err = algorithmOf("signer of "+string(c.name), old); err != nil {
			return nil, err
		}
	}
	if len(old.Subject.Names) == 0 {
		spec.CommonName = "Intermediate CA"
	}
	a, err := root.NewIntermediate(c.name, spec, d.Now(), d.Rand)
	if err != nil {
		return nil, fmt.Errorf("make the new signer of %s: %w", c.name, err)
	}
	return a, nil
}

// leadsTo checks that the cluster trusts the old root and that its signer leads to it.
func (c *cluster) leadsTo(root *x509.Certificate, now time.Time) error {
	a := c.authority
	if !slices.ContainsFunc(a.Roots, root.Equal) {
		return refuse("make its trust bundle equal to that of the others first", "%s does not trust the root %s", c.name, root.Subject)
	}
	if _, err := certs.Verify(a.Cert, a.Chain, []*x509.Certificate{root}, now); err != nil {
		return refuse("rotate clusters of different roots apart from each other", "what signs for %s does not lead to the root %s: %v", c.name, root.Subject, err)
	}
	return nil
}
