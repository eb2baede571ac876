package certs

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"slices"
	"testing"
	"time"
)

func pems(tb testing.TB, a *Authority) PEMs {
	tb.Helper()
	key, err := EncodeKey(a.Key)
	if err != nil {
		tb.Fatal(err)
	}
	return PEMs{
		Cert:  EncodeCerts(a.Cert),
		Key:   key,
		Chain: EncodeCerts(append(slices.Clone(a.Chain), a.Roots...)...),
		Roots: EncodeCerts(a.Roots...),
	}
}

// threeLevels returns an authority whose chain has two certificates.
func threeLevels(tb testing.TB) *Authority {
	tb.Helper()
	root := newRoot(tb)
	template, key, err := newCA(spec("Policy CA"), now, rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := create(template, root.Cert, key.Public(), root.Key, rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	policy := &Authority{Cert: cert, Key: key, Chain: []*x509.Certificate{cert}, Roots: root.Roots}
	return newIntermediate(tb, policy, "cluster1")
}

// loadable has files that LoadAuthority accepts, and the number of their certificates.
type loadable struct {
	pems         PEMs
	chain, roots int
}

func goodAuthorities(tb testing.TB) map[string]loadable {
	tb.Helper()
	root := newRoot(tb)
	cluster := newIntermediate(tb, root, "cluster1")
	crlf := pems(tb, cluster)
	for _, p := range []*[]byte{&crlf.Cert, &crlf.Key, &crlf.Chain, &crlf.Roots} {
		*p = bytes.ReplaceAll(*p, []byte("\n"), []byte("\r\n"))
	}
	noChain := pems(tb, cluster)
	noChain.Chain = nil
	rootsBehind := pems(tb, cluster)
	rootsBehind.Chain = append(rootsBehind.Chain, EncodeCerts(newRoot(tb).Cert, newRoot(tb).Cert)...)
	stranger := pems(tb, cluster)
	stranger.Chain = EncodeCerts(cluster.Cert, newRoot(tb).Cert)
	twoRoots := pems(tb, cluster)
	twoRoots.Roots = append(EncodeCerts(newRoot(tb).Cert), twoRoots.Roots...)
	deep := threeLevels(tb)

	return map[string]loadable{
		"intermediate":     {pems(tb, cluster), 1, 1},
		"root":             {pems(tb, root), 0, 1},
		"roots behind":     {rootsBehind, 1, 1},
		"stranger behind":  {stranger, 1, 1},
		"CRLF":             {crlf, 1, 1},
		"no chain":         {noChain, 1, 1},
		"two roots":        {twoRoots, 1, 2},
		"two levels below": {pems(tb, deep), 2, 1},
	}
}

func TestLoadAuthority(t *testing.T) {
	for name, test := range goodAuthorities(t) {
		t.Run(name, func(t *testing.T) {
			a, err := LoadAuthority(test.pems, now)
			if err != nil {
				t.Fatal(err)
			}
			if len(a.Chain) != test.chain || len(a.Roots) != test.roots {
				t.Errorf("chain of %d, %d roots, want %d and %d", len(a.Chain), len(a.Roots), test.chain, test.roots)
			}
			leaf, err := a.SignLeaf(newKey(t, ECDSAP256).Public(), caller(), time.Hour, now, rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			if err := verifyLeaf(t, leaf, a, x509.ExtKeyUsageServerAuth, now); err != nil {
				t.Error(err)
			}
		})
	}
}

// brokenAuthority is a fault of otherwise valid files, or a time at which they are
// invalid.
type brokenAuthority struct {
	change func(*PEMs)
	at     time.Time
	want   string
}

func brokenAuthorities(tb testing.TB) (good PEMs, broken map[string]brokenAuthority) {
	tb.Helper()
	root := newRoot(tb)
	cluster, other := newIntermediate(tb, root, "cluster1"), newIntermediate(tb, root, "cluster2")
	deep := threeLevels(tb)
	leaf, err := cluster.SignLeaf(cluster.Cert.PublicKey, caller(), time.Hour, now, rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	otherKey := pems(tb, other).Key
	template, belowKey, err := newCA(spec("Below"), now, rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	belowCert, err := create(template, cluster.Cert, belowKey.Public(), cluster.Key, rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	below := pems(tb, &Authority{Cert: belowCert, Key: belowKey, Chain: []*x509.Certificate{belowCert, cluster.Cert}, Roots: root.Roots})

	return pems(tb, cluster), map[string]brokenAuthority{
		"no certificate":     {func(p *PEMs) { p.Cert = nil }, now, "CA certificate: holds no PEM block"},
		"two certificates":   {func(p *PEMs) { p.Cert = p.Chain }, now, "CA certificate: the file holds 2 certificates"},
		"no key":             {func(p *PEMs) { p.Key = nil }, now, "CA key: holds no PEM block"},
		"key of another":     {func(p *PEMs) { p.Key = otherKey }, now, "CA key: it is not the key of the CA certificate"},
		"not a CA":           {func(p *PEMs) { p.Cert = EncodeCerts(leaf) }, now, "is not a CA"},
		"no root":            {func(p *PEMs) { p.Roots = nil }, now, "root certificates: holds no PEM block"},
		"leaf as root":       {func(p *PEMs) { p.Roots = EncodeCerts(leaf) }, now, "root certificate 1: "},
		"root of another":    {func(p *PEMs) { p.Roots, p.Chain = EncodeCerts(newRoot(tb).Cert), nil }, now, `does not lead to a root ("CN=Root CA,O=example" is the first)`},
		"expired":            {func(*PEMs) {}, now.Add(11 * year), "expired at 2036"},
		"not valid yet":      {func(*PEMs) {}, now.Add(-year), "is valid only from 2026"},
		"chain of another":   {func(p *PEMs) { p.Chain = EncodeCerts(other.Cert, root.Cert) }, now, "certificate chain: it starts with"},
		"chain upside down":  {func(p *PEMs) { p.Chain = EncodeCerts(root.Cert, cluster.Cert) }, now, "certificate chain: it starts with"},
		"extra in the chain": {func(p *PEMs) { p.Chain = EncodeCerts(cluster.Cert, other.Cert, root.Cert) }, now, "certificate 1 (\"CN=Intermediate CA,O=example,L=cluster1\") is not signed by certificate 2"},
		"damaged chain":      {func(p *PEMs) { p.Chain = p.Chain[:len(p.Chain)-30] }, now, "certificate chain: 1 of 2 PEM blocks are damaged"},
		"path too long":      {func(p *PEMs) { *p = below }, now, "the path length of a CA above it"},
		"gap in the chain": {func(p *PEMs) {
			*p = pems(tb, deep)
			p.Chain = EncodeCerts(deep.Cert, root.Cert)
		}, now, "is not signed by certificate 2"},
	}
}

func TestLoadAuthorityRefuses(t *testing.T) {
	good, broken := brokenAuthorities(t)
	for name, test := range broken {
		t.Run(name, func(t *testing.T) {
			p := good
			test.change(&p)
			_, err := LoadAuthority(p, test.at)
			wantError(t, err, test.want)
		})
	}
}

func FuzzLoadAuthority(f *testing.F) {
	add := func(p PEMs) { f.Add(p.Cert, p.Key, p.Chain, p.Roots) }
	for _, test := range goodAuthorities(f) {
		add(test.pems)
	}
	good, broken := brokenAuthorities(f)
	for _, test := range broken {
		p := good
		test.change(&p)
		add(p)
	}
	add(PEMs{good.Chain, good.Roots, good.Key, good.Cert}) // in the wrong files
	for _, name := range []string{"TRUSTED CERTIFICATE", "PKCS7", "X509 CRL", "EC PARAMETERS"} {
		p := good
		p.Chain = bytes.ReplaceAll(p.Chain, []byte(" CERTIFICATE-"), []byte(" "+name+"-"))
		add(p)
		p = good
		p.Key = slices.Concat([]byte("-----BEGIN "+name+"-----\nAAAA\n-----END "+name+"-----\n"), p.Key)
		add(p)
	}
	for _, algorithm := range Algorithms()[:3] { // keys that are dear to make are not
		s := spec("Root CA")
		s.Algorithm = algorithm
		if root, err := NewRoot(s, now, rand.Reader); err == nil {
			add(pems(f, root))
		}
	}
	pub := newKey(f, ECDSAP256).Public()
	f.Fuzz(func(t *testing.T, cert, key, chain, roots []byte) {
		a, err := LoadAuthority(PEMs{Cert: cert, Key: key, Chain: chain, Roots: roots}, now)
		if err != nil {
			return
		}
		// An accepted CA signs leaves that peers accept.
		leaf, err := a.SignLeaf(pub, caller(), time.Hour, now, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if err := verifyLeaf(t, leaf, a, x509.ExtKeyUsageAny, now); err != nil {
			t.Error(err)
		}
	})
}
