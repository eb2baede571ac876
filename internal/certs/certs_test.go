package certs

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/mesh"
)

// now is the time of all tests.
var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

const year = 365 * 24 * time.Hour

func spec(cn string) CASpec {
	return CASpec{Algorithm: ECDSAP256, Organization: "example", CommonName: cn, TTL: 10 * year}
}

func newRoot(tb testing.TB) *Authority {
	tb.Helper()
	root, err := NewRoot(spec("Root CA"), now, rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return root
}

func newIntermediate(tb testing.TB, root *Authority, cluster mesh.ClusterID) *Authority {
	tb.Helper()
	a, err := root.NewIntermediate(cluster, spec("Intermediate CA"), now, rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

func newKey(tb testing.TB, a Algorithm) crypto.Signer {
	tb.Helper()
	key, err := GenerateKey(a)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func caller() mesh.Caller {
	return mesh.Caller{
		Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "sample", ServiceAccount: "helloworld"},
		Cluster:  "cluster1",
	}
}

// verifyLeaf verifies a leaf as a peer does, for one use.
func verifyLeaf(tb testing.TB, leaf *x509.Certificate, a *Authority, use x509.ExtKeyUsage, at time.Time) error {
	tb.Helper()
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots:         Pool(a.Roots),
		Intermediates: Pool(a.Chain),
		CurrentTime:   at,
		KeyUsages:     []x509.ExtKeyUsage{use},
	})
	return err
}

func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error is %v, want one with %q", err, want)
	}
}

func TestKeys(t *testing.T) {
	for _, a := range Algorithms() {
		if testing.Short() && (a == RSA3072 || a == RSA4096) {
			continue // such keys take long to make
		}
		t.Run(string(a), func(t *testing.T) {
			t.Parallel()
			key := newKey(t, a)
			if _, err := ParseCSR(newCSR(t, key)); err != nil {
				t.Errorf("the issuer would refuse this key: %v", err)
			}
			data, err := EncodeKey(key)
			if err != nil {
				t.Fatal(err)
			}
			back, err := ParseKey(data)
			if err != nil {
				t.Fatal(err)
			}
			if !SameKey(back.Public(), key.Public()) {
				t.Error("another key came back")
			}
		})
	}
	_, err := GenerateKey("")
	wantError(t, err, "unknown key algorithm")
}

func TestParseKey(t *testing.T) {
	ec := newKey(t, ECDSAP256)
	good, err := EncodeKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	parameters := "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
	for _, ok := range [][]byte{good, append([]byte(parameters), good...), bytes.ReplaceAll(good, []byte("\n"), []byte("\r\n"))} {
		if _, err := ParseKey(ok); err != nil {
			t.Errorf("%v for\n%s", err, ok)
		}
	}
	for want, data := range map[string]string{
		"no PEM block":         "",
		"holds 2 PEM blocks":   string(good) + string(good),
		"is encrypted":         "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
		"is damaged":           "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
		`a PEM block "PUBLIC"`: "-----BEGIN PUBLIC-----\nAAAA\n-----END PUBLIC-----\n",
		"1 of 1 PEM blocks":    strings.Replace(string(good), "END", "FIN", 1),
	} {
		_, err := ParseKey([]byte(data))
		wantError(t, err, want)
	}
}

func TestAuthorities(t *testing.T) {
	root := newRoot(t)
	a := newIntermediate(t, root, "cluster1")

	if got, want := root.Cert.Subject.String(), "CN=Root CA,O=example"; got != want {
		t.Errorf("root is %s, want %s", got, want)
	}
	if got, want := a.Cert.Subject.String(), "CN=Intermediate CA,O=example,L=cluster1"; got != want {
		t.Errorf("intermediate is %s, want %s", got, want)
	}
	if !a.Cert.IsCA || a.Cert.MaxPathLen != 0 || !a.Cert.MaxPathLenZero {
		t.Error("the intermediate is not a CA of path length 0")
	}
	if diff := cmp.Diff([]string{"istiod.istio-system.svc"}, a.Cert.DNSNames); diff != "" {
		t.Error(diff)
	}
	if a.Cert.KeyUsage != root.Cert.KeyUsage || a.Cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		t.Errorf("key usages are %b and %b", root.Cert.KeyUsage, a.Cert.KeyUsage)
	}
	if len(root.Chain) != 0 || len(a.Chain) != 1 || !a.Chain[0].Equal(a.Cert) {
		t.Errorf("chains hold %d and %d certificates, want 0 and 1", len(root.Chain), len(a.Chain))
	}
	_, err := a.NewIntermediate("below", spec("x"), now, rand.Reader)
	wantError(t, err, "the path length of a CA above it forbids it")
	_, err = root.NewIntermediate("Not.A.Label", spec("x"), now, rand.Reader)
	wantError(t, err, `"Not.A.Label" is not a DNS label`)
}

func TestIntermediateEndsWithRoot(t *testing.T) {
	s := spec("Root CA")
	s.TTL = year
	root, err := NewRoot(s, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := newIntermediate(t, root, "cluster1") // asks for ten years
	if !a.Cert.NotAfter.Equal(root.Cert.NotAfter) {
		t.Errorf("intermediate ends %v, root %v", a.Cert.NotAfter, root.Cert.NotAfter)
	}
	_, err = root.NewIntermediate("cluster1", spec("x"), now.Add(2*year), rand.Reader)
	wantError(t, err, "expired at 2027-11-20T12:00:00Z")
}

func TestBadSpecs(t *testing.T) {
	for want, change := range map[string]func(*CASpec){
		"want more than 0":                       func(s *CASpec) { s.TTL = 0 },
		"needs an organization or a common name": func(s *CASpec) { s.Organization, s.CommonName = "", "" },
		"unknown key algorithm":                  func(s *CASpec) { s.Algorithm = "dsa" },
	} {
		s := spec("x")
		change(&s)
		_, err := NewRoot(s, now, rand.Reader)
		wantError(t, err, want)
	}
	_, err := NewRoot(spec("x"), now, iotest.ErrReader(fmt.Errorf("no entropy")))
	wantError(t, err, "no entropy")
}

// TestLeavesVerify: CAs with every kind of key sign leaves that verify for both uses.
func TestLeavesVerify(t *testing.T) {
	for _, alg := range []Algorithm{ECDSAP256, ECDSAP384, RSA2048, Ed25519} {
		t.Run(string(alg), func(t *testing.T) {
			t.Parallel()
			s := spec("CA")
			s.Algorithm = alg
			root, err := NewRoot(s, now, rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			a, err := root.NewIntermediate("cluster1", s, now, rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			for _, signer := range []*Authority{root, a} {
				leaf, err := signer.SignLeaf(newKey(t, ECDSAP256).Public(), caller(), time.Hour, now, rand.Reader)
				if err != nil {
					t.Fatal(err)
				}
				for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
					if err := verifyLeaf(t, leaf, signer, use, now); err != nil {
						t.Errorf("use %v: %v", use, err)
					}
				}
				if err := verifyLeaf(t, leaf, newRoot(t), x509.ExtKeyUsageAny, now); err == nil {
					t.Error("verifies against a root that did not sign it")
				}
			}
		})
	}
}

func TestLeafFields(t *testing.T) {
	a := newIntermediate(t, newRoot(t), "cluster1")
	leaf, err := a.SignLeaf(newKey(t, ECDSAP256).Public(), caller(), time.Hour, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != "spiffe://cluster.local/ns/sample/sa/helloworld" {
		t.Errorf("URIs are %v", leaf.URIs)
	}
	if n := len(leaf.DNSNames) + len(leaf.EmailAddresses) + len(leaf.IPAddresses); n != 0 || leaf.Subject.String() != "" {
		t.Errorf("leaf has %d other names and the subject %q", n, leaf.Subject)
	}
	for _, ext := range leaf.Extensions {
		if ext.Id.Equal(asn1.ObjectIdentifier{2, 5, 29, 17}) && !ext.Critical {
			t.Error("the names are not critical though the subject is empty")
		}
	}
	if leaf.IsCA || !leaf.BasicConstraintsValid {
		t.Error("leaf must say that it is no CA")
	}
	if want := x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment; leaf.KeyUsage != want {
		t.Errorf("key usage is %b, want %b", leaf.KeyUsage, want)
	}
	if diff := cmp.Diff([]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, leaf.ExtKeyUsage); diff != "" {
		t.Error(diff)
	}
	if want := now.Add(-2 * time.Minute); !leaf.NotBefore.Equal(want) {
		t.Errorf("NotBefore is %v, want %v", leaf.NotBefore, want)
	}
	if want := now.Add(time.Hour); !leaf.NotAfter.Equal(want) {
		t.Errorf("NotAfter is %v, want %v", leaf.NotAfter, want)
	}
	if got, ok := ClusterOf(leaf); got != "cluster1" || !ok {
		t.Errorf("ClusterOf = %q, %v", got, ok)
	}
}

// TestLeafEndsWithSigner: a leaf outlives neither its signer nor the CAs above.
func TestLeafEndsWithSigner(t *testing.T) {
	a := newIntermediate(t, newRoot(t), "cluster1")
	end := a.Cert.NotAfter
	leaf, err := a.SignLeaf(newKey(t, ECDSAP256).Public(), caller(), 24*time.Hour, end.Add(-time.Hour), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if !leaf.NotAfter.Equal(end) {
		t.Errorf("leaf ends %v, signer %v", leaf.NotAfter, end)
	}
	for want, at := range map[string]time.Time{"expired": end.Add(time.Second), "valid only from": now.Add(-year)} {
		_, err := a.SignLeaf(newKey(t, ECDSAP256).Public(), caller(), time.Hour, at, rand.Reader)
		wantError(t, err, want)
	}
}

func TestSignLeafRefuses(t *testing.T) {
	a, key := newRoot(t), newKey(t, ECDSAP256)
	for want, change := range map[string]func(*mesh.Caller){
		"want spiffe://":            func(c *mesh.Caller) { c.Identity.Namespace = "a/sa/b" },
		"not a SPIFFE trust domain": func(c *mesh.Caller) { c.Identity.TrustDomain = "" },
		"is not a DNS name":         func(c *mesh.Caller) { c.Identity.ServiceAccount = "%2e" },
		"is not 1 to 253 visible":   func(c *mesh.Caller) { c.Cluster = "a\nb" },
	} {
		c := caller()
		change(&c)
		_, err := a.SignLeaf(key.Public(), c, time.Hour, now, rand.Reader)
		wantError(t, err, want)
	}
	_, err := a.SignLeaf(key.Public(), caller(), 0, now, rand.Reader)
	wantError(t, err, "life time is 0s")
	_, err = a.SignLeaf("no key", caller(), time.Hour, now, rand.Reader)
	wantError(t, err, "unsupported public key")
	_, err = a.SignLeaf(key.Public(), caller(), time.Hour, now, bytes.NewReader(nil))
	wantError(t, err, "serial number")
	a.Key = newKey(t, ECDSAP256)
	_, err = a.SignLeaf(key.Public(), caller(), time.Hour, now, rand.Reader)
	wantError(t, err, "doesn't match parent's PublicKey")
}

func TestSignServer(t *testing.T) {
	a := newIntermediate(t, newRoot(t), "cluster1")
	names := []string{"istiod.istio-system.svc", "127.1.0.1", "::1"}
	leaf, err := a.SignServer(newKey(t, ECDSAP256).Public(), names, time.Hour, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"istiod.istio-system.svc", "127.1.0.1", "[::1]"} {
		if err := leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if err := verifyLeaf(t, leaf, a, x509.ExtKeyUsageServerAuth, now); err != nil {
		t.Error(err)
	}
	if err := verifyLeaf(t, leaf, a, x509.ExtKeyUsageClientAuth, now); err == nil {
		t.Error("a server certificate passes for a client's")
	}
	if _, ok := ClusterOf(leaf); ok {
		t.Error("a server certificate names a cluster")
	}
	for _, bad := range [][]string{nil, {"*.example.com"}, {"a b"}, {""}} {
		if _, err := a.SignServer(newKey(t, ECDSAP256).Public(), bad, time.Hour, now, rand.Reader); err == nil {
			t.Errorf("names %q are accepted", bad)
		}
	}
}

func TestClusterOf(t *testing.T) {
	utf8 := func(s string) []byte {
		ext, err := asn1.MarshalWithParams(s, "utf8")
		if err != nil {
			t.Fatal(err)
		}
		return ext
	}
	for _, test := range []struct {
		name     string
		value    []byte
		critical bool
		want     mesh.ClusterID
	}{
		{"DNS label", utf8("cluster1"), false, "cluster1"},
		{"ARN", utf8("arn:aws:eks:eu-west-1:1:cluster/a_b"), false, "arn:aws:eks:eu-west-1:1:cluster/a_b"},
		{"longest", utf8(strings.Repeat("a", 253)), false, mesh.ClusterID(strings.Repeat("a", 253))},
		{"too long", utf8(strings.Repeat("a", 254)), false, ""},
		{"empty", utf8(""), false, ""},
		{"control character", utf8("a\x00b"), false, ""},
		{"not ASCII", utf8("clüster"), false, ""},
		{"critical", utf8("cluster1"), true, ""},
		{"trailing byte", append(utf8("cluster1"), 0), false, ""},
		{"PrintableString", []byte{asn1.TagPrintableString, 1, 'a'}, false, ""},
		{"length in long form", []byte{asn1.TagUTF8String, 0x81, 1, 'a'}, false, ""},
		{"constructed", []byte{0x20 | asn1.TagUTF8String, 3, asn1.TagUTF8String, 1, 'a'}, false, ""},
		{"other class", []byte{0x80 | asn1.TagUTF8String, 1, 'a'}, false, ""},
		{"cut off", utf8("cluster1")[:5], false, ""},
		{"no value", nil, false, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			cert := &x509.Certificate{Extensions: extensions(clusterOID(), test.critical, test.value)}
			got, ok := ClusterOf(cert)
			if got != test.want || ok != (test.want != "") {
				t.Errorf("ClusterOf = %q, %v, want %q", got, ok, test.want)
			}
		})
	}
	if _, ok := ClusterOf(&x509.Certificate{}); ok {
		t.Error("a certificate without the extension names a cluster")
	}
}

// TestSerials: serial numbers have all 128 bits of the source and are never zero.
func TestSerials(t *testing.T) {
	serial, err := newSerial(bytes.NewReader(bytes.Repeat([]byte{0xff}, 16)))
	if err != nil || serial.BitLen() != 128 || serial.Sign() <= 0 {
		t.Errorf("serial is %v (%d bits), %v", serial, serial.BitLen(), err)
	}
	if _, err := newSerial(bytes.NewReader(make([]byte, 16))); err == nil {
		t.Error("serial number zero")
	}
	_, err = newSerial(bytes.NewReader(make([]byte, 15)))
	wantError(t, err, "unexpected EOF")

	a, key := newRoot(t), newKey(t, ECDSAP256)
	first, err := a.SignLeaf(key.Public(), caller(), time.Hour, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	second, err := a.SignLeaf(key.Public(), caller(), time.Hour, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if first.SerialNumber.Cmp(second.SerialNumber) == 0 {
		t.Error("two leaves share a serial number")
	}
}

func TestParseCerts(t *testing.T) {
	root := newRoot(t)
	one := EncodeCerts(root.Cert)
	text := append([]byte("subject=O = example\n"), one...)
	for _, ok := range [][]byte{one, text, bytes.ReplaceAll(one, []byte("\n"), []byte("\r\n"))} {
		got, err := ParseCerts(ok)
		if err != nil || len(got) != 1 || !got[0].Equal(root.Cert) {
			t.Errorf("ParseCerts = %d certificates, %v for\n%s", len(got), err, ok)
		}
	}
	retyped := func(name string) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: name, Bytes: root.Cert.Raw})
	}
	for want, data := range map[string][]byte{
		"holds no PEM block":        []byte("hello"),
		"convert it with openssl":   retyped("TRUSTED CERTIFICATE"),
		`PEM block 2 is "X509 CRL"`: append(EncodeCerts(root.Cert), retyped("X509 CRL")...),
		"1 of 2 PEM blocks are dam": append(bytes.Replace(one, []byte("END"), []byte("FIN"), 1), one...),
		"certificate 1: ":           pem.EncodeToMemory(&pem.Block{Type: blockCert, Bytes: []byte("junk")}),
	} {
		_, err := ParseCerts(data)
		wantError(t, err, want)
	}
}

func TestFingerprint(t *testing.T) {
	// printf a | sha256sum
	want := "CA:97:81:12:CA:1B:BD:CA:FA:C2:31:B3:9A:23:DC:4D:A7:86:EF:F8:14:7C:4E:72:B9:80:77:85:AF:EE:48:BB"
	if got := Fingerprint(&x509.Certificate{Raw: []byte("a")}); got != want {
		t.Errorf("fingerprint is %s, want %s", got, want)
	}
}

// extensions is a list of one.
func extensions(oid asn1.ObjectIdentifier, critical bool, value []byte) []pkix.Extension {
	return []pkix.Extension{{Id: oid, Critical: critical, Value: value}}
}

// TestSerialNumbers: a million serial numbers do not repeat and have at least 64 random
// bits.
func TestSerialNumbers(t *testing.T) {
	count := 1_000_000
	if testing.Short() {
		count = 10_000
	}
	seen := make(map[[16]byte]bool, count)
	var ones [128]int
	for range count {
		n, err := newSerial(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		var b [16]byte
		n.FillBytes(b[:])
		if seen[b] {
			t.Fatalf("serial number %x came twice", b)
		}
		seen[b] = true
		for bit := range ones {
			ones[bit] += int(b[bit/8] >> (bit % 8) & 1)
		}
	}
	// Each bit is a coin: eight standard deviations from the middle is never.
	for bit, n := range ones {
		if d := float64(n)/float64(count) - 0.5; d*d*float64(count) > 16 {
			t.Errorf("bit %d is 1 in %d of %d", bit, n, count)
		}
	}
}

func TestSignNames(t *testing.T) {
	root := newRoot(t)
	a := newIntermediate(t, root, "cluster1")
	key := newKey(t, ECDSAP256)
	leaf, err := a.SignNames(key.Public(), LeafSpec{
		SPIFFEID: "spiffe://east.example/vm/42", DNSNames: []string{"*.example.com", "db"},
		IPAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		TTL:         100 * year,
	}, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != "spiffe://east.example/vm/42" || len(leaf.DNSNames) != 2 || len(leaf.IPAddresses) != 2 {
		t.Errorf("names are %v %v %v", leaf.URIs, leaf.DNSNames, leaf.IPAddresses)
	}
	if !leaf.NotAfter.Equal(a.Cert.NotAfter) || leaf.IsCA || leaf.Subject.String() != "" {
		t.Errorf("until %v, CA %v, subject %q", leaf.NotAfter, leaf.IsCA, leaf.Subject)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if err := verifyLeaf(t, leaf, a, usage, now); err != nil {
			t.Error(err)
		}
	}

	constrained := spec("Root CA")
	constrained.PermittedURIDomains = []string{"cluster.local"}
	constrained.PermittedDNSDomains = []string{"svc"}
	narrow, err := NewRoot(constrained, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		by   *Authority
		spec LeafSpec
		want string
	}{
		"no names":             {a, LeafSpec{TTL: 1}, "needs a SPIFFE id"},
		"no life time":         {a, LeafSpec{DNSNames: []string{"a"}}, "life time is 0s"},
		"trust domain alone":   {a, LeafSpec{SPIFFEID: "spiffe://a", TTL: 1}, "names a trust domain"},
		"upper case":           {a, LeafSpec{SPIFFEID: "spiffe://A/b", TTL: 1}, "trust domain characters"},
		"query":                {a, LeafSpec{SPIFFEID: "spiffe://a/b?c", TTL: 1}, "path segment characters"},
		"dot segment":          {a, LeafSpec{SPIFFEID: "spiffe://a/../b", TTL: 1}, "dot segments"},
		"port":                 {a, LeafSpec{SPIFFEID: "spiffe://a:1/b", TTL: 1}, "trust domain characters"},
		"escape":               {a, LeafSpec{SPIFFEID: "spiffe://a/%62", TTL: 1}, "path segment characters"},
		"too long":             {a, LeafSpec{SPIFFEID: "spiffe://a/" + strings.Repeat("b", 2048), TTL: 1}, "longer than 2048"},
		"DNS":                  {a, LeafSpec{DNSNames: []string{"a b"}, TTL: 1}, "not a DNS name"},
		"two wildcards":        {a, LeafSpec{DNSNames: []string{"*.*.a"}, TTL: 1}, "not a DNS name"},
		"other trust domain":   {narrow, LeafSpec{SPIFFEID: "spiffe://other/b", TTL: 1}, "peers would refuse it"},
		"domain not permitted": {narrow, LeafSpec{DNSNames: []string{"example.com"}, TTL: 1}, "peers would refuse it"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := test.by.SignNames(key.Public(), test.spec, now, rand.Reader)
			wantError(t, err, test.want)
		})
	}
	for _, ok := range []LeafSpec{{SPIFFEID: "spiffe://cluster.local/b", TTL: time.Hour}, {DNSNames: []string{"a.b.svc"}, TTL: time.Hour}} {
		if _, err := narrow.SignNames(key.Public(), ok, now, rand.Reader); err != nil {
			t.Error(err)
		}
	}
}
