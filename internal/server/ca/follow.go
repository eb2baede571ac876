package ca

import (
	"fmt"
	"time"

	"github.com/meshctl/meshctl/internal/certs/verify"
)

// Codes of findings beside those of package verify: the set is good, but peers
// could not follow to it.
const (
	// UntrustedSigner is that the new signer leads to no root that peers have
	// got so far.
	UntrustedSigner verify.Code = "untrusted-signer"
	// DroppedRoot is that the new roots are without that of the signer in use,
	// whose certificates are out there.
	DroppedRoot verify.Code = "dropped-root"
	// DroppedLists is that there are no revocation lists any more, so that what
	// they revoke would be good again. They stay in force.
	DroppedLists verify.Code = "dropped-crl"
)

// droppedLists is the alarm that the file of the lists in force is gone.
func droppedLists(old *Set, place string) error {
	return &verify.Failure{Findings: []verify.Finding{{
		Severity: verify.Error, Code: DroppedLists, Place: place,
		Reason: fmt.Sprintf("the file of the revocation lists is gone, those of %s are kept, so that nothing they revoke is good again", old.LoadedAt.UTC().Format(time.RFC3339)),
		Fix:    "put ca-crl.pem back, with lists that revoke nothing if that is meant; a restart of the control plane takes the set as it is",
	}}}
}

// follows says why peers of the old set would refuse those of the new one.
// Peers come over one by one, so that for a while some have the one and some
// the other: each must trust what the other's signer signs. A step of a root
// rotation changes either the roots or the signer, and passes. When the old
// signer has expired there is nothing left to break.
func follows(old, next *Set, place string, now time.Time) error {
	var f verify.Finding
	switch {
	case now.After(old.Cert.NotAfter):
		return nil
	case len(leadsTo(next.Authority, old.Roots, now)) == 0:
		f = verify.Finding{
			Code: UntrustedSigner, Subject: verify.Name(next.Cert), Fingerprint: verify.Short(next.Cert),
			Reason: fmt.Sprintf("the new signer %q leads to no root that proxies trust so far, so they would refuse its certificates", verify.Name(next.Cert)),
			Fix:    "add its root to root-cert.pem first, and change the signer when all proxies have it; a restart of the control plane takes the set as it is",
		}
	case len(leadsTo(old.Authority, next.Roots, now)) == 0:
		f = verify.Finding{
			Code: DroppedRoot, Subject: verify.Name(old.Cert), Fingerprint: verify.Short(old.Cert),
			Reason: fmt.Sprintf("the new roots are without that of the signer in use, %q, so proxies would refuse each other's certificates", verify.Name(old.Cert)),
			Fix:    "keep its root in root-cert.pem, change the signer, and drop the root when its last certificate is over; a restart of the control plane takes the set as it is",
		}
	default:
		return nil
	}
	f.Severity, f.Place = verify.Error, place
	return &verify.Failure{Findings: []verify.Finding{f}}
}
