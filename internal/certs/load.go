package certs

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// PEMs holds the files of a CA.
type PEMs struct {
	Cert  []byte // the signing certificate alone
	Key   []byte // its private key
	Chain []byte // Cert, then its signers up to a root; may be empty if a root signed Cert
	Roots []byte // the roots that peers trust
}

// LoadAuthority parses a CA and checks that peers will accept its leaves: the key
// belongs to the certificate, the certificate is a CA and valid now, and the chain
// is in order and leads to one of the roots. Errors name the faulty part.
func LoadAuthority(p PEMs, now time.Time) (*Authority, error) {
	certs, err := ParseCerts(p.Cert)
	if err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	if len(certs) != 1 {
		return nil, fmt.Errorf("CA certificate: the file holds %d certificates, want one; the others belong in the chain", len(certs))
	}
	cert := certs[0]
	if err := checkCA(cert); err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	if err := checkTime(cert, now); err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	key, err := ParseKey(p.Key)
	if err != nil {
		return nil, fmt.Errorf("CA key: %w", err)
	}
	if !SameKey(key.Public(), cert.PublicKey) {
		return nil, errors.New("CA key: it is not the key of the CA certificate")
	}
	roots, err := ParseCerts(p.Roots)
	if err != nil {
		return nil, fmt.Errorf("root certificates: %w", err)
	}
	for i, r := range roots {
		if err := checkCA(r); err != nil {
			return nil, fmt.Errorf("root certificate %d: %w", i+1, err)
		}
	}
	chain, err := loadChain(p.Chain, cert, roots)
	if err != nil {
		return nil, fmt.Errorf("certificate chain: %w", err)
	}
	if err := verifyCA(cert, chain, roots, now); err != nil {
		return nil, err
	}
	return &Authority{Cert: cert, Key: key, Chain: slices.DeleteFunc(chain, SelfSigned), Roots: roots}, nil
}

// loadChain parses a chain and checks its order. It drops everything after the
// first root, such as further roots.
func loadChain(data []byte, cert *x509.Certificate, roots []*x509.Certificate) ([]*x509.Certificate, error) {
	if len(data) == 0 {
		return []*x509.Certificate{cert}, nil
	}
	all, err := ParseCerts(data)
	if err != nil {
		return nil, err
	}
	if !all[0].Equal(cert) {
		return nil, fmt.Errorf("it starts with %q, want the CA certificate %q", all[0].Subject, cert.Subject)
	}
	chain := all[:1:1]
	for i, next := range all[1:] {
		last := chain[len(chain)-1]
		if SelfSigned(last) {
			break
		}
		if next.Equal(last) {
			continue
		}
		if err := last.CheckSignatureFrom(next); err != nil {
			signed := func(by *x509.Certificate) bool { return last.CheckSignatureFrom(by) == nil }
			if slices.ContainsFunc(roots, signed) && !slices.ContainsFunc(all[i+2:], signed) {
				break
			}
			return nil, fmt.Errorf("certificate %d (%q) is not signed by certificate %d (%q): %w",
				i+1, last.Subject, i+2, next.Subject, err)
		}
		chain = append(chain, next)
	}
	return chain, nil
}

// verifyCA checks that the chain leads from cert to one of the roots, and that the
// path lengths above cert allow it to sign leaves.
func verifyCA(cert *x509.Certificate, chain, roots []*x509.Certificate, now time.Time) error {
	paths, err := Verify(cert, chain, roots, now)
	if err != nil {
		return fmt.Errorf("CA certificate %q does not lead to a root (%q is the first): %w", cert.Subject, roots[0].Subject, err)
	}
	if !slices.ContainsFunc(paths, longEnough) {
		return fmt.Errorf("CA certificate %q may not sign: the path length of a CA above it forbids it", cert.Subject)
	}
	return nil
}

// longEnough reports whether each CA of the path allows the number of CAs below it.
func longEnough(path []*x509.Certificate) bool {
	for below, c := range path {
		if c.MaxPathLen >= 0 && c.MaxPathLen < below {
			return false
		}
	}
	return true
}

// checkCA checks that cert may sign certificates.
func checkCA(cert *x509.Certificate) error {
	if !cert.BasicConstraintsValid || !cert.IsCA {
		return fmt.Errorf("%q is not a CA (basic constraints)", cert.Subject)
	}
	if cert.KeyUsage != 0 && cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return fmt.Errorf("%q may not sign certificates (key usage)", cert.Subject)
	}
	return nil
}

// checkTime checks that cert is valid now.
func checkTime(cert *x509.Certificate, now time.Time) error {
	switch {
	case now.Before(cert.NotBefore):
		return fmt.Errorf("%q is valid only from %s", cert.Subject, cert.NotBefore.UTC().Format(time.RFC3339))
	case now.After(cert.NotAfter):
		return fmt.Errorf("%q expired at %s", cert.Subject, cert.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}
