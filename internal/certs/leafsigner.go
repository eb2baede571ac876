package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"io"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// LeafSigner signs the leaves of many workloads. It makes the same leaves as
// Authority.SignLeaf in a third of the time: it encodes the common parts of all
// leaves once, from a pattern that crypto/x509 made and verified, and it does not
// verify its own signatures. It is safe for concurrent use.
type LeafSigner struct {
	authority *Authority
	hash      crypto.Hash
	// Parts of a leaf in DER: the signature algorithm, the issuer, the extensions
	// before the names, and the identifier of the extension with the cluster.
	algorithm, issuer, extensions, clusterID []byte
	from, until                              time.Time // validity of the authority and its chain
}

// maxCommon bounds the common parts of all leaves, in bytes. der encodes lengths
// below 64 KiB.
const maxCommon = 32 << 10

// NewLeafSigner signs a leaf as the pattern of all others. The pattern is never
// handed out.
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
	life, err := newLife(time.Second, s.from, rand.Reader)
	if err != nil {
		return nil, err
	}
	endEntity(template, life)
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
	if s.clusterID, err = asn1.Marshal(clusterOID()); err != nil {
		return nil, fmt.Errorf("encode extension: %w", err)
	}
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

// Sign returns a leaf in DER and its end. It takes the arguments of
// Authority.SignLeaf.
func (s *LeafSigner) Sign(pub crypto.PublicKey, caller mesh.Caller, ttl time.Duration, now time.Time, random io.Reader) ([]byte, time.Time, error) {
	id, err := leafName(caller)
	if err != nil {
		return nil, time.Time{}, err
	}
	life, err := newLife(ttl, now, random)
	if err != nil {
		return nil, time.Time{}, err
	}
	if now.Before(s.from) || now.After(s.until) {
		return nil, time.Time{}, s.authority.fit(new(x509.Certificate), now) // names the certificate
	}
	if life.until.After(s.until) {
		life.until = s.until
	}
	key, err := encodePublicKey(pub)
	if err != nil {
		return nil, time.Time{}, err
	}
	tbs := s.tbs(id, caller.Cluster, life, key)
	signature, err := crypto.SignMessage(s.authority.Key, random, tbs, s.hash)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("sign certificate: %w", err)
	}
	d := newDER(len(tbs) + len(s.algorithm) + len(signature) + 16)
	d.bitString(signature)
	put(d, s.algorithm)
	put(d, tbs)
	d.wrap(tagSequence, 0)
	return d.bytes(), life.until, nil
}

// tbs encodes the TBSCertificate of RFC 5280, the last field first.
func (s *LeafSigner) tbs(id string, cluster mesh.ClusterID, life life, key []byte) []byte {
	d := newDER(len(s.algorithm) + len(s.issuer) + len(s.extensions) + len(s.clusterID) + len(cluster) + len(id) + len(key) + 128)
	if cluster != "" {
		put(d, string(cluster))
		d.wrap(asn1.TagUTF8String, 0)
		d.wrap(asn1.TagOctetString, 0)
		put(d, s.clusterID)
		d.wrap(tagSequence, 0)
	}
	// The name of a certificate without a subject is critical.
	names := d.n
	put(d, id)
	d.wrap(tagURI, names)
	d.wrap(tagSequence, names)
	d.wrap(asn1.TagOctetString, names)
	put(d, []byte{asn1.TagOID, 3, 0x55, 0x1d, 0x11, asn1.TagBoolean, 1, 0xff})
	d.wrap(tagSequence, names)
	put(d, s.extensions)
	d.wrap(tagSequence, 0)
	d.wrap(tagExtended, 0)
	put(d, key)
	put(d, []byte{tagSequence, 0}) // no subject
	validity := d.n
	d.moment(life.until)
	d.moment(life.from)
	d.wrap(tagSequence, validity)
	put(d, s.issuer)
	put(d, s.algorithm)
	d.integer(life.serial.Bytes())
	const version3 = 2
	put(d, []byte{tagVersion, 3, asn1.TagInteger, 1, version3})
	d.wrap(tagSequence, 0)
	return d.bytes()
}

// encodePublicKey encodes a key as SubjectPublicKeyInfo.
func encodePublicKey(pub crypto.PublicKey) ([]byte, error) {
	if key, ok := pub.(*ecdsa.PublicKey); ok && key.Curve == elliptic.P256() {
		point, err := key.Bytes()
		if err != nil {
			return nil, fmt.Errorf("encode public key: %w", err)
		}
		d := newDER(len(point) + 32)
		d.bitString(point)
		algorithm := d.n
		put(d, []byte{asn1.TagOID, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07}) // the curve
		put(d, []byte{asn1.TagOID, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01})       // a key on it
		d.wrap(tagSequence, algorithm)
		d.wrap(tagSequence, 0)
		return d.bytes(), nil
	}
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return nil, fmt.Errorf("encode public key: %w", err)
	}
	return der, nil
}
