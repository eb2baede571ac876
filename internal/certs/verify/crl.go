package verify

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"slices"

	"github.com/meshctl/meshctl/internal/certs"
)

// crl is a revocation list with its place.
type crl struct {
	*x509.RevocationList
	place string
	by    *x509.Certificate // the signer, nil while unknown
}

// revocation checks the revocation lists.
func (c *checker) revocation() {
	var good, strange []crl
	faults := false
	for _, l := range c.crls {
		switch use := c.crl(&l); use {
		case usable:
			good = append(good, l)
		case faulty:
			faults = true
		case foreign:
			strange = append(strange, l)
		}
	}
	c.revoked(good)
	c.superseded(good)
	if len(c.crls) == 0 || faults {
		return // faults are already reported
	}
	if !c.covered(good) {
		// One of these may be the missing list.
		for _, l := range strange {
			c.report(CRLUnknown, l.place, cert{}, "the revocation list is of %q, whose certificate is not here to check it with", l.Issuer)
		}
	}
}

// covered reports CAs without a list: CAs on the paths, and CAs of other clusters. It
// returns whether there are none.
func (c *checker) covered(lists []crl) bool {
	seen := map[string]bool{}
	missing := false
	want := func(ca cert, reason string) {
		// Compare keys, too: during a rotation, old and new CAs share their names.
		has := slices.ContainsFunc(lists, func(l crl) bool { return sameCA(l.by, ca.Certificate) })
		if !has && !seen[string(ca.Raw)] {
			c.report(CRLMissing, c.crls[0].place, ca, "there is no revocation list of %q; %s", Name(ca.Certificate), reason)
			missing = true
		}
		seen[string(ca.Raw)] = true
	}
	for _, p := range c.paths {
		signers := p
		if !p[0].IsCA {
			signers = p[1:]
		}
		for _, ca := range signers {
			want(ca, "peers that are given one want one of each CA")
		}
	}
	if c.set.Purpose != CA || c.first.Certificate == nil {
		return !missing
	}
	for _, x := range c.opts.Clusters {
		if !c.opts.Now.After(x.NotAfter) && c.leads(cert{x, ""}) && !c.isRoot(x) {
			want(cert{x, ""}, "it signs for another cluster; proxies with the lists here refuse its proxies")
		}
	}
	return !missing
}

// listUse classifies revocation lists.
type listUse int

const (
	usable  listUse = iota
	foreign         // its CA is unknown here
	faulty          // the fault is reported
)

// crl reports the faults of one list and classifies it.
func (c *checker) crl(l *crl) listUse {
	if weakSignature(l.SignatureAlgorithm) {
		c.report(WeakSignature, l.place, cert{}, "the revocation list of %q is signed with %s", l.Issuer, l.SignatureAlgorithm)
		c.findings[len(c.findings)-1].Fix = "have the list made again, signed with SHA-256 or better"
		return faulty
	}
	if now := c.opts.Now; now.Before(l.ThisUpdate) {
		c.report(CRLStale, l.place, cert{}, "the revocation list of %q is valid only from %s", l.Issuer, stamp(l.ThisUpdate))
		return faulty
	} else if !l.NextUpdate.IsZero() {
		switch left, life := l.NextUpdate.Sub(now), l.NextUpdate.Sub(l.ThisUpdate); {
		case left < 0:
			c.report(CRLStale, l.place, cert{}, "the revocation list of %q should have been replaced at %s", l.Issuer, stamp(l.NextUpdate))
			return faulty
		case left < min(maxSoon, life/5):
			c.report(ExpiresSoon, l.place, cert{}, "the revocation list of %q has to be replaced until %s, in %s", l.Issuer, stamp(l.NextUpdate), days(left))
		}
	}
	issuer, forged := c.signerOf(l)
	switch {
	case issuer.Certificate != nil && issuer.KeyUsage != 0 && issuer.KeyUsage&x509.KeyUsageCRLSign == 0:
		c.report(KeyUsage, l.place, issuer, "the key usage of %q is without cRLSign, so peers refuse its revocation list", Name(issuer.Certificate))
		c.findings[len(c.findings)-1].Fix = "make the CA again with cRLSign in its key usage, or take its revocation list away"
		return faulty
	case issuer.Certificate != nil:
		return usable
	case forged.Certificate != nil:
		c.report(CRLWrongIssuer, l.place, forged, "the revocation list names %q as its signer, but that CA did not sign it", Name(forged.Certificate))
		return faulty
	}
	return foreign
}

// signerOf returns the certificate that signed a list as issuer. Otherwise forged is a
// certificate that did not sign the list although Envoy attributes the list to it, by
// name and, if both have one, by key id. A CA of the same name with another key id is
// neither: during a rotation, several CAs share a name and not all are here.
func (c *checker) signerOf(l *crl) (issuer, forged cert) {
	candidates := slices.Concat(c.all, c.roots)
	for _, s := range c.opts.Signers {
		candidates = append(candidates, cert{s, "the given signers"})
	}
	for _, x := range candidates {
		if !bytes.Equal(x.RawSubject, l.RawIssuer) {
			continue
		}
		if code, _ := weakKey(x.PublicKey); code != "" || c.links.left == 0 {
			continue
		}
		c.links.left--
		if certs.IssuedCRL(x.Certificate, l.RevocationList) {
			l.by = x.Certificate
			return x, cert{}
		}
		if len(l.AuthorityKeyId) == 0 || len(x.SubjectKeyId) == 0 || bytes.Equal(l.AuthorityKeyId, x.SubjectKeyId) {
			forged = x
		}
	}
	return cert{}, forged
}

// revoked reports the certificates that are revoked by the lists.
func (c *checker) revoked(lists []crl) {
	for _, l := range lists {
		serials := make(map[string]bool, len(l.RevokedCertificateEntries))
		for _, e := range l.RevokedCertificateEntries {
			serials[e.SerialNumber.String()] = true
		}
		for _, x := range c.all {
			if bytes.Equal(x.RawIssuer, l.RawIssuer) && serials[x.SerialNumber.String()] {
				c.about(Revoked, x, "its CA has revoked it")
			}
		}
	}
}

// superseded reports lists for which another place has a newer one of the same CA.
func (c *checker) superseded(lists []crl) {
	for _, l := range lists {
		newest := PlacedList{l.RevocationList, l.place}
		for _, x := range c.opts.Lists {
			if !bytes.Equal(x.RawIssuer, l.RawIssuer) || c.opts.Now.Before(x.ThisUpdate) || !certs.NewerCRL(x.RevocationList, newest.RevocationList) || c.links.left == 0 {
				continue
			}
			if c.links.left--; certs.IssuedCRL(l.by, x.RevocationList) {
				newest = x
			}
		}
		here := slices.ContainsFunc(lists, func(x crl) bool {
			return sameCA(x.by, l.by) && !certs.NewerCRL(newest.RevocationList, x.RevocationList)
		})
		if !here {
			c.report(CRLSuperseded, l.place, cert{}, "the revocation list of %q has %s, and that in %s has %s: what was revoked since is accepted here",
				l.Issuer, edition(l.RevocationList), newest.Place, edition(newest.RevocationList))
		}
	}
}

// edition describes the version of a list: its number or time.
func edition(l *x509.RevocationList) string {
	if l.Number == nil {
		return "the time " + stamp(l.ThisUpdate)
	}
	return fmt.Sprintf("the number %s", l.Number)
}
