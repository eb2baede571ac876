package verify

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// negative returns the PEM of a certificate with a negative serial number.
func negative(t *testing.T, p *pair) []byte {
	t.Helper()
	serial, err := asn1.Marshal(p.SerialNumber)
	if err != nil {
		t.Fatal(err)
	}
	less := slices.Clone(serial)
	less[2] |= 0x80
	return encode("CERTIFICATE", bytes.Replace(p.Raw, serial, less, 1))
}

// TestUnreadableCertificates: a certificate that cannot be read is the only fault. What belongs to
// it, such as its key and what it signed, is none.
func TestUnreadableCertificates(t *testing.T) {
	t.Parallel()
	r := root(t, "Root CA")
	ca := intermediate(t, r, "Intermediate CA")
	l := leaf(t, ca)
	workload := func() map[string][]byte {
		return map[string][]byte{tlsCert: pems(l, ca), tlsKey: keyPEM(t, l), tlsRoots: pems(r)}
	}
	damaged := []byte("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")
	for name, c := range map[string]struct {
		set  map[string][]byte
		want []Code
	}{
		"negative leaf":             {with(workload(), tlsCert, negative(t, l), pems(ca)), []Code{Malformed}},
		"negative intermediate":     {with(workload(), tlsCert, pems(l), negative(t, ca)), []Code{Malformed}},
		"negative root":             {with(workload(), tlsRoots, negative(t, r)), []Code{Malformed}},
		"negative root beside one":  {with(workload(), tlsRoots, negative(t, r), pems(root(t, "Other"))), []Code{Malformed}},
		"negative CA":               {with(with(cacerts(t, r, ca), caCert, negative(t, ca)), certChain, negative(t, ca), pems(r)), []Code{Malformed, Malformed}},
		"damaged intermediate":      {with(workload(), tlsCert, pems(l), damaged), []Code{DamagedPEM}},
		"key of another, all read":  {with(workload(), tlsKey, keyPEM(t, r)), []Code{KeyMismatch}},
		"no intermediate, all read": {with(workload(), tlsCert, pems(l)), []Code{NoPathToRoot}},
	} {
		found := Check(arrange(c.set), Options{Now: clock})
		if diff := cmp.Diff(c.want, codes(found)); diff != "" {
			t.Errorf("%s: %s%+v", name, diff, found)
		}
		if c.want[0] == Malformed && !strings.Contains(found[0].Reason, "serial number is negative") {
			t.Errorf("%s: %s", name, found[0].Reason)
		}
	}
}

// with returns a set with another file.
func with(set map[string][]byte, name string, parts ...[]byte) map[string][]byte {
	set[name] = slices.Concat(parts...)
	return set
}

// TestUnknownSignatures: a signature whose algorithm Go does not know is reported as such, and not
// as the signature of another key.
func TestUnknownSignatures(t *testing.T) {
	t.Parallel()
	r := issue(t, nil, rsaKey(t, 2048), caTemplate("Root CA", 10*year, nil))
	pss := leaf(t, r, func(c *x509.Certificate) { c.SignatureAlgorithm = x509.SHA256WithRSAPSS })
	salt := func(n byte) []byte { return []byte{0xa2, 3, 2, 1, n} } // of the parameters of RSA-PSS
	short := &pair{parse(t, bytes.ReplaceAll(pss.Raw, salt(32), salt(20))), pss.key}
	for name, c := range map[string]struct {
		leaf *pair
		want []Code
	}{
		"salt of 32 bytes": {pss, []Code{}},
		"salt of 20 bytes": {short, []Code{WeakSignature}},
	} {
		found := Check(arrange(map[string][]byte{tlsCert: pems(c.leaf), tlsKey: keyPEM(t, c.leaf), tlsRoots: pems(r)}), Options{Now: clock})
		if diff := cmp.Diff(c.want, codes(found)); diff != "" {
			t.Errorf("%s: %s%+v", name, diff, found)
		}
		for _, f := range found {
			if !strings.Contains(f.Reason, "RSA-PSS") {
				t.Errorf("%s: %s", name, f.Reason)
			}
		}
	}
}
