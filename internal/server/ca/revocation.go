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

// revoked has the lists that name a certificate, by issuer name and serial number.
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

// has reports whether a list of issuer, which signed cert, names cert. It verifies the
// signature of the list with issuer, as CAs of the same name have different keys and
// only callers may present the CA of a list.
func (r revoked) has(cert, issuer *x509.Certificate) bool {
	if len(r) == 0 {
		return false
	}
	return slices.ContainsFunc(r[revocation{string(cert.RawIssuer), cert.SerialNumber.String()}], func(l *x509.RevocationList) bool {
		return l.CheckSignatureFrom(issuer) == nil
	})
}

func (r revoked) count() int { return len(r) }

// Lists are revocation lists for proxies, comparable with ==.
type Lists struct {
	PEM   string
	Count int
	// Until is the time at which the first list expires, zero for never.
	Until time.Time
	// Withheld reports that proxies get no lists although there are some, as they
	// would refuse every peer with them.
	Withheld bool
}

// forPeers returns the lists for proxies. With any list, Envoy refuses the peers of a
// CA without a current list. So if one list is missing or expired, proxies keep the
// last good lists.
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

// lists returns the revocation lists to use with a: the lists of the source, or the
// lists in force if the new ones are not valid. Without lists in force, that is an
// error.
func (c *CA) lists(m *store.Material, a *certs.Authority, now time.Time) (lists store.Revocations, alarm, err error) {
	old := c.set.Load()
	lists, err = m.Revocations(verify.Options{Now: now, Signers: c.signers(now)})
	switch {
	case err != nil && old == nil:
		return store.Revocations{}, nil, err
	case err != nil:
		alarm = fmt.Errorf("they cannot be used, the lists of %s are kept: %w", old.LoadedAt.UTC().Format(time.RFC3339), err)
		return old.Revocations, alarm, nil
	}
	if old != nil {
		if f, dropped := droppedList(old, lists, a, c.cfg.Source.Place()); dropped {
			return old.Revocations, &verify.Failure{Findings: []verify.Finding{f}}, nil
		}
	}
	lists.Findings = append(lists.Findings, c.uncovered(lists, now)...)
	if len(lists.Findings) > 0 {
		alarm = fmt.Errorf("callers are checked with them, but proxies do not get them: %w", &verify.Failure{Findings: lists.Findings})
	}
	return lists, alarm, nil
}

// signers returns the CAs of the set in use and of earlier ones. Revocation lists may
// come from them, too.
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

// uncovered reports earlier signers, and the CAs above them, without a list although
// their certificates are valid.
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

// droppedList reports a CA with a list in force and none among the new lists, so that
// its revoked certificates would be valid again.
func droppedList(old *Set, lists store.Revocations, a *certs.Authority, place string) (verify.Finding, bool) {
	for _, cert := range slices.Concat([]*x509.Certificate{a.Cert}, a.Chain, a.Roots) {
		if !hasList(old.Revocations.Lists, cert) || hasList(lists.Lists, cert) {
			continue
		}
		reason, fix := "the list of %q is gone", "put its list back, one that revokes nothing if that is meant"
		if lists.PEM == nil {
			reason, fix = "the file of the revocation lists is gone, with the list of %q", "put ca-crl.pem back, with lists that revoke nothing if that is meant"
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
