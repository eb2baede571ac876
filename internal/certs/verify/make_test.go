package verify

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
)

// clock is the time of all sets in these tests.
var clock = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

const year = 365 * 24 * time.Hour

// pair is a certificate with its key.
type pair struct {
	*x509.Certificate
	key crypto.Signer
}

var serials atomic.Int64

func newKey(tb testing.TB) crypto.Signer {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// issue makes a certificate. Without a parent it is self-signed; without a key it gets
// a new one.
func issue(tb testing.TB, parent *pair, key crypto.Signer, template x509.Certificate) *pair {
	tb.Helper()
	if key == nil {
		key = newKey(tb)
	}
	if template.SerialNumber == nil {
		template.SerialNumber = big.NewInt(1000 + serials.Add(1))
	}
	signer, signKey := &template, key
	if parent != nil {
		signer, signKey = parent.Certificate, parent.key
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, signer, key.Public(), signKey)
	if err != nil {
		tb.Fatal(err)
	}
	return &pair{parse(tb, der), key}
}

func parse(tb testing.TB, der []byte) *x509.Certificate {
	tb.Helper()
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return cert
}

type change func(*x509.Certificate)

const caUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature

func root(tb testing.TB, name string, changes ...change) *pair {
	tb.Helper()
	return issue(tb, nil, nil, caTemplate(name, 10*year, changes))
}

func intermediate(tb testing.TB, parent *pair, name string, changes ...change) *pair {
	tb.Helper()
	t := caTemplate(name, 5*year, nil)
	t.MaxPathLenZero = true
	t.DNSNames = []string{"istiod.istio-system.svc"}
	for _, c := range changes {
		c(&t)
	}
	return issue(tb, parent, nil, t)
}

func caTemplate(name string, life time.Duration, changes []change) x509.Certificate {
	t := x509.Certificate{
		Subject:   pkix.Name{Organization: []string{"test"}, CommonName: name},
		NotBefore: clock.Add(-year), NotAfter: clock.Add(life),
		KeyUsage: caUsage, BasicConstraintsValid: true, IsCA: true,
	}
	for _, c := range changes {
		c(&t)
	}
	return t
}

func leafTemplate(changes ...change) x509.Certificate {
	t := x509.Certificate{
		NotBefore: clock.Add(-time.Hour), NotAfter: clock.Add(23 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/default/sa/web"}},
	}
	for _, c := range changes {
		c(&t)
	}
	return t
}

func leaf(tb testing.TB, parent *pair, changes ...change) *pair {
	tb.Helper()
	return issue(tb, parent, nil, leafTemplate(changes...))
}

// withURIs encodes URIs byte by byte, so that they may be invalid.
func withURIs(uris ...string) change {
	return func(t *x509.Certificate) {
		var names []asn1.RawValue
		for _, u := range uris {
			names = append(names, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 6, Bytes: []byte(u)})
		}
		value, _ := asn1.Marshal(names)
		t.URIs = nil
		t.ExtraExtensions = append(t.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Critical: true, Value: value})
	}
}

func rsaKey(tb testing.TB, bits int) crypto.Signer {
	tb.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func pems(pairs ...*pair) []byte {
	var all []*x509.Certificate
	for _, p := range pairs {
		all = append(all, p.Certificate)
	}
	return certs.EncodeCerts(all...)
}

func keyPEM(tb testing.TB, p *pair) []byte {
	tb.Helper()
	data, err := certs.EncodeKey(p.key)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func crlPEM(tb testing.TB, issuer *pair, from, until time.Time, revoked ...*pair) []byte {
	tb.Helper()
	return numberedCRL(tb, issuer, 1, from, until, revoked...)
}

func numberedCRL(tb testing.TB, issuer *pair, number int64, from, until time.Time, revoked ...*pair) []byte {
	tb.Helper()
	list := &x509.RevocationList{Number: big.NewInt(number), ThisUpdate: from, NextUpdate: until}
	for _, r := range revoked {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries,
			x509.RevocationListEntry{SerialNumber: r.SerialNumber, RevocationTime: from})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, issuer.Certificate, issuer.key)
	if err != nil {
		tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// crlByName makes a list without the key id of its CA, as openssl does by default.
func crlByName(tb testing.TB, issuer *pair) []byte {
	tb.Helper()
	without := *issuer.Certificate
	without.SubjectKeyId = nil
	der, err := without.CreateCRL(rand.Reader, issuer.key, nil, clock.Add(-time.Hour), clock.Add(time.Hour)) // the other one always writes the key id
	if err != nil {
		tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// cacerts returns the valid files of a CA by name.
func cacerts(tb testing.TB, r, ca *pair) map[string][]byte {
	tb.Helper()
	return map[string][]byte{
		caCert: pems(ca), caKey: keyPEM(tb, ca), certChain: pems(ca, r), rootCert: pems(r),
	}
}

func arrange(texts map[string][]byte) Set {
	var files []File
	for _, name := range []string{caCert, caKey, certChain, rootCert, caCRL, rootKey, tlsCert, tlsKey, tlsRoots, leafKey} {
		if data, ok := texts[name]; ok {
			files = append(files, NewFile(name, name, data))
		}
	}
	return Arrange("test", files)
}

func encode(blockType string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: blockType, Bytes: der})
}
