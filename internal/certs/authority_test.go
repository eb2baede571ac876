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

// threeLevels is an authority whose chain holds two certificates.
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

func TestLoadAuthority(t *testing.T) {
	root := newRoot(t)
	cluster := newIntermediate(t, root, "cluster1")
	crlf := pems(t, cluster)
	for _, p := range []*[]byte{&crlf.Cert, &crlf.Key, &crlf.Chain, &crlf.Roots} {
		*p = bytes.ReplaceAll(*p, []byte("\n"), []byte("\r\n"))
	}
	noChain := pems(t, cluster)
	noChain.Chain = nil
	rootsBehind := pems(t, cluster)
	rootsBehind.Chain = append(rootsBehind.Chain, EncodeCerts(newRoot(t).Cert, newRoot(t).Cert)...)
	stranger := pems(t, cluster)
	stranger.Chain = EncodeCerts(cluster.Cert, newRoot(t).Cert)
	twoRoots := pems(t, cluster)
	twoRoots.Roots = append(EncodeCerts(newRoot(t).Cert), twoRoots.Roots...)
	deep := threeLevels(t)

	for name, test := range map[string]struct {
		pems         PEMs
		chain, roots int
	}{
		"intermediate":     {pems(t, cluster), 1, 1},
		"root":             {pems(t, root), 0, 1},
		"roots behind":     {rootsBehind, 1, 1},
		"stranger behind":  {stranger, 1, 1},
		"CRLF":             {crlf, 1, 1},
		"no chain":         {noChain, 1, 1},
		"two roots":        {twoRoots, 1, 2},
		"two levels below": {pems(t, deep), 2, 1},
	} {
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

func TestLoadAuthorityRefuses(t *testing.T) {
	root := newRoot(t)
	cluster, other := newIntermediate(t, root, "cluster1"), newIntermediate(t, root, "cluster2")
	deep := threeLevels(t)
	leaf, err := cluster.SignLeaf(cluster.Cert.PublicKey, caller(), time.Hour, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	otherKey := pems(t, other).Key
	template, belowKey, err := newCA(spec("Below"), now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	belowCert, err := create(template, cluster.Cert, belowKey.Public(), cluster.Key, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	below := pems(t, &Authority{Cert: belowCert, Key: belowKey, Chain: []*x509.Certificate{belowCert, cluster.Cert}, Roots: root.Roots})

	for name, test := range map[string]struct {
		change func(*PEMs)
		at     time.Time
		want   string
	}{
		"no certificate":     {func(p *PEMs) { p.Cert = nil }, now, "CA certificate: holds no PEM block"},
		"two certificates":   {func(p *PEMs) { p.Cert = p.Chain }, now, "CA certificate: the file holds 2 certificates"},
		"no key":             {func(p *PEMs) { p.Key = nil }, now, "CA key: holds no PEM block"},
		"key of another":     {func(p *PEMs) { p.Key = otherKey }, now, "CA key: it is not the key of the CA certificate"},
		"not a CA":           {func(p *PEMs) { p.Cert = EncodeCerts(leaf) }, now, "is not a CA"},
		"no root":            {func(p *PEMs) { p.Roots = nil }, now, "root certificates: holds no PEM block"},
		"leaf as root":       {func(p *PEMs) { p.Roots = EncodeCerts(leaf) }, now, "root certificate 1: "},
		"root of another":    {func(p *PEMs) { p.Roots, p.Chain = EncodeCerts(newRoot(t).Cert), nil }, now, `does not lead to a root ("CN=Root CA,O=example" is the first)`},
		"expired":            {func(*PEMs) {}, now.Add(11 * year), "expired at 2036"},
		"not valid yet":      {func(*PEMs) {}, now.Add(-year), "is valid only from 2026"},
		"chain of another":   {func(p *PEMs) { p.Chain = EncodeCerts(other.Cert, root.Cert) }, now, "certificate chain: it starts with"},
		"chain upside down":  {func(p *PEMs) { p.Chain = EncodeCerts(root.Cert, cluster.Cert) }, now, "certificate chain: it starts with"},
		"extra in the chain": {func(p *PEMs) { p.Chain = EncodeCerts(cluster.Cert, other.Cert, root.Cert) }, now, "certificate 1 (\"CN=Intermediate CA,O=example,L=cluster1\") is not signed by certificate 2"},
		"damaged chain":      {func(p *PEMs) { p.Chain = p.Chain[:len(p.Chain)-30] }, now, "certificate chain: 1 of 2 PEM blocks are damaged"},
		"path too long":      {func(p *PEMs) { *p = below }, now, "the path length of a CA above it"},
		"gap in the chain": {func(p *PEMs) {
			*p = pems(t, deep)
			p.Chain = EncodeCerts(deep.Cert, root.Cert)
		}, now, "is not signed by certificate 2"},
	} {
		t.Run(name, func(t *testing.T) {
			p := pems(t, cluster)
			test.change(&p)
			_, err := LoadAuthority(p, test.at)
			wantError(t, err, test.want)
		})
	}
}

func FuzzLoadAuthority(f *testing.F) {
	for _, a := range []*Authority{newRoot(f), threeLevels(f)} {
		p := pems(f, a)
		f.Add(p.Cert, p.Key, p.Chain, p.Roots)
		f.Add(p.Cert, p.Key, []byte{}, p.Cert)
		f.Add(p.Chain, p.Roots, p.Key, p.Cert)
	}
	pub := newKey(f, ECDSAP256).Public()
	f.Fuzz(func(t *testing.T, cert, key, chain, roots []byte) {
		a, err := LoadAuthority(PEMs{Cert: cert, Key: key, Chain: chain, Roots: roots}, now)
		if err != nil {
			return
		}
		// What is accepted signs leaves that peers accept.
		leaf, err := a.SignLeaf(pub, caller(), time.Hour, now, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if err := verifyLeaf(t, leaf, a, x509.ExtKeyUsageAny, now); err != nil {
			t.Error(err)
		}
	})
}
