package ca

import (
	"fmt"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/verify"
)

// Further codes of findings, beside the codes of package verify: the set is valid,
// but peers could not switch to it without refusing each other.
const (
	// UntrustedSigner: the new signer leads to none of the roots that peers have.
	UntrustedSigner verify.Code = "untrusted-signer"
	// DroppedRoot: the new roots lack the root of a signer, current or earlier, whose
	// certificates are still valid.
	DroppedRoot verify.Code = "dropped-root"
	// DroppedLists: revocation lists are missing, so that the certificates that they
	// revoke would be valid again. The old lists stay in force.
	DroppedLists verify.Code = "dropped-crl"
)

// follows reports why peers with certificates of the old set, or of earlier signers
// that are alive, would refuse peers of the new set or be refused by them. Peers switch
// one by one, so both sets are in use for a while and each must trust the other's
// signer. Each step of a root rotation changes either the roots or the signer, and
// passes. An old signer that has expired or does not fit the mesh (fits) does not
// count: no valid certificates depend on it.
func follows(old, next *Set, fits bool, alive []*certs.Authority, place string, now time.Time) error {
	f := verify.Finding{Severity: verify.Error, Place: place}
	if fits {
		if len(leadsTo(next.Authority, old.Roots, now)) == 0 {
			f.Code, f.Subject, f.Fingerprint = UntrustedSigner, verify.Name(next.Cert), verify.Short(next.Cert)
			f.Reason = fmt.Sprintf("the new signer %q leads to no root that proxies trust so far, so they would refuse its certificates", f.Subject)
			f.Fix = "add its root to root-cert.pem first, and change the signer when all proxies have it; a restart of the control plane takes the set as it is"
			return &verify.Failure{Findings: []verify.Finding{f}}
		}
		alive = append([]*certs.Authority{old.Authority}, alive...)
	}
	for _, a := range alive {
		if len(leadsTo(a, next.Roots, now)) > 0 {
			continue
		}
		f.Code, f.Subject, f.Fingerprint = DroppedRoot, verify.Name(a.Cert), verify.Short(a.Cert)
		f.Reason = fmt.Sprintf("the new roots lack the root of %q (%s), whose certificates are still valid, so proxies would refuse each other's", f.Subject, f.Fingerprint)
		f.Fix = "keep its root in root-cert.pem, change the signer, and drop the root when its last certificate is over; a restart of the control plane takes the set as it is"
		return &verify.Failure{Findings: []verify.Finding{f}}
	}
	return nil
}
