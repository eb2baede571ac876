// Package certs makes, signs, parses and checks the certificates of a mesh: roots,
// an intermediate for each cluster, and leaves of workloads and the control plane.
// It does no I/O. Callers pass in the time and the randomness of serial numbers.
package certs

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"strings"
	"time"
)

// Fingerprint returns the SHA-256 of a certificate as openssl prints it: pairs of
// upper-case hex digits joined by colons.
func Fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return Colons(sum[:])
}

// Colons returns the upper-case hex digits of each byte, joined by colons.
func Colons(b []byte) string { return strings.ReplaceAll(fmt.Sprintf("% X", b), " ", ":") }

// EncodeCerts encodes certificates as PEM.
func EncodeCerts(certs ...*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range certs {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: blockCert, Bytes: c.Raw}))
	}
	return b.Bytes()
}

const blockCert = "CERTIFICATE"

// ParseCerts parses one or more certificates in PEM, in order. Any other or damaged
// block is an error.
func ParseCerts(data []byte) ([]*x509.Certificate, error) {
	blocks, err := decodePEM(data)
	if err != nil {
		return nil, err
	}
	certs := make([]*x509.Certificate, 0, len(blocks))
	for i, b := range blocks {
		switch b.Type {
		case blockCert:
		case blockTrusted:
			return nil, fmt.Errorf("PEM block %d is %q, a form of openssl alone; convert it with openssl x509", i+1, b.Type)
		default:
			return nil, fmt.Errorf("PEM block %d is %q, want %q", i+1, b.Type, blockCert)
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", i+1, err)
		}
		certs = append(certs, c)
	}
	return certs, nil
}

// newSerial returns a random serial number of 128 bits. As RFC 5280 requires, it is
// positive and has at most 20 bytes.
func newSerial(rand io.Reader) (*big.Int, error) {
	var b [16]byte
	if _, err := io.ReadFull(rand, b[:]); err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	n := new(big.Int).SetBytes(b[:])
	if n.Sign() == 0 {
		return nil, fmt.Errorf("make serial number: the random source gave only zeros")
	}
	return n, nil
}

// SelfSigned reports whether cert is signed with its own key.
func SelfSigned(cert *x509.Certificate) bool {
	return bytes.Equal(cert.RawSubject, cert.RawIssuer) && cert.CheckSignatureFrom(cert) == nil
}

// URIs returns the URI names of a certificate exactly as encoded. The URIs that
// crypto/x509 parses may have lost the parts that make a SPIFFE id invalid.
func URIs(cert *x509.Certificate) []string {
	var uris []string
	for _, ext := range cert.Extensions {
		if !ext.Id.Equal(asn1.ObjectIdentifier{2, 5, 29, 17}) { // subjectAltName
			continue
		}
		var names asn1.RawValue
		if _, err := asn1.Unmarshal(ext.Value, &names); err != nil {
			return uris
		}
		const tagURI = 6
		for rest := names.Bytes; len(rest) > 0; {
			var name asn1.RawValue
			var err error
			if rest, err = asn1.Unmarshal(rest, &name); err != nil {
				return uris
			}
			if name.Class == asn1.ClassContextSpecific && name.Tag == tagURI {
				uris = append(uris, string(name.Bytes))
			}
		}
	}
	return uris
}

// Verify returns the paths of a certificate to the roots, for any use. chain has
// certificates that may be on a path.
func Verify(cert *x509.Certificate, chain, roots []*x509.Certificate, now time.Time) ([][]*x509.Certificate, error) {
	return cert.Verify(x509.VerifyOptions{
		Roots: Pool(roots), Intermediates: Pool(chain), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
}

// Pool makes a pool of certificates.
func Pool(list []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range list {
		p.AddCert(c)
	}
	return p
}
