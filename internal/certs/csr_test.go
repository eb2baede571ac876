package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

func newCSR(tb testing.TB, key crypto.Signer) []byte {
	tb.Helper()
	csr, err := NewCSR(key, mesh.Identity{})
	if err != nil {
		tb.Fatal(err)
	}
	return csr
}

// unsignedCSR makes a request for any public key. Its signature does not verify.
func unsignedCSR(tb testing.TB, spki []byte) []byte {
	tb.Helper()
	type info struct {
		Version    int
		Subject    asn1.RawValue
		PublicKey  asn1.RawValue
		Attributes []asn1.RawValue `asn1:"tag:0"`
	}
	der, err := asn1.Marshal(struct {
		Info      info
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{
		info{Subject: asn1.RawValue{FullBytes: []byte{0x30, 0}}, PublicKey: asn1.RawValue{FullBytes: spki}},
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, Parameters: asn1.NullRawValue},
		asn1.BitString{Bytes: make([]byte, 256), BitLength: 2048},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockCSR, Bytes: der})
}

func spki(tb testing.TB, pub any) []byte {
	tb.Helper()
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		tb.Fatal(err)
	}
	return der
}

// rsaSPKI encodes an invented RSA public key with a modulus of this many bits.
func rsaSPKI(tb testing.TB, bits, e int) []byte {
	tb.Helper()
	n := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
	return spki(tb, &rsa.PublicKey{N: n.SetBit(n, 0, 1), E: e})
}

func dsaSPKI(tb testing.TB) []byte {
	tb.Helper()
	params, err := asn1.Marshal([]*big.Int{big.NewInt(23), big.NewInt(11), big.NewInt(4)}) // p, q, g
	if err != nil {
		tb.Fatal(err)
	}
	y, err := asn1.Marshal(big.NewInt(8))
	if err != nil {
		tb.Fatal(err)
	}
	der, err := asn1.Marshal(struct {
		Algorithm pkix.AlgorithmIdentifier
		PublicKey asn1.BitString
	}{
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10040, 4, 1}, Parameters: asn1.RawValue{FullBytes: params}},
		asn1.BitString{Bytes: y, BitLength: 8 * len(y)},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return der
}

func TestParseCSR(t *testing.T) {
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// TestKeys has the kinds of keys that this package makes.
	keys := map[string]crypto.Signer{"P-256": newKey(t, ECDSAP256), "P-521": p521}
	for name, key := range keys {
		csr, err := ParseCSR(newCSR(t, key))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !SameKey(csr.PublicKey, key.Public()) {
			t.Errorf("%s: another key came back", name)
		}
	}
	if _, err := ParseCSR(append([]byte("\n"), append(newCSR(t, p521), "\r\n\n"...)...)); err != nil {
		t.Errorf("white space around the block: %v", err)
	}
}

// TestKeysAreJudgedFirst: weak and expensive keys are refused before the signature is
// checked.
func TestKeysAreJudgedFirst(t *testing.T) {
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	x25519, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		spki []byte
		want string
	}{
		"RSA 512":           {rsaSPKI(t, 512, 65537), "RSA key has 512 bits"},
		"RSA 1024":          {rsaSPKI(t, 1024, 65537), "RSA key has 1024 bits"},
		"RSA 2047":          {rsaSPKI(t, 2047, 65537), "RSA key has 2047 bits"},
		"RSA 4097":          {rsaSPKI(t, 4097, 65537), "RSA key has 4097 bits"},
		"RSA 65536":         {rsaSPKI(t, 65536, 65537), "RSA key has 65536 bits"},
		"exponent 1":        {rsaSPKI(t, 2048, 1), "has the exponent 1,"},
		"exponent 3":        {rsaSPKI(t, 2048, 3), "has the exponent 3,"},
		"even exponent":     {rsaSPKI(t, 2048, 65538), "has the exponent 65538,"},
		"exponent 2^31":     {rsaSPKI(t, 2048, 1<<31+1), "has the exponent 2147483649,"},
		"P-224":             {spki(t, p224.Public()), "on the curve P-224"},
		"X25519":            {spki(t, x25519.PublicKey()), "the key is of another kind"},
		"DSA":               {dsaSPKI(t), "the key is of another kind"},
		"good, not its own": {rsaSPKI(t, 2048, 65537), "its signature does not verify"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseCSR(unsignedCSR(t, test.spki))
			wantError(t, err, test.want)
		})
	}
}

func TestBadRequests(t *testing.T) {
	good := newCSR(t, newKey(t, ECDSAP256))
	block, _ := pem.Decode(good)
	der := func(b []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: blockCSR, Bytes: b}) }
	flipped := bytes.Clone(block.Bytes)
	flipped[len(flipped)-1] ^= 1
	// The same content in BER: the outer length left open.
	ber := append([]byte{0x30, 0x80}, block.Bytes[2:]...)
	if block.Bytes[1]&0x80 != 0 {
		ber = append([]byte{0x30, 0x80}, block.Bytes[2+int(block.Bytes[1]&0x7f):]...)
	}
	cert := EncodeCerts(newRoot(t).Cert)

	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"empty":                {nil, "does not start with"},
		"DER":                  {block.Bytes, "does not start with"},
		"certificate":          {cert, "does not start with"},
		"text before":          {append([]byte("x"), good...), "does not start with"},
		"text after":           {append(bytes.Clone(good), 'x'), "not one whole PEM block"},
		"two requests":         {append(bytes.Clone(good), good...), "not one whole PEM block"},
		"damaged, then good":   {append([]byte("-----BEGIN "+blockCSR+"-----\n!\n"), good...), "not one whole PEM block"},
		"header":               {[]byte(strings.Replace(string(good), "-----\n", "-----\nProc-Type: 4\n\n", 1)), "not one whole PEM block"},
		"no end":               {good[:len(good)-40], "not one whole PEM block"},
		"4 MiB":                {append(bytes.Clone(good), make([]byte, 4<<20)...), "more than the 16384 allowed"},
		"no content":           {der(nil), "certificate request: "},
		"trailing DER":         {der(append(bytes.Clone(block.Bytes), 0)), "trailing data"},
		"BER":                  {der(append(ber, 0, 0)), "certificate request: "},
		"signature of another": {der(flipped), "its signature does not verify"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseCSR(test.data)
			wantError(t, err, test.want)
		})
	}
}

// greedyCSR requests everything that a request can contain.
func greedyCSR(tb testing.TB, key crypto.Signer) []byte {
	tb.Helper()
	other, err := url.Parse("spiffe://cluster.local/ns/kube-system/sa/admin")
	if err != nil {
		tb.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:        pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		DNSNames:       []string{"istiod.istio-system.svc"},
		EmailAddresses: []string{"admin@example.com"},
		IPAddresses:    []net.IP{net.IPv4(127, 0, 0, 1)},
		URIs:           []*url.URL{other},
		ExtraExtensions: []pkix.Extension{
			{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}},             // CA:true
			{Id: asn1.ObjectIdentifier{2, 5, 29, 15}, Critical: true, Value: []byte{3, 2, 1, 6}},                      // keyCertSign, cRLSign
			{Id: asn1.ObjectIdentifier{2, 5, 29, 37}, Value: []byte{0x30, 10, 6, 8, 43, 6, 1, 5, 5, 7, 3, 3}},         // codeSigning
			{Id: clusterOID(), Value: append([]byte{asn1.TagUTF8String, byte(len("another"))}, []byte("another")...)}, // another cluster
		},
	}, key)
	if err != nil {
		tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockCSR, Bytes: der})
}

// TestRequestGivesOnlyItsKey: only the key of a request has an effect.
func TestRequestGivesOnlyItsKey(t *testing.T) {
	key := newKey(t, ECDSAP256)
	a := newIntermediate(t, newRoot(t), "cluster1")
	sign := func(data []byte) *x509.Certificate {
		csr, err := ParseCSR(data)
		if err != nil {
			t.Fatal(err)
		}
		serial := bytes.NewReader(bytes.Repeat([]byte{7}, 1<<10))
		leaf, err := a.SignLeaf(csr.PublicKey, caller(), time.Hour, now, serial)
		if err != nil {
			t.Fatal(err)
		}
		return leaf
	}
	greedy, modest := sign(greedyCSR(t, key)), sign(newCSR(t, key))
	if !bytes.Equal(greedy.RawTBSCertificate, modest.RawTBSCertificate) {
		t.Error("the certificate differs from that of a request that asks for nothing")
	}
}

func FuzzParseCSR(f *testing.F) {
	key := newKey(f, ECDSAP256)
	good := newCSR(f, key)
	f.Add(good)
	f.Add(greedyCSR(f, key))
	f.Add(append(bytes.Clone(good), good...))
	f.Add(unsignedCSR(f, rsaSPKI(f, 2048, 3)))
	f.Add(unsignedCSR(f, dsaSPKI(f)))
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n\n-----END CERTIFICATE REQUEST-----\n"))
	a := newRoot(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		csr, err := ParseCSR(data)
		if err != nil {
			return
		}
		// An accepted request can be signed and parsed again.
		leaf, err := a.SignLeaf(csr.PublicKey, caller(), time.Hour, now, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if err := verifyLeaf(t, leaf, a, x509.ExtKeyUsageClientAuth, now); err != nil {
			t.Error(err)
		}
	})
}
