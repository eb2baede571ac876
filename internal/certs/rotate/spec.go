package rotate

import (
	"crypto/x509"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
)

// Spec says what the new root looks like where it is not to be like the old
// one: zero values are taken from that. The algorithm is also that of the new
// signers of the clusters; all else of them is as of the old signers.
type Spec struct {
	Root certs.CASpec
}

// complete fills in what is to be as in the old root.
func (s Spec) complete(old *x509.Certificate) (certs.CASpec, error) {
	r := s.Root
	var err error
	if r.Algorithm == "" {
		if r.Algorithm, err = algorithmOf("root", old); err != nil {
			return r, err
		}
	}
	if r.Organization == "" && r.CommonName == "" && len(old.Subject.Names) == 0 {
		return r, &Refusal{Reason: "the old root has no subject", Fix: "give --cn"}
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
		return "", &Refusal{Reason: fmt.Sprintf("the key of the old %s is of a kind that meshctl does not make", what), Fix: "choose one with --algorithm"}
	}
	return a, nil
}

// lifeOf is for how long a certificate was made.
func lifeOf(c *x509.Certificate) time.Duration { return c.NotAfter.Sub(c.NotBefore) }

// distinguishable refuses a new root that peers could take for the old one:
// where names are equal, only key ids tell who signed what.
func distinguishable(fresh, old *x509.Certificate, clusters []*cluster) error {
	if fresh.Subject.String() != old.Subject.String() { // in whatever encoding
		return nil
	}
	without := func(c *cluster) bool { return len(c.authority.Cert.AuthorityKeyId) == 0 }
	if len(old.SubjectKeyId) > 0 && !slices.ContainsFunc(clusters, without) {
		return nil
	}
	return &Refusal{
		Reason: fmt.Sprintf("the new root has the subject of the old one (%s), and the old certificates have no key ids to tell them apart by", old.Subject),
		Fix:    "give the new root another name with --cn",
	}
}

// maker makes the new certificates.
type maker struct {
	now  time.Time
	rand io.Reader
	spec Spec
}

// signer makes the new signer of a cluster, like its old one.
func (m *maker) signer(root *certs.Authority, c *cluster) (*certs.Authority, error) {
	old := c.authority.Cert
	spec := certs.CASpec{Algorithm: m.spec.Root.Algorithm, TTL: lifeOf(old), DNSNames: old.DNSNames, Like: old}
	if spec.Algorithm == "" {
		var err error
		if spec.Algorithm, err = algorithmOf("signer of "+string(c.name), old); err != nil {
			return nil, err
		}
	}
	if len(old.Subject.Names) == 0 {
		spec.CommonName = "Intermediate CA"
	}
	a, err := root.NewIntermediate(c.name, spec, m.now, m.rand)
	if err != nil {
		return nil, fmt.Errorf("make the new signer of %s: %w", c.name, err)
	}
	return a, nil
}

// leadsTo checks that the old root signed, directly or not, what signs for a
// cluster, and that the cluster trusts it.
func (c *cluster) leadsTo(root *x509.Certificate, now time.Time) error {
	a := c.authority
	if !slices.ContainsFunc(a.Roots, root.Equal) {
		return &Refusal{Reason: fmt.Sprintf("%s does not trust the root %s", c.name, root.Subject), Fix: "make its trust bundle equal to that of the others first"}
	}
	_, err := a.Cert.Verify(x509.VerifyOptions{
		Roots: certs.Pool([]*x509.Certificate{root}), Intermediates: certs.Pool(a.Chain),
		CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return &Refusal{Reason: fmt.Sprintf("what signs for %s does not lead to the root %s: %v", c.name, root.Subject, err), Fix: "rotate clusters of different roots apart from each other"}
	}
	return nil
}
