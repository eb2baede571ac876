package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// LeafSigner signs the leaves of many workloads in a row. A leaf is the same
// as that of Authority.SignLeaf, for a third of its time: what all leaves have
// in common is encoded once, and a signature is not verified by who made it.
// crypto/x509 has verified one, of the pattern. It is safe for concurrent use.
type LeafSigner struct {
	authority *Authority
	hash      crypto.Hash
	// Parts of the certificate in DER: the algorithm of the signature, the
	// issuer, and the extensions before that with the names.
	algorithm, issuer, extensions []byte
	from, until                   time.Time // when the authority and its chain are valid
}

// maxCommon bounds what all leaves have in common, in bytes: with the rest it
// has to fit into the lengths that element can encode.
const maxCommon = 32 << 10

// NewLeafSigner makes a leaf as the pattern of all others. Nobody gets it.
func NewLeafSigner(a *Authority) (*LeafSigner, error) {
	s := &LeafSigner{authority: a, from: a.Cert.NotBefore, until: a.Cert.NotAfter}
	for _, c := range a.Chain {
		if c.NotBefore.After(s.from) {
			s.from = c.NotBefore
		}
		if c.NotAfter.Before(s.until) {
			s.until = c.NotAfter
		}
	}
	template, err := leafTemplate(mesh.Caller{Identity: mesh.Identity{TrustDomain: "pattern", Namespace: "pattern", ServiceAccount: "pattern"}})
	if err != nil {
		return nil, err
	}
	if err := endEntity(template, time.Second, s.from, rand.Reader); err != nil {
		return nil, err
	}
	pattern, err := create(template, a.Cert, a.Cert.PublicKey, a.Key, rand.Reader)
	if err != nil {
		return nil, err
	}
	if s.hash, err = hashOf(pattern.SignatureAlgorithm); err != nil {
		return nil, err
	}
	var parts struct {
		TBS, Algorithm asn1.RawValue
		Signature      asn1.BitString
	}
	if _, err := asn1.Unmarshal(pattern.Raw, &parts); err != nil {
		return nil, fmt.Errorf("read back signed certificate: %w", err)
	}
	s.algorithm, s.issuer = parts.Algorithm.FullBytes, pattern.RawIssuer
	for _, ext := range pattern.Extensions {
		if ext.Id.Equal(asn1.ObjectIdentifier{2, 5, 29, 17}) { // subjectAltName
			break
		}
		der, err := asn1.Marshal(ext)
		if err != nil {
			return nil, fmt.Errorf("encode extension: %w", err)
		}
		s.extensions = append(s.extensions, der...)
	}
	if n := len(s.issuer) + len(s.extensions); n > maxCommon {
		return nil, fmt.Errorf("CA certificate: its subject and key id take %d bytes of each leaf, more than the %d allowed", n, maxCommon)
	}
	return s, nil
}

func hashOf(a x509.SignatureAlgorithm) (crypto.Hash, error) {
	switch a {
	case x509.ECDSAWithSHA256, x509.SHA256WithRSA:
		return crypto.SHA256, nil
	case x509.ECDSAWithSHA384:
		return crypto.SHA384, nil
	case x509.ECDSAWithSHA512:
		return crypto.SHA512, nil
	case x509.PureEd25519:
		return 0, nil
	}
	return 0, fmt.Errorf("CA key: signatures of the kind %s are not supported", a)
}

// Sign returns a leaf in DER and when it ends, for the same arguments as
// Authority.SignLeaf.
func (s *LeafSigner) Sign(pub crypto.PublicKey, caller mesh.Caller, ttl time.Duration, now time.Time, random io.Reader) ([]byte, time.Time, error) {
	template, err := leafTemplate(caller)
	if err != nil {
		return nil, time.Time{}, err
	}
	if err := endEntity(template, ttl, now, random); err != nil {
		return nil, time.Time{}, err
	}
	if now.Before(s.from) || now.After(s.until) {
		return nil, time.Time{}, s.authority.fit(template, now) // says which
	}
	if template.NotAfter.After(s.until) {
		template.NotAfter = s.until
	}
	key, err := encodePublicKey(pub)
	if err != nil {
		return nil, time.Time{}, err
	}
	tbs, err := s.tbs(template, key)
	if err != nil {
		return nil, time.Time{}, err
	}
	signature, err := crypto.SignMessage(s.authority.Key, random, tbs, s.hash)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("sign certificate: %w", err)
	}
	return sequence(tbs, s.algorithm, element(asn1.TagBitString, []byte{0}, signature)), template.NotAfter, nil
}

// tbs encodes what is signed: TBSCertificate of RFC 5280.
func (s *LeafSigner) tbs(template *x509.Certificate, key []byte) ([]byte, error) {
	extensions := append(bytes.Clone(s.extensions), subjectAltName(template.URIs)...)
	for _, ext := range template.ExtraExtensions {
		der, err := asn1.Marshal(ext)
		if err != nil {
			return nil, fmt.Errorf("encode extension: %w", err)
		}
		extensions = append(extensions, der...)
	}
	const version3, context0, context3 = 2, 0xa0, 0xa3
	return sequence(
		element(context0, element(asn1.TagInteger, []byte{version3})),
		element(asn1.TagInteger, positive(template.SerialNumber.Bytes())),
		s.algorithm,
		s.issuer,
		sequence(moment(template.NotBefore), moment(template.NotAfter)),
		sequence(), // no subject
		key,
		element(context3, sequence(extensions)),
	), nil
}

// subjectAltName encodes the extension with the names of a certificate without
// a subject, which makes it critical.
func subjectAltName(uris []*url.URL) []byte {
	const tagURI = 0x86
	var list []byte
	for _, u := range uris {
		list = append(list, element(tagURI, []byte(u.String()))...)
	}
	id, critical := element(asn1.TagOID, []byte{0x55, 0x1d, 0x11}), element(asn1.TagBoolean, []byte{0xff})
	return sequence(id, critical, element(asn1.TagOctetString, sequence(list)))
}

// encodePublicKey encodes a key as SubjectPublicKeyInfo.
func encodePublicKey(pub crypto.PublicKey) ([]byte, error) {
	if key, ok := pub.(*ecdsa.PublicKey); ok && key.Curve == elliptic.P256() {
		point, err := key.Bytes()
		if err != nil {
			return nil, fmt.Errorf("encode public key: %w", err)
		}
		ecKey, p256 := element(asn1.TagOID, []byte{0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01}), element(asn1.TagOID, []byte{0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07})
		return sequence(sequence(ecKey, p256), element(asn1.TagBitString, []byte{0}, point)), nil
	}
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return nil, fmt.Errorf("encode public key: %w", err)
	}
	return der, nil
}

// sequence encodes a SEQUENCE of what is encoded already.
func sequence(parts ...[]byte) []byte {
	const constructed = 0x20
	return element(asn1.TagSequence|constructed, parts...)
}

// element encodes a tag, the length of the parts, and the parts.
func element(tag byte, parts ...[]byte) []byte {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	out := make([]byte, 0, n+4)
	out = append(out, tag)
	switch {
	case n < 1<<7:
		out = append(out, byte(n))
	case n < 1<<8:
		out = append(out, 0x81, byte(n))
	default: // as much as a certificate has
		out = append(out, 0x82, byte(n>>8), byte(n))
	}
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// positive makes the content of an INTEGER of the bytes of a positive number.
func positive(b []byte) []byte {
	if b[0] >= 1<<7 {
		return append([]byte{0}, b...)
	}
	return b
}

// moment encodes a time as RFC 5280 wants it: with two digits of the year until
// 2049.
func moment(t time.Time) []byte {
	t = t.UTC()
	if t.Year() < 2050 {
		return element(asn1.TagUTCTime, []byte(t.Format("060102150405Z")))
	}
	return element(asn1.TagGeneralizedTime, []byte(t.Format("20060102150405Z")))
}
