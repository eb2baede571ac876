package verify

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"math"
)

// linker checks which certificate signed which, and caches the results. It stops after
// a number of signatures that no honest set has, so that many certificates of one
// name cost seconds at most.
type linker struct {
	left  int
	known map[[2]*x509.Certificate]bool
}

// Bounds of the signature checks for one set.
const (
	checksPerCert      = 8
	minSignatureChecks = 64
	maxSignatureChecks = 3000
)

// limit sets the number of checks for n certificates.
func (l *linker) limit(n int) {
	l.left = min(minSignatureChecks+checksPerCert*n, maxSignatureChecks)
}

// signed reports whether the key of parent signed child.
func (l *linker) signed(parent, child *x509.Certificate) bool {
	if !named(parent, child) {
		return false
	}
	pair := [2]*x509.Certificate{parent, child}
	is, known := l.known[pair]
	if !known && l.left > 0 {
		l.left--
		is = verifies(parent, child)
		l.known[pair] = is
	}
	return is
}

func (l *linker) selfSigned(c *x509.Certificate) bool { return l.signed(c, c) }

// named reports whether child names parent as its signer.
func named(parent, child *x509.Certificate) bool {
	return bytes.Equal(parent.RawSubject, child.RawIssuer) &&
		(len(child.AuthorityKeyId) == 0 || len(parent.SubjectKeyId) == 0 || bytes.Equal(child.AuthorityKeyId, parent.SubjectKeyId))
}

// verifies checks a signature. A weak algorithm or key counts as good here; other
// checks report it.
func verifies(parent, child *x509.Certificate) bool {
	if code, _ := weakKey(parent.PublicKey); code != "" {
		return true
	}
	err := parent.CheckSignature(child.SignatureAlgorithm, child.RawTBSCertificate, child.Signature)
	_, insecure := errors.AsType[x509.InsecureAlgorithmError](err)
	return err == nil || insecure || errors.Is(err, x509.ErrUnsupportedAlgorithm) && (weakSignature(child.SignatureAlgorithm) || unknownSignature(child) != "")
}

// oidRSAPSS is the algorithm RSASSA-PSS.
var oidRSAPSS = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 10}

// unknownSignature returns what is wrong with an algorithm of a signature that Go does not know, or
// "" for a known one.
func unknownSignature(c *x509.Certificate) string {
	if c.SignatureAlgorithm != x509.UnknownSignatureAlgorithm {
		return ""
	}
	var parts struct {
		Signed    asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}
	if _, err := asn1.Unmarshal(c.Raw, &parts); err != nil {
		return "an unknown algorithm"
	}
	if parts.Algorithm.Algorithm.Equal(oidRSAPSS) {
		return "RSA-PSS with other parameters than TLS permits: one hash of SHA-2 for all, and a salt as long as the hash"
	}
	return "the algorithm " + parts.Algorithm.Algorithm.String() + ", which is not for certificates of TLS"
}

// Sizes of RSA keys. Smaller keys are broken, and signatures of larger keys are
// expensive to check.
const (
	minRSABits = 2048
	maxRSABits = 8192
)

// weakKey returns WeakKey and the reason, or nothing.
func weakKey(pub crypto.PublicKey) (Code, string) {
	switch key := pub.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSABits || bits > maxRSABits {
			return WeakKey, fmt.Sprintf("RSA of %d bits, want %d to %d", bits, minRSABits, maxRSABits)
		}
		if key.E < 3 || key.E%2 == 0 || key.E > math.MaxInt32 {
			return WeakKey, fmt.Sprintf("RSA with the exponent %d, want 65537", key.E)
		}
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256(), elliptic.P384(), elliptic.P521():
		default:
			return WeakKey, fmt.Sprintf("ECDSA on the curve %s, want P-256 or better", key.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	default: // DSA among them
		return WeakKey, "of another kind than RSA, ECDSA and Ed25519"
	}
	return "", ""
}

func weakSignature(a x509.SignatureAlgorithm) bool {
	switch a {
	case x509.MD2WithRSA, x509.MD5WithRSA, x509.SHA1WithRSA, x509.DSAWithSHA1, x509.DSAWithSHA256, x509.ECDSAWithSHA1:
		return true
	}
	return false
}
