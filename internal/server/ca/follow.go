package ca

import (
	"fmt"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/verify"
)

// Codes of findings beside those of package verify: the set is good, but peers
// could not follow to it.
const (
	// UntrustedSigner is that the new signer leads to no root that peers have
	// got so far.
	UntrustedSigner verify.Code = "untrusted-signer"
	// DroppedRoot is that the new roots are without that of the signer in use,
	// or of an earlier one, whose certificates are out there.
	DroppedRoot verify.Code = "dropped-root"
	// DroppedLists is that there are no revocation lists any more, so that what
	// they revoke would be good again. They stay in force.
	DroppedLists verify.Code = "dropped-crl"
)

// follows says why peers of the old set, or of the earlier signers that are
// alive, would refuse those of the new one.
// Peers come over one by one, so that for a while some have the one and some
// the other: each must trust what the other's signer signs. A step of a root
// rotation changes either the roots or the signer, and passes. When the old
// signer has expired, or does not fit the mesh (fits), there is nothing left to
// break with it.
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
		f.Reason = fmt.Sprintf("the new roots are without that of %q (%s), whose certificates are still valid, so proxies would refuse each other's", f.Subject, f.Fingerprint)
		f.Fix = "keep its root in root-cert.pem, change the signer, and drop the root when its last certificate is over; a restart of the control plane takes the set as it is"
		return &verify.Failure{Findings: []verify.Finding{f}}
	}
	return nil
}
