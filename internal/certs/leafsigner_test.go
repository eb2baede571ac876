package certs

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// seeded returns a source of repeatable serial numbers.
func seeded(n int) *bytes.Reader {
	return bytes.NewReader(bytes.Repeat([]byte{byte(n), 0x80, 0x7f}, 20))
}

// TestLeafSignerEqualsSignLeaf: LeafSigner signs the same bytes as Authority.SignLeaf,
// and they verify.
func TestLeafSignerEqualsSignLeaf(t *testing.T) {
	keys := map[Algorithm]any{}
	for _, a := range []Algorithm{ECDSAP256, ECDSAP384, RSA2048, Ed25519} {
		keys[a] = newKey(t, a).Public()
	}
	for _, algorithm := range []Algorithm{ECDSAP256, ECDSAP384, RSA2048, Ed25519} {
		t.Run(string(algorithm), func(t *testing.T) {
			s := spec("Root CA")
			s.Algorithm = algorithm
			root, err := NewRoot(s, now, rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			for depth, a := range []*Authority{root, newIntermediate(t, root, "cluster1")} {
				fast, err := NewLeafSigner(a)
				if err != nil {
					t.Fatal(err)
				}
				n := 0
				for kind, key := range keys {
					for _, who := range []mesh.Caller{
						caller(),
						{Identity: mesh.Identity{TrustDomain: "td", Namespace: "n", ServiceAccount: "s"}},
						{Identity: mesh.Identity{TrustDomain: strings.Repeat("t", 200), Namespace: "n", ServiceAccount: strings.Repeat("s", 63) + "." + strings.Repeat("s", 60)}, Cluster: mesh.ClusterID(strings.Repeat("c", 253))},
					} {
						for _, ttl := range []time.Duration{time.Second, 24 * time.Hour, 100 * year} {
							n++
							slow, err := a.SignLeaf(key, who, ttl, now, seeded(n))
							if err != nil {
								t.Fatal(err)
							}
							der, until, err := fast.Sign(key, who, ttl, now, seeded(n))
							if err != nil {
								t.Fatal(err)
							}
							what := fmt.Sprint("depth ", depth, ", ", kind, ", ", who, ", ", ttl)
							leaf, err := x509.ParseCertificate(der)
							if err != nil {
								t.Fatal(what, err)
							}
							if !bytes.Equal(leaf.RawTBSCertificate, slow.RawTBSCertificate) {
								t.Errorf("%s: signed is\n%x\nwant\n%x", what, leaf.RawTBSCertificate, slow.RawTBSCertificate)
							}
							if !until.Equal(leaf.NotAfter) {
								t.Errorf("%s: ends %v, says %v", what, leaf.NotAfter, until)
							}
							if err := a.Cert.CheckSignature(leaf.SignatureAlgorithm, leaf.RawTBSCertificate, leaf.Signature); err != nil {
								t.Errorf("%s: %v", what, err)
							}
						}
					}
				}
			}
		})
	}
}

func TestLeafSignerRefuses(t *testing.T) {
	a, key := newIntermediate(t, newRoot(t), "cluster1"), newKey(t, ECDSAP256)
	s, err := NewLeafSigner(a)
	if err != nil {
		t.Fatal(err)
	}
	end := a.Cert.NotAfter
	nobody, odd := caller(), caller()
	nobody.Identity.TrustDomain, odd.Cluster = "", "a\nb"
	for want, try := range map[string]struct {
		who mesh.Caller
		ttl time.Duration
		at  time.Time
	}{
		"expired":                   {caller(), time.Hour, end.Add(time.Second)},
		"valid only from":           {caller(), time.Hour, now.Add(-year)},
		"life time is 0s":           {caller(), 0, now},
		"not a SPIFFE trust domain": {nobody, time.Hour, now},
		"is not 1 to 253 visible":   {odd, time.Hour, now},
	} {
		_, _, err := s.Sign(key.Public(), try.who, try.ttl, try.at, rand.Reader)
		wantError(t, err, want)
	}
	_, _, err = s.Sign("no key", caller(), time.Hour, now, rand.Reader)
	wantError(t, err, "unsupported public key")
	_, _, err = s.Sign(key.Public(), caller(), time.Hour, now, bytes.NewReader(nil))
	wantError(t, err, "serial number")

	other := *a
	other.Key = newKey(t, ECDSAP256)
	_, err = NewLeafSigner(&other)
	wantError(t, err, "doesn't match parent's PublicKey")
}

func FuzzMoment(f *testing.F) {
	f.Add(int64(0))
	f.Add(int64(2524607999)) // the end of 2049
	f.Add(int64(2524608000))
	f.Fuzz(func(t *testing.T, seconds int64) {
		at := time.Unix(seconds, 0).UTC()
		if at.Year() < 1950 || at.Year() > 9999 {
			t.Skip()
		}
		want, err := asn1.Marshal(at)
		if err != nil {
			t.Fatal(err)
		}
		d := newDER(0)
		if d.moment(at); !bytes.Equal(d.bytes(), want) {
			t.Errorf("%v is %x, want %x", at, d.bytes(), want)
		}
	})
}

// BenchmarkSign parses and checks a request and signs the certificate.
func BenchmarkSign(b *testing.B) {
	a := newIntermediate(b, newRoot(b), "cluster1")
	csr := newCSR(b, newKey(b, ECDSAP256))
	s, err := NewLeafSigner(a)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			req, err := ParseCSR(csr)
			if err != nil {
				b.Fatal(err)
			}
			if _, _, err := s.Sign(req.PublicKey, caller(), time.Hour, now, rand.Reader); err != nil {
				b.Fatal(err)
			}
		}
	})
	key := newKey(b, ECDSAP256).Public()
	b.Run("LeafSigner", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := s.Sign(key, caller(), time.Hour, now, rand.Reader); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("SignLeaf", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := a.SignLeaf(key, caller(), time.Hour, now, rand.Reader); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkRefuseRSA16384: an oversized key costs no more than parsing the request.
func BenchmarkRefuseRSA16384(b *testing.B) {
	csr := unsignedCSR(b, rsaSPKI(b, 16384, 65537))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseCSR(csr); err == nil {
			b.Fatal("accepted")
		}
	}
}

// TestLeafSignerRefusesLongSubject: a CA whose subject exceeds the encoder's limit
// signs nothing.
func TestLeafSignerRefusesLongSubject(t *testing.T) {
	s := spec(strings.Repeat("x", maxCommon))
	root, err := NewRoot(s, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, err = NewLeafSigner(root)
	wantError(t, err, "bytes of each leaf, more than")
}
