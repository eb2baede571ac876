package certs

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"strings"
	"testing"
	"time"
)

func newCRLRoot(t *testing.T, now time.Time) *Authority {
	t.Helper()
	root, err := NewRoot(CASpec{Algorithm: ECDSAP256, CommonName: "Root CA", TTL: time.Hour}, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// TestSignCRL: each list has the entries of the last one and a greater number, whatever
// the clock says.
func TestSignCRL(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	root := newCRLRoot(t, now)
	first, err := root.SignCRL(nil, []Revocation{{Serial: big.NewInt(7), At: now, Reason: KeyCompromise}}, time.Hour, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if first.Number.Int64() != now.Unix() || !first.NextUpdate.Equal(now.Add(time.Hour)) || !first.ThisUpdate.Before(now) {
		t.Errorf("number %v, from %v to %v", first.Number, first.ThisUpdate, first.NextUpdate)
	}
	later := now.Add(-time.Second)
	second, err := root.SignCRL(first, []Revocation{{Serial: big.NewInt(7), At: later}, {Serial: big.NewInt(8), At: later}, {Serial: big.NewInt(8), At: later}}, time.Minute, later, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.CheckSignatureFrom(root.Cert); err != nil {
		t.Error(err)
	}
	if second.Number.Int64() != now.Unix()+1 {
		t.Errorf("number %v after %v", second.Number, first.Number)
	}
	e := second.RevokedCertificateEntries
	if len(e) != 2 || e[0].SerialNumber.Int64() != 7 || !e[0].RevocationTime.Equal(now) || e[0].ReasonCode != int(KeyCompromise) || e[1].ReasonCode != 0 {
		t.Errorf("entries %+v", e)
	}
	back, err := ParseCRLs(EncodeCRLs(first, second))
	if err != nil || len(back) != 2 || string(back[1].Raw) != string(second.Raw) {
		t.Errorf("%d lists come back, %v", len(back), err)
	}
	if back, err := ParseCRLs(first.Raw); err != nil || len(back) != 1 {
		t.Errorf("%d lists come back of DER, %v", len(back), err)
	}
}

// TestSignCRLKeepsExtensions: non-critical extensions of entries are kept.
func TestSignCRLKeepsExtensions(t *testing.T) {
	now := time.Now()
	root := newCRLRoot(t, now)
	invalidSince := pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 24}, Value: []byte{0x05, 0x00}}
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: now, NextUpdate: now.Add(time.Hour),
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: big.NewInt(7), RevocationTime: now, ReasonCode: 1, ExtraExtensions: []pkix.Extension{invalidSince}}},
	}, root.Cert, root.Key)
	if err != nil {
		t.Fatal(err)
	}
	last, err := x509.ParseRevocationList(der)
	if err != nil {
		t.Fatal(err)
	}
	next, err := root.SignCRL(last, nil, time.Hour, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if e := next.RevokedCertificateEntries[0]; e.ReasonCode != 1 || len(e.Extensions) != 2 {
		t.Errorf("entry %+v", e)
	}
}

func TestSignCRLRefuses(t *testing.T) {
	now := time.Now()
	root := newCRLRoot(t, now)
	partial, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: now, NextUpdate: now.Add(time.Hour),
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 28}, Critical: true, Value: []byte{0x30, 0x00}}},
	}, root.Cert, root.Key)
	if err != nil {
		t.Fatal(err)
	}
	last, err := x509.ParseRevocationList(partial)
	if err != nil {
		t.Fatal(err)
	}
	without := func(change func(*x509.Certificate)) *Authority {
		a, c := *root, *root.Cert
		change(&c)
		a.Cert = &c
		return &a
	}
	for name, tc := range map[string]struct {
		by   *Authority
		last *x509.RevocationList
		life time.Duration
		at   time.Time
		want string
	}{
		"key usage": {without(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCertSign }), nil, time.Hour, now, "lacks cRLSign"},
		"key id":    {without(func(c *x509.Certificate) { c.SubjectKeyId = nil }), nil, time.Hour, now, "no subject key id"},
		"expired":   {root, nil, time.Hour, now.Add(2 * time.Hour), "expired"},
		"life":      {root, nil, 0, now, "want more than 0"},
		"partial":   {root, last, time.Hour, now, "critical extension 2.5.29.28"},
	} {
		if _, err := tc.by.SignCRL(tc.last, nil, tc.life, tc.at, rand.Reader); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tc.want)
		}
	}
	for name, data := range map[string]string{
		"nothing": "", "text": "no list", "a certificate": string(EncodeCerts(root.Cert)), "junk": "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n",
	} {
		if lists, err := ParseCRLs([]byte(data)); err == nil {
			t.Errorf("%s: %d lists", name, len(lists))
		}
	}
}
