package ca

import (
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
	verifyLeaf := func(what string, leaf *x509.Certificate, err error) error {
		if err == nil {
			_, err = leaf.Verify(x509.VerifyOptions{
				Roots: certs.Pool(a.Roots), Intermediates: certs.Pool(a.Chain), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			})
		}
		if err == nil {
			return nil
		}
		return &verify.Failure{Findings: []verify.Finding{{
			Severity: verify.Error, Code: verify.Rejected, Place: place, Subject: verify.Name(a.Cert), Fingerprint: verify.Short(a.Cert),
			Reason: fmt.Sprintf("peers would refuse what %q signs for %s: %v", verify.Name(a.Cert), what, err),
			Fix:    "use a CA that may sign it, and whose name constraints permit it",
		}}}
	}
	leaf, err := a.SignServer(key.Public(), names, time.Minute, now, rand.Reader)
	if err := verifyLeaf("the control plane's port", leaf, err); err != nil || domain == "" {
		return err
	}
	workload := mesh.Identity{TrustDomain: domain, Namespace: mesh.DefaultSystemNamespace, ServiceAccount: "istiod"}
	leaf, err = a.SignLeaf(key.Public(), mesh.Caller{Identity: workload}, time.Minute, now, rand.Reader)
	return verifyLeaf("workloads of "+domain, leaf, err)
}
