package certs

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"time"
)

// Revocation is a certificate that its CA revokes.
type Revocation struct {
	Serial *big.Int
	At     time.Time
	Reason Reason
}

// Reason is the CRLReason of RFC 5280.
type Reason int

// The supported reasons: all but holds, which may end, and the reasons of attribute
// authorities.
const (
	Unspecified          Reason = 0
	KeyCompromise        Reason = 1
	CACompromise         Reason = 2
	AffiliationChanged   Reason = 3
	Superseded           Reason = 4
	CessationOfOperation Reason = 5
	PrivilegeWithdrawn   Reason = 9
)

// NewerCRL reports whether list a of an authority is newer than list b, by number or,
// if that does not decide, by time.
func NewerCRL(a, b *x509.RevocationList) bool {
	if a.Number == nil || b.Number == nil || a.Number.Cmp(b.Number) == 0 {
		return a.ThisUpdate.After(b.ThisUpdate)
	}
	return a.Number.Cmp(b.Number) > 0
}

// IssuedCRL reports whether the list names the certificate as its issuer and is signed
// by its key.
func IssuedCRL(by *x509.Certificate, l *x509.RevocationList) bool {
	return bytes.Equal(by.RawSubject, l.RawIssuer) && by.CheckSignature(l.SignatureAlgorithm, l.RawTBSRevocationList, l.Signature) == nil
}

// SignCRL makes the authority's next revocation list: the entries of the last list,
// which may be nil, plus the newly revoked certificates. Its number is greater than
// the last one and at least the seconds since 1970, so that numbers keep growing
// even if the last list is lost. It is valid from Backdate before now until life
// after now.
func (a *Authority) SignCRL(last *x509.RevocationList, revoked []Revocation, life time.Duration, now time.Time, rand io.Reader) (*x509.RevocationList, error) {
	if err := a.maySignCRL(now); err != nil {
		return nil, err
	}
	if life <= 0 {
		return nil, fmt.Errorf("life time of a revocation list is %v, want more than 0", life)
	}
	template := &x509.RevocationList{Number: big.NewInt(now.Unix()), ThisUpdate: now.Add(-Backdate), NextUpdate: now.Add(life)}
	known := map[string]bool{}
	if last != nil {
		if err := plainCRL(last); err != nil {
			return nil, err
		}
		if n := last.Number; n != nil && n.Cmp(template.Number) >= 0 {
			template.Number = new(big.Int).Add(n, big.NewInt(1))
		}
		for _, e := range last.RevokedCertificateEntries {
			known[e.SerialNumber.String()] = true
			template.RevokedCertificateEntries = append(template.RevokedCertificateEntries, again(e))
		}
	}
	for _, r := range revoked {
		if known[r.Serial.String()] {
			continue
		}
		known[r.Serial.String()] = true
		template.RevokedCertificateEntries = append(template.RevokedCertificateEntries, x509.RevocationListEntry{
			SerialNumber: r.Serial, RevocationTime: r.At.UTC(), ReasonCode: int(r.Reason),
		})
	}
	der, err := x509.CreateRevocationList(rand, template, a.Cert, a.Key)
	if err != nil {
		return nil, fmt.Errorf("sign revocation list: %w", err)
	}
	list, err := x509.ParseRevocationList(der)
	if err != nil {
		return nil, fmt.Errorf("read back signed revocation list: %w", err)
	}
	return list, nil
}

// maySignCRL returns the reason why peers would refuse a list of the authority.
func (a *Authority) maySignCRL(now time.Time) error {
	if err := checkTime(a.Cert, now); err != nil {
		return fmt.Errorf("sign revocation list: %w", err)
	}
	if a.Cert.KeyUsage&x509.KeyUsageCRLSign == 0 {
		return fmt.Errorf("%q may not sign revocation lists: its key usage lacks cRLSign, as in CAs made by Istio's instructions; make the CA again with meshctl, or with cRLSign", a.Cert.Subject)
	}
	if len(a.Cert.SubjectKeyId) == 0 {
		return fmt.Errorf("%q cannot sign revocation lists: it has no subject key id, which they name", a.Cert.Subject)
	}
	return nil
}

// plainCRL refuses a list with critical extensions, such as a delta list: the next
// list would lose them.
func plainCRL(l *x509.RevocationList) error {
	extensions := slices.Clone(l.Extensions)
	for _, e := range l.RevokedCertificateEntries {
		extensions = append(extensions, e.Extensions...)
	}
	if i := slices.IndexFunc(extensions, func(x pkix.Extension) bool { return x.Critical }); i >= 0 {
		return fmt.Errorf("the revocation list of %q has the critical extension %s, which only the program knows that made it: go on with that", l.Issuer, extensions[i].Id)
	}
	return nil
}

// again returns a copy of an entry for the next list.
func again(e x509.RevocationListEntry) x509.RevocationListEntry {
	reason := asn1.ObjectIdentifier{2, 5, 29, 21}
	others := slices.DeleteFunc(slices.Clone(e.Extensions), func(x pkix.Extension) bool { return x.Id.Equal(reason) })
	return x509.RevocationListEntry{
		SerialNumber: e.SerialNumber, RevocationTime: e.RevocationTime, ReasonCode: e.ReasonCode, ExtraExtensions: others,
	}
}

// EncodeCRLs encodes revocation lists as PEM.
func EncodeCRLs(lists ...*x509.RevocationList) []byte {
	var out []byte
	for _, l := range lists {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: blockCRL, Bytes: l.Raw})...)
	}
	return out
}

// ParseCRLs parses one or more revocation lists in PEM or DER. Any other block is an
// error.
func ParseCRLs(data []byte) ([]*x509.RevocationList, error) {
	if der := FromDER(data); der != nil {
		data = der
	}
	var lists []*x509.RevocationList
	for _, b := range Scan(data) {
		switch {
		case b.Err != nil:
			return nil, fmt.Errorf("line %d: %w", b.Line, b.Err)
		case b.CRL == nil:
			return nil, fmt.Errorf("line %d: the PEM block is %q, want %q", b.Line, b.Type, blockCRL)
		}
		lists = append(lists, b.CRL)
	}
	if len(lists) == 0 {
		return nil, errors.New("it holds no revocation list")
	}
	return lists, nil
}
