package ca

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/mesh"
)

// try signs what the control plane signs, for nobody, and verifies it as peers
// do: a constraint in any CA above may forbid what each CA by itself permits.
// Without a trust domain only the certificate of the own port is tried. The
// error is a *verify.Failure.
func try(a *certs.Authority, domain string, names []string, place string, now time.Time) error {
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		return err
	}
	for _, s := range samples(a, key.Public(), domain, names, now) {
		leaf, err := s.sign()
		if err == nil {
			_, err = leaf.Verify(x509.VerifyOptions{
				Roots: certs.Pool(a.Roots), Intermediates: certs.Pool(a.Chain), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			})
		}
		if err != nil {
			return &verify.Failure{Findings: []verify.Finding{{
				Severity: verify.Error, Code: verify.Rejected, Place: place, Subject: verify.Name(a.Cert), Fingerprint: verify.Short(a.Cert),
				Reason: fmt.Sprintf("peers would refuse what %q signs for %s: %v", verify.Name(a.Cert), s.what, err),
				Fix:    "use a CA that may sign it, and whose name constraints permit it",
			}}}
		}
	}
	return nil
}

// sample is a certificate for a try.
type sample struct {
	what string
	sign func() (*x509.Certificate, error)
}

func samples(a *certs.Authority, key crypto.PublicKey, domain string, names []string, now time.Time) []sample {
	out := []sample{{"the control plane's port", func() (*x509.Certificate, error) {
		return a.SignServer(key, names, time.Minute, now, rand.Reader)
	}}}
	if domain == "" {
		return out
	}
	workload := mesh.Identity{TrustDomain: domain, Namespace: mesh.DefaultSystemNamespace, ServiceAccount: "istiod"}
	return append(out, sample{"workloads of " + domain, func() (*x509.Certificate, error) {
		return a.SignLeaf(key, mesh.Caller{Identity: workload}, time.Minute, now, rand.Reader)
	}})
}
