package verify

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"slices"
)

// crl is a revocation list with its place.
type crl struct {
	*x509.RevocationList
	place string
	key   crypto.PublicKey // that signed it, nil while not known
}

// revocation checks the revocation lists, if there are any.
func (c *checker) revocation() {
	var good []crl
	for _, l := range c.crls {
		if c.crl(&l) {
			good = append(good, l)
		}
	}
	c.revoked(good)
	if len(good) == 0 || len(good) < len(c.crls) {
		return // what was wrong with the others is reported
	}
	seen := map[string]bool{}
	for _, p := range c.paths {
		signers := p
		if !p[0].IsCA {
			signers = p[1:]
		}
		for _, ca := range signers {
			// By its key too: while roots change, old and new CAs share their names.
			has := slices.ContainsFunc(good, func(l crl) bool { return bytes.Equal(l.RawIssuer, ca.RawSubject) && sameKey(l.key, ca.PublicKey) })
			if !has && !seen[string(ca.Raw)] {
				seen[string(ca.Raw)] = true
				c.report(CRLMissing, good[0].place, ca, "there is no revocation list of %q; peers that are given one want one of each CA", Name(ca.Certificate))
			}
		}
	}
}

// crl reports what is wrong with one list, and whether it can be used.
func (c *checker) crl(l *crl) bool {
	if weakSignature(l.SignatureAlgorithm) {
		c.report(WeakSignature, l.place, cert{}, "the revocation list is signed with %s", l.SignatureAlgorithm)
		return false
	}
	var issuer cert
	for _, x := range slices.Concat(c.all, c.roots) {
		if !bytes.Equal(x.RawSubject, l.RawIssuer) {
			continue
		}
		if code, _ := weakKey(x.PublicKey); code != "" || c.links.left == 0 {
			continue
		}
		c.links.left--
		if x.CheckSignature(l.SignatureAlgorithm, l.RawTBSRevocationList, l.Signature) == nil {
			issuer, l.key = x, x.PublicKey
			break
		}
	}
	switch {
	case issuer.Certificate == nil && len(c.all)+len(c.roots) > 0:
		c.report(CRLWrongIssuer, l.place, cert{}, "none of the certificates given has signed the revocation list of %q", l.Issuer)
		return false
	case c.opts.Now.Before(l.ThisUpdate):
		c.report(CRLStale, l.place, cert{}, "the revocation list of %q is valid only from %s", l.Issuer, stamp(l.ThisUpdate))
		return false
	case !l.NextUpdate.IsZero() && c.opts.Now.After(l.NextUpdate):
		c.report(CRLStale, l.place, cert{}, "the revocation list of %q should have been replaced at %s", l.Issuer, stamp(l.NextUpdate))
		return false
	}
	if issuer.Certificate != nil && issuer.KeyUsage != 0 && issuer.KeyUsage&x509.KeyUsageCRLSign == 0 {
		c.about(KeyUsage, issuer, "its key usage is without cRLSign, so peers refuse its revocation list")
		return false
	}
	return issuer.Certificate != nil
}

// revoked reports the certificates that the lists name.
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
