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

// tryAuthority signs trial certificates and verifies them as peers do, as the
// constraints of the CAs may be valid one by one and exclude each other. Without a trust
// domain only the certificate of the control plane's port is tried. The error is a
// *verify.Failure.
func tryAuthority(a *certs.Authority, domain string, names []string, place string, now time.Time) error {
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		return err
	}
	for _, s := range trialCertificates(a, key.Public(), domain, names, now) {
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

// trialCertificate is a kind of certificate that the control plane signs.
type trialCertificate struct {
	what string
	sign func() (*x509.Certificate, error)
}

func trialCertificates(a *certs.Authority, key crypto.PublicKey, domain string, names []string, now time.Time) []trialCertificate {
	out := []trialCertificate{{"the control plane's port", func() (*x509.Certificate, error) {
		return a.SignServer(key, names, time.Minute, now, rand.Reader)
	}}}
	if domain == "" {
		return out
	}
	workload := mesh.Identity{TrustDomain: domain, Namespace: mesh.DefaultSystemNamespace, ServiceAccount: "istiod"}
	return append(out, trialCertificate{"workloads of " + domain, func() (*x509.Certificate, error) {
		return a.SignLeaf(key, mesh.Caller{Identity: workload}, time.Minute, now, rand.Reader)
	}})
}
