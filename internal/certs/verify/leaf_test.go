package verify

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/certs"
)

// TestBrokenLeaves breaks the certificate of a workload in one way each.
func TestBrokenLeaves(t *testing.T) {
	t.Parallel()
	r := root(t, "Root CA")
	ca := intermediate(t, r, "Intermediate CA")
	hour := []time.Time{clock.Add(-time.Hour), clock.Add(time.Hour)}
	dns := func(names ...string) change {
		return func(c *x509.Certificate) {
			c.URIs, c.DNSNames = nil, names
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}
	}
	tests := map[string]struct {
		leaf        change
		trustDomain string
		set         func(t *testing.T, l *pair, set map[string][]byte)
		want        []Code
	}{
		"good":                     {want: []Code{}},
		"good, trust domain":       {trustDomain: "cluster.local", want: []Code{}},
		"good, a server":           {leaf: dns("istiod.istio-system.svc"), want: []Code{}},
		"good, no roots":           {set: func(_ *testing.T, _ *pair, s map[string][]byte) { delete(s, tlsRoots) }, want: []Code{}},
		"key of another":           {set: func(t *testing.T, _ *pair, s map[string][]byte) { s[tlsKey] = keyPEM(t, r) }, want: []Code{KeyMismatch}},
		"no key":                   {set: func(_ *testing.T, _ *pair, s map[string][]byte) { delete(s, tlsKey) }, want: []Code{Incomplete}},
		"no intermediate":          {set: func(_ *testing.T, l *pair, s map[string][]byte) { s[tlsCert] = pems(l) }, want: []Code{NoPathToRoot}},
		"root between":             {set: func(_ *testing.T, l *pair, s map[string][]byte) { s[tlsCert] = pems(l, r, ca) }, want: []Code{WrongOrder}},
		"stranger behind":          {set: func(t *testing.T, l *pair, s map[string][]byte) { s[tlsCert] = pems(l, ca, leaf(t, ca)) }, want: []Code{Unrelated}},
		"twice":                    {set: func(_ *testing.T, l *pair, s map[string][]byte) { s[tlsCert] = pems(l, l, ca) }, want: []Code{Duplicate}},
		"expired":                  {leaf: func(c *x509.Certificate) { c.NotAfter = clock.Add(-time.Minute) }, want: []Code{Expired}},
		"not yet valid":            {leaf: func(c *x509.Certificate) { c.NotBefore = clock.Add(time.Minute) }, want: []Code{NotYetValid}},
		"expires soon":             {leaf: func(c *x509.Certificate) { c.NotBefore, c.NotAfter = clock.Add(-24*time.Hour), clock.Add(time.Hour) }, want: []Code{ExpiresSoon}},
		"outlives":                 {leaf: func(c *x509.Certificate) { c.NotAfter = clock.Add(9 * year) }, want: []Code{OutlivesSigner}},
		"no names":                 {leaf: dns(), want: []Code{NoSAN}},
		"another trust domain":     {trustDomain: "other.example", want: []Code{TrustDomain}},
		"no signing of handshakes": {leaf: func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment }, want: []Code{KeyUsage}},
		"workload as client only":  {leaf: func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[1:] }, want: []Code{ExtKeyUsage}},
		"workload as server only":  {leaf: func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] }, want: []Code{ExtKeyUsage}},
		"server for code": {leaf: func(c *x509.Certificate) {
			dns("a.b")(c)
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}
		}, want: []Code{ExtKeyUsage}},
		"unknown critical":      {leaf: critical, want: []Code{CriticalExt}},
		"URI of another scheme": {leaf: withURIs("https://cluster.local/ns/a/sa/b"), want: []Code{BadSPIFFEID}},
		"without a path":        {leaf: withURIs("spiffe://cluster.local"), want: []Code{BadSPIFFEID}},
		"revoked": {set: func(t *testing.T, l *pair, s map[string][]byte) {
			s[caCRL] = slices.Concat(crlPEM(t, ca, hour[0], hour[1], l), crlPEM(t, r, hour[0], hour[1]))
		}, want: []Code{Revoked}},
		"list of the intermediate missing": {set: func(t *testing.T, _ *pair, s map[string][]byte) {
			s[caCRL] = crlPEM(t, r, hour[0], hour[1])
		}, want: []Code{CRLMissing}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var changes []change
			if tc.leaf != nil {
				changes = append(changes, tc.leaf)
			}
			l := leaf(t, ca, changes...)
			set := map[string][]byte{tlsCert: pems(l, ca), tlsKey: keyPEM(t, l), tlsRoots: pems(r)}
			if tc.set != nil {
				tc.set(t, l, set)
			}
			got := Check(arrange(set), Options{Now: clock, TrustDomain: tc.trustDomain})
			if diff := cmp.Diff(tc.want, codes(got)); diff != "" {
				t.Errorf("%s\n%+v", diff, got)
			}
			complete(t, got)
		})
	}
}

func shown(t *testing.T, r *pair, chain ...*pair) []Code {
	t.Helper()
	f := NewFile("chain.pem", "chain.pem", pems(chain...))
	return codes(Check(Arrange("chain.pem", []File{f}), Options{Now: clock, Roots: []*x509.Certificate{r.Certificate}}))
}

func TestTwoURIsOrNone(t *testing.T) {
	t.Parallel()
	r := root(t, "Root CA")
	for name, tc := range map[string]struct {
		names change
		want  []Code
	}{
		"one":          {withURIs("spiffe://a/ns/b/sa/c"), []Code{}},
		"two":          {withURIs("spiffe://a/ns/b/sa/c", "spiffe://a/ns/b/sa/d"), []Code{ManyURIs}},
		"the same two": {withURIs("spiffe://a/ns/b/sa/c", "spiffe://a/ns/b/sa/c"), []Code{ManyURIs}},
		"none":         {func(c *x509.Certificate) { c.URIs = nil }, []Code{NoSAN}},
	} {
		if diff := cmp.Diff(tc.want, shown(t, r, leaf(t, r, tc.names))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestLeafWithRightsOfACA(t *testing.T) {
	t.Parallel()
	r := root(t, "Root CA")
	for name, c := range map[string]change{
		"CA":          func(c *x509.Certificate) { c.IsCA = true },
		"keyCertSign": func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign },
		"cRLSign":     func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCRLSign },
	} {
		if diff := cmp.Diff([]Code{LeafIsCA}, shown(t, r, leaf(t, r, c))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestBadSPIFFEIDs(t *testing.T) {
	t.Parallel()
	r := root(t, "Root CA")
	for _, id := range []string{
		"spiffe://cluster.local/ns//sa/web", "spiffe://cluster.local//ns/a", "spiffe://cluster.local/ns/a/", "spiffe://cluster.local/",
		"spiffe://cluster.local/ns/./sa/web", "spiffe://cluster.local/ns/../sa/web",
		"spiffe://cluster.local/ns/a?x=y", "spiffe://cluster.local/ns/a#x",
		"spiffe://cluster.local:8080/ns/a", "spiffe://user@cluster.local/ns/a",
		"spiffe://Cluster.local/ns/a/sa/b", "SPIFFE://cluster.local/ns/a/sa/b", "spiffe:///ns/a",
		"spiffe://cluster.local/ns/%61/sa/b", "spiffe://cluster.local/ns/ü", "https://cluster.local/ns/a",
		"spiffe://cluster.local/" + strings.Repeat("a", 2048),
	} {
		der := leafTemplate(withURIs(id))
		cert, err := x509.CreateCertificate(rand.Reader, &der, r.Certificate, r.key.Public(), r.key)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := x509.ParseCertificate(cert)
		if err != nil {
			continue // the parser refuses it already
		}
		if diff := cmp.Diff([]Code{BadSPIFFEID}, shown(t, r, &pair{parsed, r.key})); diff != "" {
			t.Errorf("%.60s: %s", id, diff)
		}
	}
}

// TestOtherRoot: a chain must lead to a given root, not to another root of the same
// name.
func TestOtherRoot(t *testing.T) {
	t.Parallel()
	r, twin, other := root(t, "Root CA"), root(t, "Root CA"), root(t, "Other")
	ca := intermediate(t, r, "Intermediate CA")
	l := leaf(t, ca)
	for name, tc := range map[string]struct {
		trusted *pair
		chain   []*pair
		want    []Code
	}{
		"its root":              {r, []*pair{l, ca}, []Code{}},
		"its root shown too":    {r, []*pair{l, ca, r}, []Code{}},
		"another":               {other, []*pair{l, ca}, []Code{NoPathToRoot}},
		"one of the same name":  {twin, []*pair{l, ca}, []Code{NoPathToRoot}},
		"root shown, untrusted": {other, []*pair{l, ca, r}, []Code{RootNotInBundle}},
	} {
		if diff := cmp.Diff(tc.want, shown(t, tc.trusted, tc.chain...)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestWeakKeys checks leaves with weak public keys, whose private keys are unknown.
func TestWeakKeys(t *testing.T) {
	t.Parallel()
	r := root(t, "Root CA")
	modulus := func(bits uint) *big.Int {
		n := new(big.Int).Lsh(big.NewInt(1), bits-1)
		return n.SetBit(n, 0, 1)
	}
	for name, key := range map[string]crypto.PublicKey{
		"1024 bits":     &rsa.PublicKey{N: modulus(1024), E: 65537},
		"2047 bits":     &rsa.PublicKey{N: modulus(2047), E: 65537},
		"16384 bits":    &rsa.PublicKey{N: modulus(16384), E: 65537},
		"exponent 1":    &rsa.PublicKey{N: modulus(2048), E: 1},
		"even exponent": &rsa.PublicKey{N: modulus(2048), E: 65536},
		"huge exponent": &rsa.PublicKey{N: modulus(2048), E: 1<<40 + 1},
	} {
		template := leafTemplate()
		der, err := x509.CreateCertificate(rand.Reader, &template, r.Certificate, key, r.key)
		if err != nil {
			t.Fatal(err)
		}
		f := NewFile("leaf.pem", "leaf.pem", encode("CERTIFICATE", der))
		got := Check(Arrange("leaf.pem", []File{f}), Options{Now: clock, Roots: []*x509.Certificate{r.Certificate}})
		if diff := cmp.Diff([]Code{WeakKey}, codes(got)); diff != "" {
			t.Errorf("%s: %s\n%+v", name, diff, got)
		}
	}
}

// TestLoose checks files with unknown names.
func TestLoose(t *testing.T) {
	t.Parallel()
	r, other := root(t, "Root CA"), root(t, "Other")
	ca := intermediate(t, r, "Intermediate CA")
	l := leaf(t, ca)
	expiredRoot := root(t, "Old", func(c *x509.Certificate) { c.NotAfter = clock.Add(-time.Hour) })
	for name, tc := range map[string]struct {
		texts [][]byte
		roots []*pair
		want  []Code
	}{
		"a bundle":                      {[][]byte{pems(r, other)}, nil, []Code{}},
		"a bundle with an old root":     {[][]byte{pems(r, expiredRoot)}, nil, []Code{Expired}},
		"a bundle with one twice":       {[][]byte{pems(r, other, r)}, nil, []Code{Duplicate}},
		"a chain alone":                 {[][]byte{pems(l, ca)}, nil, []Code{}},
		"a chain with its root":         {[][]byte{pems(l, ca, r)}, nil, []Code{}},
		"a chain the wrong way":         {[][]byte{pems(r, ca, l)}, nil, []Code{WrongOrder}},
		"a chain with another root":     {[][]byte{pems(l, ca, other)}, nil, []Code{NoPathToRoot}},
		"a chain without its middle":    {[][]byte{pems(l, r)}, nil, []Code{NoPathToRoot}},
		"a leaf with its key":           {[][]byte{slices.Concat(pems(l, ca), keyPEM(t, l))}, nil, []Code{}},
		"a leaf with another key":       {[][]byte{slices.Concat(pems(l, ca), keyPEM(t, r))}, nil, []Code{KeyMismatch}},
		"a leaf and its key, two files": {[][]byte{pems(l, ca), keyPEM(t, l)}, nil, []Code{}},
		"a key alone":                   {[][]byte{keyPEM(t, l)}, nil, []Code{}},
		"a list alone":                  {[][]byte{crlPEM(t, r, clock.Add(-time.Hour), clock.Add(time.Hour))}, nil, []Code{}},
		"nothing":                       {[][]byte{[]byte("hello")}, nil, []Code{NoPEM}},
		"path too long":                 {[][]byte{pems(leaf(t, intermediate(t, ca, "Below")), intermediate(t, ca, "Below"))}, []*pair{r}, []Code{NoPathToRoot}},
	} {
		var files []File
		for i, text := range tc.texts {
			files = append(files, NewFile(string(rune('a'+i))+".pem", "", text))
		}
		var roots []*x509.Certificate
		for _, p := range tc.roots {
			roots = append(roots, p.Certificate)
		}
		got := Check(Arrange("dir", files), Options{Now: clock, Roots: roots})
		if diff := cmp.Diff(tc.want, codes(got)); diff != "" {
			t.Errorf("%s: %s\n%+v", name, diff, got)
		}
	}
}

// TestPathLength: a CA below another CA that may sign leaves only.
func TestPathLength(t *testing.T) {
	t.Parallel()
	r := root(t, "Root CA")
	ca := intermediate(t, r, "Intermediate CA")
	below := intermediate(t, ca, "Below")
	if diff := cmp.Diff([]Code{PathLength}, shown(t, r, leaf(t, below), below, ca)); diff != "" {
		t.Error(diff)
	}
	// A constraint reaches names below it, whatever stands between.
	tight := root(t, "Tight", func(c *x509.Certificate) { c.PermittedURIDomains = []string{"other.example"} })
	ca = intermediate(t, tight, "Intermediate CA")
	// In files without a layout, too.
	for name, tc := range map[string]struct {
		narrow change
		want   Code
	}{
		"IP": {func(c *x509.Certificate) {
			c.PermittedIPRanges = []*net.IPNet{{IP: net.IP{10, 0, 0, 0}, Mask: net.CIDRMask(8, 32)}}
		}, NameConstraint},
		"mail": {func(c *x509.Certificate) { c.PermittedEmailAddresses = []string{"invalid"} }, NameConstraint},
	} {
		narrow := root(t, "Narrow", tc.narrow)
		l := leaf(t, narrow, func(c *x509.Certificate) {
			c.IPAddresses, c.EmailAddresses = []net.IP{{192, 0, 2, 1}}, []string{"a@example.com"}
		})
		set := Arrange("dir", []File{NewFile("a.pem", "a.pem", pems(l)), NewFile("b.pem", "b.pem", pems(narrow))})
		if diff := cmp.Diff([]Code{tc.want}, codes(Check(set, Options{Now: clock}))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if diff := cmp.Diff([]Code{NameConstraint}, shown(t, tight, leaf(t, ca), ca)); diff != "" {
		t.Error(diff)
	}
}

// TestRootLayout checks a root with its key, as certs root-ca writes it.
func TestRootLayout(t *testing.T) {
	t.Parallel()
	r, other := root(t, "Root CA"), root(t, "Other")
	for name, tc := range map[string]struct {
		set  map[string][]byte
		want []Code
	}{
		"good":        {map[string][]byte{rootCert: pems(r), rootKey: keyPEM(t, r)}, []Code{}},
		"two roots":   {map[string][]byte{rootCert: pems(r, other), rootKey: keyPEM(t, r)}, []Code{}},
		"wrong key":   {map[string][]byte{rootCert: pems(r), rootKey: keyPEM(t, other)}, []Code{KeyMismatch}},
		"no root":     {map[string][]byte{rootKey: keyPEM(t, r)}, []Code{Incomplete}},
		"self-signed": {map[string][]byte{caCert: pems(r), caKey: keyPEM(t, r), rootCert: pems(r), certChain: nil, leafKey: nil}, []Code{}},
		"TLS layout":  {map[string][]byte{tlsCert: pems(intermediateOf(t, r)...), tlsKey: nil, tlsRoots: pems(r)}, []Code{Incomplete}},
	} {
		if diff := cmp.Diff(tc.want, codes(Check(arrange(tc.set), Options{Now: clock}))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func intermediateOf(t *testing.T, r *pair) []*pair {
	t.Helper()
	return []*pair{intermediate(t, r, "Intermediate CA")}
}

// TestExposed: a readable private key is reported once for each file, and only if the
// file has a key.
func TestExposed(t *testing.T) {
	t.Parallel()
	r := root(t, "Root CA")
	key, cert := NewFile("root-key.pem", "root-key.pem", keyPEM(t, r)), NewFile("root-cert.pem", "root-cert.pem", pems(r))
	key.Exposed, cert.Exposed = "its mode is 0644", "its mode is 0644"
	got := Check(Arrange("dir", []File{key, cert}), Options{Now: clock})
	if diff := cmp.Diff([]Code{ExposedKey}, codes(got)); diff != "" {
		t.Error(diff)
	}
	unread := File{Name: "root-key.pem", Place: "dir/root-key.pem", Unreadable: "permission denied"}
	got = Check(Arrange("dir", []File{unread, cert}), Options{Now: clock})
	if !slices.Contains(codes(got), Unreadable) {
		t.Errorf("got %+v", got)
	}
	set := cacerts(t, r, intermediate(t, r, "Intermediate CA"))
	refused := File{Name: caKey, Place: "dir/ca-key.pem", Unreadable: "refused", Exposed: "its mode is 0644"}
	got = Check(Arrange("dir", []File{NewFile(caCert, caCert, set[caCert]), refused, NewFile(certChain, certChain, set[certChain]), NewFile(rootCert, rootCert, set[rootCert])}), Options{Now: clock})
	if diff := cmp.Diff([]Code{ExposedKey}, codes(got)); diff != "" {
		t.Errorf("of a key that was not read for who may read it: %s", diff)
	}
}

// TestOpenDirectory: each replaceable key is one warning; public files are none.
func TestOpenDirectory(t *testing.T) {
	t.Parallel()
	r := root(t, "Root CA")
	key, cert := NewFile("root-key.pem", "root-key.pem", keyPEM(t, r)), NewFile("root-cert.pem", "root-cert.pem", pems(r))
	key.Replaceable, cert.Replaceable = "mode 0777", "mode 0777"
	got := Check(Arrange("dir", []File{key, cert}), Options{Now: clock})
	if diff := cmp.Diff([]Code{OpenDirectory}, codes(got)); diff != "" || got[0].Severity != Warning {
		t.Errorf("%v: %s", got, diff)
	}
}

// TestCheckIsBounded: many certificates of one name and many BEGINs end in reasonable
// time.
func TestCheckIsBounded(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	var all []*pair
	for range 300 {
		all = append(all, issue(t, nil, key, caTemplate("same", year, nil)))
	}
	stranger := leaf(t, root(t, "same"))
	f := NewFile("bomb.pem", "bomb.pem", pems(append([]*pair{stranger, leaf(t, all[0])}, all...)...))
	got := Check(Arrange("bomb.pem", []File{f}), Options{Now: clock, Roots: []*x509.Certificate{stranger.Certificate}})
	if len(got) == 0 {
		t.Error("found nothing")
	}
	blocks := certs.Scan([]byte(strings.Repeat("-----BEGIN CERTIFICATE-----\n", 300_000)))
	if last := blocks[len(blocks)-1]; len(blocks) != certs.MaxBlocks+1 || last.Fault != certs.FaultTooMany {
		t.Errorf("%d blocks, the last: %+v", len(blocks), last)
	}
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	if err := Refuse([]Finding{{Severity: Warning, Code: ExpiresSoon}}); err != nil {
		t.Errorf("a warning refuses: %v", err)
	}
	err := Refuse([]Finding{
		{Severity: Error, Code: KeyMismatch, Place: "ca-key.pem:1", Reason: "it is another's", Fix: "put it back"},
		{Severity: Error, Code: Expired},
		{Severity: Warning, Code: Duplicate},
	})
	if want := "ca-key.pem:1: key-mismatch: it is another's; put it back (and 1 more: expired)"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
