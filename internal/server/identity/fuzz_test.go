package identity

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

// FuzzSPIFFEID: every identity has exactly one text form, and its parts are
// unambiguous.
func FuzzSPIFFEID(f *testing.F) {
	for _, s := range []string{
		"spiffe://cluster.local/ns/sample/sa/helloworld", "spiffe://cluster.local/ns/a/sa/b.c", "spiffe://Cluster.local/ns/a/sa/b",
		"spiffe://cluster.local:80/ns/a/sa/b", "spiffe://u@a/ns/a/sa/b", "spiffe://a/ns/../sa/b", "spiffe://a/ns/a%2f/sa/b", "spiffe://a/ns//sa/b",
		"spiffe://a/ns/a/sa/b/", "spiffe://a/ns/a/sa/b?c", "spiffe://a/ns/a/sa/b#c", "SPIFFE://a/ns/a/sa/b", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := mesh.ParseIdentity(s)
		if err != nil {
			return
		}
		if id.String() != s || !mesh.IsTrustDomain(id.TrustDomain) || !mesh.IsDNSLabel(id.Namespace) || !mesh.IsDNSName(id.ServiceAccount) {
			t.Fatalf("%q was read as %+v", s, id)
		}
	})
}

// FuzzCertificateChain: the first certificate names the caller, and it leads to a root
// of its trust domain, for any certificates in any order.
func FuzzCertificateChain(f *testing.F) {
	w := newTestMesh(f)
	good := w.leaf(f, w.east, caller("cluster.local", "sample", "helloworld", "east"))
	alias := w.leaf(f, w.alias, caller("other.example", "a", "b", ""))
	stranger := w.leaf(f, w.stranger, caller("cluster.local", "sample", "helloworld", "east"))
	seed := func(chains ...[][]byte) {
		var data []byte
		for _, der := range slices.Concat(chains...) {
			data = append(data, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
		}
		f.Add(data)
	}
	seed(good.Certificate)
	seed(alias.Certificate, good.Certificate)
	seed(stranger.Certificate, good.Certificate)
	seed([][]byte{w.root.Cert.Raw}, good.Certificate)
	seed([][]byte{w.east.Cert.Raw}, good.Certificate)
	a := must(New(w.cfg))(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var shown []*x509.Certificate
		for block, rest := pem.Decode(data); block != nil && len(shown) < 20; block, rest = pem.Decode(rest) {
			if c, err := x509.ParseCertificate(block.Bytes); err == nil {
				shown = append(shown, c)
			}
		}
		v, err := a.verifyChain(shown, a.cfg.Now())
		got := v.caller
		if err != nil {
			if got != (mesh.Caller{}) {
				t.Fatalf("%+v with %v", got, err)
			}
			return
		}
		first := shown[0]
		if first.IsCA || len(first.URIs) != 1 || first.URIs[0].String() != got.Identity.String() || first.NotAfter.Before(start) {
			t.Fatalf("%+v of %v", got, first.URIs)
		}
		vouches := map[string][]*x509.Certificate{"cluster.local": w.root.Roots, "other.example": w.alias.Roots}[got.Identity.TrustDomain]
		if _, err := first.Verify(x509.VerifyOptions{
			Roots: certs.Pool(vouches), Intermediates: certs.Pool(shown[1:]), CurrentTime: start.Add(time.Second), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		}); err != nil {
			t.Fatalf("%+v: %v", got, err)
		}
	})
}
