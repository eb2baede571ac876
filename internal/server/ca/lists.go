package ca

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
)

// revoked finds the lists that name a certificate, by the name of its signer
// and its number.
type revoked map[revocation][]*x509.RevocationList

type revocation struct{ issuer, serial string }

func newRevoked(lists []*x509.RevocationList) revoked {
	r := revoked{}
	for _, l := range lists {
		for _, e := range l.RevokedCertificateEntries {
			k := revocation{string(l.RawIssuer), e.SerialNumber.String()}
			r[k] = append(r[k], l)
		}
	}
	return r
}

// has reports whether a list of issuer, which signed cert, names it. Lists may
// be of CAs that only callers show, and namesakes differ in their keys, so the
// signature is checked by the issuer at hand.
func (r revoked) has(cert, issuer *x509.Certificate) bool {
	if len(r) == 0 {
		return false
	}
	return slices.ContainsFunc(r[revocation{string(cert.RawIssuer), cert.SerialNumber.String()}], func(l *x509.RevocationList) bool {
		return l.CheckSignatureFrom(issuer) == nil
	})
}

func (r revoked) count() int { return len(r) }

// Lists are revocation lists for proxies. They are compared with ==.
type Lists struct {
	PEM   string
	Count int
	// Until is when the first of them has to be replaced, zero for never.
	Until time.Time
	// Withheld says that there are lists, none of which proxies can use: they
	// would refuse every peer.
	Withheld bool
}

// forPeers are the lists that proxies are given. Where there is a list, Envoy
// refuses whom a CA signed without a current one, so those of a set in which one
// is missing or out of date are kept back, and proxies stay with the last good.
func forPeers(old *Set, lists store.Revocations) Lists {
	switch {
	case len(lists.Findings) == 0:
		var b strings.Builder
		var until time.Time
		for _, l := range lists.Lists {
			b.Write(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: l.Raw}))
			if end := l.NextUpdate; !end.IsZero() && (until.IsZero() || end.Before(until)) {
				until = end
			}
		}
		return Lists{PEM: b.String(), Count: len(lists.Lists), Until: until}
	case old != nil:
		return old.ForPeers
	}
	return Lists{Withheld: true}
}

// lists returns the revocation lists to use with a: those of the directory, or
// while these would not do, the ones in force. Without any in force the error is
// that the new ones are not good.
func (c *CA) lists(m *store.Material, a *certs.Authority, now time.Time) (lists store.Revocations, alarm, err error) {
	old := c.set.Load()
	lists, err = m.Revocations(verify.Options{Now: now, Signers: c.signers(now)})
	switch {
	case err != nil && old == nil:
		return store.Revocations{}, nil, err
	case err != nil:
		alarm = fmt.Errorf("they cannot be used, those of %s are kept: %w", old.LoadedAt.UTC().Format(time.RFC3339), err)
		return old.Revocations, alarm, nil
	}
	if old != nil {
		if f, dropped := droppedList(old, lists, a, c.cfg.Source.Place()); dropped {
			return old.Revocations, &verify.Failure{Findings: []verify.Finding{f}}, nil
		}
	}
	lists.Findings = append(lists.Findings, c.uncovered(lists, now)...)
	if len(lists.Findings) > 0 {
		alarm = fmt.Errorf("callers are checked with them, but proxies are not given them: %w", &verify.Failure{Findings: lists.Findings})
	}
	return lists, alarm, nil
}

// signers are the CAs that lists may be of beside those in the directory: of
// the set in use, and of earlier ones.
func (c *CA) signers(now time.Time) []*x509.Certificate {
	var out []*x509.Certificate
	alive := c.cfg.Alive(now)
	if old := c.set.Load(); old != nil {
		alive = append(alive, old.Authority)
	}
	for _, a := range alive {
		for _, cert := range slices.Concat([]*x509.Certificate{a.Cert}, a.Chain, a.Roots) {
			if !slices.ContainsFunc(out, cert.Equal) {
				out = append(out, cert)
			}
		}
	}
	return out
}

// uncovered reports earlier signers, and the CAs above them, that have no list
// while their certificates are valid.
func (c *CA) uncovered(lists store.Revocations, now time.Time) []verify.Finding {
	var out []verify.Finding
	if len(lists.Lists) == 0 {
		return nil
	}
	for _, a := range c.cfg.Alive(now) {
		for _, cert := range slices.Concat([]*x509.Certificate{a.Cert}, a.Chain, leadsTo(a, a.Roots, now)) {
			known := slices.ContainsFunc(append(out, lists.Findings...), func(f verify.Finding) bool { return f.Fingerprint == verify.Short(cert) })
			if known || hasList(lists.Lists, cert) {
				continue
			}
			out = append(out, verify.Finding{
				Severity: verify.Error, Code: verify.CRLMissing, Place: c.cfg.Source.Place(), Subject: verify.Name(cert), Fingerprint: verify.Short(cert),
				Reason: fmt.Sprintf("there is no revocation list of %q, and certificates of the earlier signer %q are still valid", verify.Name(cert), verify.Name(a.Cert)),
				Fix:    "keep its list in ca-crl.pem until they are over",
			})
		}
	}
	return out
}

// droppedList reports a CA of the directory that has a list in force and none
// among the new ones, so that what it revoked would be good again.
func droppedList(old *Set, lists store.Revocations, a *certs.Authority, place string) (verify.Finding, bool) {
	for _, cert := range slices.Concat([]*x509.Certificate{a.Cert}, a.Chain, a.Roots) {
		if !hasList(old.Revocations.Lists, cert) || hasList(lists.Lists, cert) {
			continue
		}
		reason, fix := "the list of %q is gone", "put its list back, one that revokes nothing if that is meant"
		if lists.PEM == nil {
			reason, fix = "the file of the revocation lists is gone, with that of %q", "put ca-crl.pem back, with lists that revoke nothing if that is meant"
		}
		return verify.Finding{
			Severity: verify.Error, Code: DroppedLists, Place: place, Subject: verify.Name(cert), Fingerprint: verify.Short(cert),
			Reason: fmt.Sprintf(reason+"; the lists of %s are kept, so that nothing they revoke is good again", verify.Name(cert), old.LoadedAt.UTC().Format(time.RFC3339)),
			Fix:    fix + "; a restart of the control plane takes the set as it is",
		}, true
	}
	return verify.Finding{}, false
}

func hasList(lists []*x509.RevocationList, of *x509.Certificate) bool {
	return slices.ContainsFunc(lists, func(l *x509.RevocationList) bool {
		return string(l.RawIssuer) == string(of.RawSubject) && l.CheckSignatureFrom(of) == nil
	})
}
