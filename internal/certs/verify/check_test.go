package verify

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/certs"
)

// codes returns the codes of findings.
func codes(findings []Finding) []Code {
	out := []Code{}
	for _, f := range findings {
		out = append(out, f.Code)
	}
	return out
}

// TestBrokenAuthorities breaks the valid files of a CA in one way each, and expects
// exactly that finding.
func TestBrokenAuthorities(t *testing.T) {
	t.Parallel()
	r := root(t, "Root CA")
	ca := intermediate(t, r, "Intermediate CA")
	other := root(t, "Other Root")
	tests := map[string]struct {
		change  func(t *testing.T, set map[string][]byte)
		options func(*Options)
		want    []Code
	}{
		"good":           {want: []Code{}},
		"good with CRLF": {change: func(_ *testing.T, s map[string][]byte) { crlf(s) }, want: []Code{}},
		"good with text": {change: func(_ *testing.T, s map[string][]byte) {
			s[caCert] = append([]byte("Certificate:\n    Data:\n"), s[caCert]...)
		}, want: []Code{}},
		"good, two roots": {change: func(_ *testing.T, s map[string][]byte) {
			s[rootCert] = pems(r, other)
			s[certChain] = pems(ca, r, other)
		}, want: []Code{}},
		"good, chain alone": {change: func(_ *testing.T, s map[string][]byte) { s[certChain] = pems(ca) }, want: []Code{}},
		"good, with lists": {change: func(t *testing.T, s map[string][]byte) {
			s[caCRL] = slices.Concat(crlPEM(t, r, clock.Add(-time.Hour), clock.Add(time.Hour)), crlPEM(t, ca, clock.Add(-time.Hour), clock.Add(time.Hour)))
		}, want: []Code{}},
		"key of another":   {change: func(t *testing.T, s map[string][]byte) { s[caKey] = keyPEM(t, other) }, want: []Code{KeyMismatch}},
		"no key":           {change: func(_ *testing.T, s map[string][]byte) { delete(s, caKey) }, want: []Code{Incomplete}},
		"no certificate":   {change: func(_ *testing.T, s map[string][]byte) { delete(s, caCert) }, want: []Code{Incomplete}},
		"no chain":         {change: func(_ *testing.T, s map[string][]byte) { delete(s, certChain) }, want: []Code{Incomplete}},
		"empty roots":      {change: func(_ *testing.T, s map[string][]byte) { s[rootCert] = []byte(" \n") }, want: []Code{Incomplete}},
		"root comes first": {change: func(_ *testing.T, s map[string][]byte) { s[certChain] = pems(r, ca) }, want: []Code{WrongOrder}},
		"chain of another": {change: func(_ *testing.T, s map[string][]byte) { s[certChain] = pems(r) }, want: []Code{WrongOrder}},
		"chain with an extra": {change: func(t *testing.T, s map[string][]byte) {
			s[certChain] = pems(ca, r, intermediate(t, r, "Extra"))
		}, want: []Code{WrongOrder}},
		"chain with a stranger": {change: func(t *testing.T, s map[string][]byte) {
			s[certChain] = pems(ca, r, intermediate(t, other, "Stranger"))
		}, want: []Code{Unrelated}},
		"root not in the bundle": {change: func(_ *testing.T, s map[string][]byte) { s[rootCert] = pems(other) }, want: []Code{RootNotInBundle}},
		"no way to a root": {change: func(_ *testing.T, s map[string][]byte) {
			s[rootCert], s[certChain] = pems(other), pems(ca)
		}, want: []Code{NoPathToRoot}},
		"root of the same name": {change: func(t *testing.T, s map[string][]byte) {
			s[rootCert], s[certChain] = pems(root(t, "Root CA")), pems(ca)
		}, want: []Code{NoPathToRoot}},
		"duplicate root":      {change: func(_ *testing.T, s map[string][]byte) { s[rootCert] = pems(r, r) }, want: []Code{Duplicate}},
		"two CA certificates": {change: func(_ *testing.T, s map[string][]byte) { s[caCert] = pems(ca, r) }, want: []Code{Misplaced}},
		"key among the roots": {change: func(_ *testing.T, s map[string][]byte) { s[rootCert] = append(s[rootCert], s[caKey]...) }, want: []Code{Misplaced}},
		"certificate as key":  {change: func(_ *testing.T, s map[string][]byte) { s[caKey] = pems(ca) }, want: []Code{Misplaced}},
		"DER":                 {change: func(_ *testing.T, s map[string][]byte) { s[rootCert] = r.Raw; s[certChain] = pems(ca) }, want: []Code{NoPEM}},
		"damaged base64": {change: func(_ *testing.T, s map[string][]byte) {
			s[certChain] = bytes.Replace(s[certChain], []byte("MII"), []byte("M*I"), 1)
		}, want: []Code{DamagedPEM}},
		"no line break between": {change: func(_ *testing.T, s map[string][]byte) {
			s[rootCert] = append(bytes.TrimSpace(pems(other)), pems(r)...)
		}, want: []Code{DamagedPEM}},
		"cut off": {change: func(_ *testing.T, s map[string][]byte) { s[caKey] = s[caKey][:100] }, want: []Code{DamagedPEM}},
		"unknown block": {change: func(_ *testing.T, s map[string][]byte) {
			s[rootCert] = append(s[rootCert], pem.EncodeToMemory(&pem.Block{Type: "PKCS7", Bytes: []byte("x")})...)
		}, want: []Code{UnknownBlock}},
		"trusted certificate": {change: func(_ *testing.T, s map[string][]byte) {
			s[rootCert] = append(s[rootCert], pem.EncodeToMemory(&pem.Block{Type: "TRUSTED CERTIFICATE", Bytes: r.Raw})...)
		}, want: []Code{TrustedBlock}},
		"malformed certificate": {change: func(_ *testing.T, s map[string][]byte) {
			s[rootCert] = append(s[rootCert], pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Raw[:100]})...)
		}, want: []Code{Malformed}},
		"data behind the certificate": {change: func(_ *testing.T, s map[string][]byte) {
			s[rootCert] = append(s[rootCert], pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: append(slices.Clone(other.Raw), 0)})...)
		}, want: []Code{Malformed}},
		"malformed key": {change: func(_ *testing.T, s map[string][]byte) {
			s[caKey] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})
		}, want: []Code{Malformed}},
		"encrypted key": {change: func(_ *testing.T, s map[string][]byte) {
			s[caKey] = pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")})
		}, want: []Code{EncryptedKey}},
		"key encrypted the old way": {change: func(_ *testing.T, s map[string][]byte) {
			s[caKey] = pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Headers: map[string]string{"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-256-CBC,00"}, Bytes: []byte("x")})
		}, want: []Code{EncryptedKey}},
		"text behind":   {change: func(_ *testing.T, s map[string][]byte) { s[caCert] = append(s[caCert], "EOF\n"...) }, want: []Code{TrailingText}},
		"expired":       {options: func(o *Options) { o.Now = clock.Add(6 * year) }, want: []Code{Expired}},
		"not yet valid": {options: func(o *Options) { o.Now = clock.Add(-2 * year) }, want: []Code{NotYetValid, NotYetValid}},
		"expires soon":  {options: func(o *Options) { o.Now = clock.Add(5*year - 10*24*time.Hour) }, want: []Code{ExpiresSoon}},
		"old root in the bundle": {change: func(t *testing.T, s map[string][]byte) {
			s[rootCert] = pems(r, root(t, "Old", func(c *x509.Certificate) { c.NotAfter = clock.Add(-time.Hour) }))
		}, want: []Code{Expired}},
		"leaf among the roots": {change: func(t *testing.T, s map[string][]byte) { s[rootCert] = pems(r, leaf(t, ca)) }, want: []Code{NotACA}},
		"constrained to another trust domain": {options: func(o *Options) { o.TrustDomain = "cluster.local" }, change: func(t *testing.T, s map[string][]byte) {
			replace(t, s, func(c *x509.Certificate) { c.PermittedURIDomains = []string{"other.example"} })
		}, want: []Code{NameConstraint}},
		"constrained to this trust domain": {options: func(o *Options) { o.TrustDomain = "cluster.local" }, change: func(t *testing.T, s map[string][]byte) {
			replace(t, s, func(c *x509.Certificate) { c.PermittedURIDomains = []string{"cluster.local"} })
		}, want: []Code{}},
		"CA of another trust domain": {options: func(o *Options) { o.TrustDomain = "cluster.local" }, change: func(t *testing.T, s map[string][]byte) {
			replace(t, s, nil, withURIs("spiffe://other.example"))
		}, want: []Code{TrustDomain}},
		"name outside constraints": {change: func(t *testing.T, s map[string][]byte) {
			replace(t, s, func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"example.com"} })
		}, want: []Code{NameConstraint}},
		"name excluded": {change: func(t *testing.T, s map[string][]byte) {
			replace(t, s, func(c *x509.Certificate) { c.ExcludedDNSDomains = []string{"svc"} })
		}, want: []Code{NameConstraint}},
		"IP address outside constraints": {change: func(t *testing.T, s map[string][]byte) {
			_, permitted, _ := net.ParseCIDR("10.0.0.0/8")
			replace(t, s, func(c *x509.Certificate) { c.PermittedIPRanges = []*net.IPNet{permitted} },
				func(c *x509.Certificate) { c.IPAddresses = []net.IP{{192, 0, 2, 1}} })
		}, want: []Code{NameConstraint}},
		"trusts an intermediate": {change: func(_ *testing.T, s map[string][]byte) {
			s[rootCert], s[certChain] = pems(ca), pems(ca)
		}, want: []Code{NotSelfSigned}},
		"IP address excluded": {change: func(t *testing.T, s map[string][]byte) {
			_, excluded, _ := net.ParseCIDR("0.0.0.0/0")
			replace(t, s, func(c *x509.Certificate) { c.ExcludedIPRanges = []*net.IPNet{excluded} },
				func(c *x509.Certificate) { c.IPAddresses = []net.IP{{192, 0, 2, 1}} })
		}, want: []Code{NameConstraint}},
		"e-mail address outside constraints": {change: func(t *testing.T, s map[string][]byte) {
			replace(t, s, func(c *x509.Certificate) { c.PermittedEmailAddresses = []string{"invalid"} },
				func(c *x509.Certificate) { c.EmailAddresses = []string{"a@example.com"} })
		}, want: []Code{NameConstraint}},
		"not a CA":          {change: broken(func(c *x509.Certificate) { c.IsCA, c.MaxPathLenZero = false, false }), want: []Code{NotACA}},
		"no right to sign":  {change: broken(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature }), want: []Code{KeyUsage}},
		"no path length":    {change: broken(func(c *x509.Certificate) { c.MaxPathLenZero = false }), want: []Code{NoPathLength}},
		"for servers only":  {change: broken(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), want: []Code{ExtKeyUsage}},
		"for e-mail only":   {change: broken(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageEmailProtection} }), want: []Code{ExtKeyUsage}},
		"outlives its root": {change: broken(func(c *x509.Certificate) { c.NotAfter = clock.Add(20 * year) }), want: []Code{OutlivesSigner}},
		"unknown critical":  {change: broken(critical), want: []Code{CriticalExt}},
		"root without a path": {change: func(t *testing.T, s map[string][]byte) {
			replace(t, s, func(c *x509.Certificate) { c.MaxPathLenZero = true })
		}, want: []Code{PathLength}},
		"root may not sign": {change: func(t *testing.T, s map[string][]byte) {
			replace(t, s, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature })
		}, want: []Code{KeyUsage}},
		"weak RSA": {change: func(t *testing.T, s map[string][]byte) { withKey(t, s, r, rsaKey(t, 1024)) }, want: []Code{WeakKey}},
		"P-224": {change: func(t *testing.T, s map[string][]byte) {
			key, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			withKey(t, s, r, key)
		}, want: []Code{WeakKey}},
		"CRL malformed": {change: func(_ *testing.T, s map[string][]byte) {
			s[caCRL] = pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: []byte("x")})
		}, want: []Code{CRLMalformed}},
		"CRL empty": {change: func(_ *testing.T, s map[string][]byte) { s[caCRL] = []byte{'\n'} }, want: []Code{CRLMalformed}},
		"good, with the list of another cluster": {change: func(t *testing.T, s map[string][]byte) {
			s[caCRL] = slices.Concat(crlPEM(t, r, clock.Add(-time.Hour), clock.Add(time.Hour)), crlPEM(t, ca, clock.Add(-time.Hour), clock.Add(time.Hour)),
				crlPEM(t, intermediate(t, r, "Elsewhere"), clock.Add(-time.Hour), clock.Add(time.Hour)))
		}, want: []Code{}},
		"CRL of another, out of date": {change: func(t *testing.T, s map[string][]byte) {
			s[caCRL] = slices.Concat(crlPEM(t, r, clock.Add(-time.Hour), clock.Add(time.Hour)), crlPEM(t, ca, clock.Add(-time.Hour), clock.Add(time.Hour)),
				crlPEM(t, intermediate(t, r, "Elsewhere"), clock.Add(-2*time.Hour), clock.Add(-time.Hour)))
		}, want: []Code{CRLStale}},
		"CRL of another alone": {change: func(t *testing.T, s map[string][]byte) {
			s[caCRL] = crlPEM(t, other, clock.Add(-time.Hour), clock.Add(time.Hour))
		}, want: []Code{CRLMissing, CRLMissing, CRLUnknown}},
		"CRL forged": {change: func(t *testing.T, s map[string][]byte) {
			list := crlPEM(t, ca, clock.Add(-time.Hour), clock.Add(time.Hour))
			block, _ := pem.Decode(list)
			block.Bytes[len(block.Bytes)-1] ^= 1
			s[caCRL] = slices.Concat(list, pem.EncodeToMemory(block), crlPEM(t, r, clock.Add(-time.Hour), clock.Add(time.Hour)))
		}, want: []Code{CRLWrongIssuer}},
		"CRL soon stale": {change: func(t *testing.T, s map[string][]byte) {
			s[caCRL] = slices.Concat(crlPEM(t, r, clock.Add(-9*time.Hour), clock.Add(time.Hour)), crlPEM(t, ca, clock.Add(-time.Hour), clock.Add(time.Hour)))
		}, want: []Code{ExpiresSoon}},
		"CRL of another with the name": {change: func(t *testing.T, s map[string][]byte) {
			s[caCRL] = slices.Concat(crlPEM(t, r, clock.Add(-time.Hour), clock.Add(time.Hour)), crlPEM(t, ca, clock.Add(-time.Hour), clock.Add(time.Hour)),
				crlPEM(t, root(t, "Root CA"), clock.Add(-time.Hour), clock.Add(time.Hour)))
		}, want: []Code{}},
		"CRL of another with the name, without key id": {change: func(t *testing.T, s map[string][]byte) {
			s[caCRL] = slices.Concat(crlPEM(t, r, clock.Add(-time.Hour), clock.Add(time.Hour)), crlPEM(t, ca, clock.Add(-time.Hour), clock.Add(time.Hour)),
				crlByName(t, root(t, "Root CA")))
		}, want: []Code{CRLWrongIssuer}},
		"good, with a list without key id": {change: func(t *testing.T, s map[string][]byte) {
			s[caCRL] = slices.Concat(crlByName(t, r), crlPEM(t, ca, clock.Add(-time.Hour), clock.Add(time.Hour)))
		}, want: []Code{}},
		"CRL stale": {change: func(t *testing.T, s map[string][]byte) {
			s[caCRL] = slices.Concat(crlPEM(t, r, clock.Add(-2*time.Hour), clock.Add(-time.Hour)), crlPEM(t, ca, clock.Add(-time.Hour), clock.Add(time.Hour)))
		}, want: []Code{CRLStale}},
		"CRL of tomorrow": {change: func(t *testing.T, s map[string][]byte) {
			s[caCRL] = slices.Concat(crlPEM(t, r, clock.Add(time.Hour), clock.Add(2*time.Hour)), crlPEM(t, ca, clock.Add(-time.Hour), clock.Add(time.Hour)))
		}, want: []Code{CRLStale}},
		"CRL of the root missing, one of its namesake there": {change: func(t *testing.T, s map[string][]byte) {
			namesake := root(t, "Root CA")
			s[rootCert] = pems(r, namesake)
			s[caCRL] = slices.Concat(crlPEM(t, namesake, clock.Add(-time.Hour), clock.Add(time.Hour)), crlPEM(t, ca, clock.Add(-time.Hour), clock.Add(time.Hour)))
		}, want: []Code{CRLMissing}},
		"CRL of the root missing": {change: func(t *testing.T, s map[string][]byte) {
			s[caCRL] = crlPEM(t, ca, clock.Add(-time.Hour), clock.Add(time.Hour))
		}, want: []Code{CRLMissing}},
		"CA revoked": {change: func(t *testing.T, s map[string][]byte) {
			s[caCRL] = slices.Concat(crlPEM(t, r, clock.Add(-time.Hour), clock.Add(time.Hour), ca), crlPEM(t, ca, clock.Add(-time.Hour), clock.Add(time.Hour)))
		}, want: []Code{Revoked}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := cacerts(t, r, ca)
			if tc.change != nil {
				tc.change(t, set)
			}
			o := Options{Now: clock}
			if tc.options != nil {
				tc.options(&o)
			}
			got := Check(arrange(set), o)
			if diff := cmp.Diff(tc.want, codes(got)); diff != "" {
				t.Errorf("%s\n%+v", diff, got)
			}
			complete(t, got)
			if _, err := load(set, o.Now); Refuse(got) == nil && err != nil {
				t.Errorf("it is not refused, and cannot be loaded: %v", err)
			}
		})
	}
}

// load loads a set as a control plane does.
func load(set map[string][]byte, now time.Time) (*certs.Authority, error) {
	return certs.LoadAuthority(certs.PEMs{Cert: set[caCert], Key: set[caKey], Chain: set[certChain], Roots: set[rootCert]}, now)
}

// complete checks that all fields of a finding are set.
func complete(t *testing.T, findings []Finding) {
	t.Helper()
	for _, f := range findings {
		if f.Place == "" || f.Reason == "" || f.Fix == "" || f.Severity != Error && f.Severity != Warning {
			t.Errorf("finding is not complete: %+v", f)
		}
	}
}

func crlf(set map[string][]byte) {
	for name, data := range set {
		set[name] = bytes.ReplaceAll(data, []byte("\n"), []byte("\r\n"))
	}
}

func critical(c *x509.Certificate) {
	c.ExtraExtensions = append(c.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Critical: true, Value: []byte{5, 0}})
}

// replace replaces the whole set, with a changed root or intermediate.
func replace(t *testing.T, set map[string][]byte, ofRoot change, ofCA ...change) {
	t.Helper()
	var changes []change
	if ofRoot != nil {
		changes = append(changes, ofRoot)
	}
	r := root(t, "Root CA", changes...)
	ca := intermediate(t, r, "Intermediate CA", ofCA...)
	maps.Copy(set, cacerts(t, r, ca))
}

func broken(ofCA change) func(*testing.T, map[string][]byte) {
	return func(t *testing.T, set map[string][]byte) { t.Helper(); replace(t, set, nil, ofCA) }
}

// withKey replaces the intermediate by one with this key.
func withKey(t *testing.T, set map[string][]byte, r *pair, key crypto.Signer) {
	t.Helper()
	template := caTemplate("Intermediate CA", 5*year, nil)
	template.MaxPathLenZero = true
	maps.Copy(set, cacerts(t, r, issue(t, r, key, template)))
}

// TestListOfACAWithoutTheRight: a list of a CA without cRLSign is refused with a
// fitting fix.
func TestListOfACAWithoutTheRight(t *testing.T) {
	t.Parallel()
	may := root(t, "Root CA")
	mayNot := issue(t, nil, may.key, caTemplate("Root CA", 10*year, []change{func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCertSign }}))
	findings := Check(arrange(map[string][]byte{
		rootCert: pems(mayNot), rootKey: keyPEM(t, mayNot), caCRL: crlPEM(t, may, clock.Add(-time.Hour), clock.Add(time.Hour)),
	}), Options{Now: clock})
	if len(findings) != 1 || findings[0].Code != KeyUsage || !strings.Contains(findings[0].Fix, "cRLSign") || findings[0].Place != "ca-crl.pem:1" {
		t.Errorf("findings: %+v", findings)
	}
}

// TestListsOfClusters: if the signers of other clusters are known, a CA with lists
// needs one of each.
func TestListsOfClusters(t *testing.T) {
	t.Parallel()
	r, strange := root(t, "Root CA"), root(t, "Strange Root")
	ca, other := intermediate(t, r, "cluster1"), intermediate(t, r, "cluster2")
	namesake, apart := intermediate(t, r, "cluster2"), intermediate(t, strange, "apart")
	gone := intermediate(t, r, "gone", func(c *x509.Certificate) { c.NotAfter = clock.Add(-time.Minute) })
	list := func(p *pair) []byte { return crlPEM(t, p, clock.Add(-time.Hour), clock.Add(time.Hour)) }
	own := slices.Concat(list(r), list(ca))
	for name, tc := range map[string]struct {
		lists    []byte
		clusters []*pair
		want     []Code
	}{
		"all":                         {slices.Concat(own, list(other)), []*pair{ca, other}, []Code{}},
		"one is missing":              {own, []*pair{ca, other}, []Code{CRLMissing}},
		"one of a namesake":           {slices.Concat(own, list(namesake)), []*pair{ca, other}, []Code{CRLMissing, CRLUnknown}},
		"both namesakes":              {slices.Concat(own, list(namesake), list(other)), []*pair{ca, other, namesake}, []Code{}},
		"no lists":                    {nil, []*pair{ca, other}, []Code{}},
		"another mesh":                {own, []*pair{ca, apart}, []Code{}},
		"a cluster signs by the root": {own, []*pair{ca, r}, []Code{}},
		"its time is over":            {own, []*pair{ca, gone}, []Code{}},
	} {
		texts, o := cacerts(t, r, ca), Options{Now: clock}
		if tc.lists != nil {
			texts[caCRL] = tc.lists
		}
		for _, p := range tc.clusters {
			o.Clusters = append(o.Clusters, p.Certificate)
		}
		o.Signers = o.Clusters
		if diff := cmp.Diff(tc.want, codes(Check(arrange(texts), o))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	// A file of the root's directory is given to agents, too.
	findings := Check(arrange(map[string][]byte{rootCert: pems(r), rootKey: keyPEM(t, r), caCRL: own}),
		Options{Now: clock, Clusters: []*x509.Certificate{ca.Certificate, other.Certificate}, Signers: []*x509.Certificate{ca.Certificate}})
	if len(findings) != 1 || findings[0].Code != CRLMissing || findings[0].Subject != Name(other.Certificate) || findings[0].Place != "ca-crl.pem:1" {
		t.Errorf("beside the root: %+v", findings)
	}
}

// TestSupersededLists: the newest list of a CA in several places counts, if that CA
// signed it.
func TestSupersededLists(t *testing.T) {
	t.Parallel()
	r := root(t, "Root CA")
	ca := intermediate(t, r, "cluster1")
	namesake := intermediate(t, r, "cluster1")
	hour := func(n time.Duration) time.Time { return clock.Add(n * time.Hour) }
	list := func(p *pair, number int64) []byte { return numberedCRL(t, p, number, hour(-1), hour(1)) }
	bare := func(from time.Time) []byte { // an old one has no number
		der, err := ca.CreateCRL(rand.Reader, ca.key, nil, from, hour(1))
		if err != nil {
			t.Fatal(err)
		}
		return encode("X509 CRL", der)
	}
	for name, tc := range map[string]struct {
		here, there []byte
		want        string // the reason, empty for none
	}{
		"the same":              {list(ca, 1), list(ca, 1), ""},
		"older there":           {list(ca, 2), list(ca, 1), ""},
		"newer there":           {list(ca, 1), list(ca, 3), `the revocation list of "CN=cluster1,O=test" has the number 1, and that in there:1 has the number 3: what was revoked since is accepted here`},
		"the newest counts":     {list(ca, 1), slices.Concat(list(ca, 2), list(ca, 4), list(ca, 3)), "that in there:"},
		"both here":             {slices.Concat(list(ca, 1), list(ca, 3)), list(ca, 3), ""},
		"newer by time":         {bare(hour(-2)), bare(hour(-1)), "has the time 2026-06-01T10:00:00Z, and that in there:1 has the time 2026-06-01T11:00:00Z"},
		"of tomorrow":           {list(ca, 1), numberedCRL(t, ca, 3, hour(24), hour(48)), ""},
		"of a namesake":         {list(ca, 1), list(namesake, 3), ""},
		"of one that forged it": {list(ca, 1), list(&pair{ca.Certificate, namesake.key}, 3), ""},
	} {
		texts := cacerts(t, r, ca)
		texts[caCRL] = slices.Concat(list(r, 1), tc.here)
		o := Options{Now: clock}
		there := NewFile("there", "there", tc.there)
		for i, b := range there.Blocks {
			o.Lists = append(o.Lists, PlacedList{b.CRL, there.At(i)})
		}
		findings := Check(arrange(texts), o)
		switch {
		case tc.want == "" && len(findings) > 0, tc.want != "" && len(findings) != 1:
			t.Errorf("%s: %+v", name, findings)
		case tc.want != "" && (findings[0].Code != CRLSuperseded || findings[0].Severity != Error || !strings.HasPrefix(findings[0].Place, caCRL+":") || !strings.Contains(findings[0].Reason, tc.want)):
			t.Errorf("%s: %+v, want %q", name, findings[0], tc.want)
		}
	}
}
