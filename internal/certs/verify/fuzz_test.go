package verify

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
)

// FuzzCheck checks files of a CA with any content. Findings are complete, and a set
// without errors can be loaded.
func FuzzCheck(f *testing.F) {
	r := root(f, "Root CA")
	ca := intermediate(f, r, "Intermediate CA")
	good := cacerts(f, r, ca)
	crl := slices.Concat(crlPEM(f, r, clock.Add(-time.Hour), clock.Add(time.Hour)), crlPEM(f, ca, clock.Add(-time.Hour), clock.Add(time.Hour)))
	f.Add(good[caCert], good[caKey], good[certChain], good[rootCert], crl)
	f.Add(good[caCert], good[caKey], pems(r, ca), pems(r, r), []byte{})
	f.Add(pems(r), keyPEM(f, r), []byte{}, pems(r), crlPEM(f, r, clock, clock, ca))
	f.Fuzz(func(t *testing.T, cert, key, chain, roots, crl []byte) {
		set := arrange(map[string][]byte{caCert: cert, caKey: key, certChain: chain, rootCert: roots, caCRL: crl})
		findings := Check(set, Options{Now: clock, TrustDomain: "cluster.local"})
		complete(t, findings)
		if set.Purpose != CA || Refuse(findings) != nil {
			return
		}
		if len(bytes.TrimSpace(chain)) == 0 {
			chain = nil
		}
		if _, err := certs.LoadAuthority(certs.PEMs{Cert: cert, Key: key, Chain: chain, Roots: roots}, clock); err != nil {
			t.Errorf("%v, but nothing was found", err)
		}
	})
}
