package inspect

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/verify"
)

// Kinds of items.
const (
	KindCertificate = "certificate"
	KindKey         = "private key"
	KindRequest     = "certificate request"
	KindCRL         = "revocation list"
	KindToken       = "token"
	KindUnreadable  = "unreadable"
)

// Item is one certificate, key, request, revocation list or token, or something
// unreadable.
type Item struct {
	Kind  string `json:"kind"`
	Place string `json:"place"` // file or key of a Secret, and line
	// Subject of a private key is the subject of its certificate.
	Subject   string     `json:"subject,omitzero"`
	SPIFFEIDs []string   `json:"spiffeIds,omitzero"`
	Names     []string   `json:"names,omitzero"` // other alternative names
	Issuer    string     `json:"issuer,omitzero"`
	Serial    string     `json:"serial,omitzero"` // hex
	Algorithm string     `json:"algorithm,omitzero"`
	Signature string     `json:"signature,omitzero"`
	From      *time.Time `json:"from,omitzero"`
	Until     *time.Time `json:"until,omitzero"`
	DaysLeft  *int       `json:"daysLeft,omitzero"` // whole days, negative after the end
	SHA256    string     `json:"sha256,omitzero"`   // with colons
	CA        bool       `json:"ca,omitzero"`
	PathLen   *int       `json:"pathLength,omitzero"`
	KeyUsages []string   `json:"keyUsages,omitzero"`
	ExtUsages []string   `json:"extendedKeyUsages,omitzero"`
	Permitted []string   `json:"permittedNames,omitzero"` // name constraints
	Excluded  []string   `json:"excludedNames,omitzero"`
	Cluster   string     `json:"cluster,omitzero"`
	KeyID     string     `json:"subjectKeyId,omitzero"`
	SignerID  string     `json:"authorityKeyId,omitzero"`
	Revoked   *int       `json:"revoked,omitzero"` // certificates on a revocation list
	// Chain is "ok" if the chain that begins here leads to a given root, else the
	// reason. It is empty if no roots were given.
	Chain string `json:"chain,omitzero"`
	// Problem is the reason why the item could not be read, if any.
	Problem string `json:"problem,omitzero"`

	name string // of a certificate, even without a subject
	crl  *x509.RevocationList
}

// List returns all items in order. If there are roots, it verifies the chains of
// servers against them.
func List(m *Contents, roots []*x509.Certificate, now time.Time) []Item {
	items := []Item{}
	for _, s := range m.Sets {
		start := len(items)
		for _, f := range s.Files {
			if f.Unreadable != "" {
				items = append(items, Item{Kind: KindUnreadable, Place: f.Place, Problem: f.Unreadable})
			}
			for i, b := range f.Blocks {
				if e := itemOf(b, s, now); e.Kind != "" {
					e.Place = f.At(i)
					items = append(items, e)
				}
			}
		}
		if len(roots) > 0 && len(items) > start && IsHost(s.Place) {
			items[start].Chain = chainTo(s, roots, now)
		}
	}
	for _, t := range m.Tokens {
		e := Item{Kind: KindToken, Place: t.Place, Subject: t.Name, Problem: t.Fault}
		if !t.Expires.IsZero() {
			e.until(t.Expires, now)
		}
		items = append(items, e)
	}
	return items
}

// chainTo verifies the chain of a server for any use and any name.
func chainTo(s verify.Set, roots []*x509.Certificate, now time.Time) string {
	chain := s.Files[0].Certificates()
	if len(chain) == 0 {
		return "it has no certificate" // a file whose name is host:port
	}
	if _, err := certs.Verify(chain[0], chain, roots, now); err != nil {
		return err.Error()
	}
	return "ok"
}

func (e *Item) until(t, now time.Time) {
	u, days := t.UTC(), int(math.Floor(t.Sub(now).Hours()/24))
	e.Until, e.DaysLeft = &u, &days
}

// itemOf describes a block, without its place. The kind is empty for text after
// the last block.
func itemOf(b certs.Block, s verify.Set, now time.Time) Item {
	switch {
	case b.Fault == certs.FaultTrailing:
		return Item{}
	case b.Fault != "":
		e := Item{Kind: KindUnreadable, Problem: b.Err.Error()}
		if b.IsKey() {
			e.Kind = KindKey
		}
		return e
	case b.Cert != nil:
		return certificateItem(b.Cert, now)
	case b.KeyOf != nil:
		return Item{Kind: KindKey, Subject: ownerOf(b.KeyOf, s), Algorithm: algorithm(b.KeyOf)}
	case b.CSR != nil:
		return Item{
			Kind: KindRequest, Subject: b.CSR.Subject.String(), Algorithm: algorithm(b.CSR.PublicKey),
			Signature: b.CSR.SignatureAlgorithm.String(),
		}
	default:
		from, revoked := b.CRL.ThisUpdate.UTC(), len(b.CRL.RevokedCertificateEntries)
		e := Item{
			Kind: KindCRL, Issuer: b.CRL.Issuer.String(), Signature: b.CRL.SignatureAlgorithm.String(),
			From: &from, Revoked: &revoked, crl: b.CRL,
		}
		if !b.CRL.NextUpdate.IsZero() {
			e.until(b.CRL.NextUpdate, now)
		}
		return e
	}
}

// ownerOf returns the name of the certificate in the set that has this public key.
func ownerOf(pub crypto.PublicKey, s verify.Set) string {
	for _, f := range s.Files {
		for _, c := range f.Certificates() {
			if certs.SameKey(pub, c.PublicKey) {
				return verify.Name(c)
			}
		}
	}
	return ""
}

func certificateItem(c *x509.Certificate, now time.Time) Item {
	from := c.NotBefore.UTC()
	e := Item{
		Kind:      KindCertificate,
		name:      verify.Name(c),
		Subject:   c.Subject.String(),
		Issuer:    c.Issuer.String(),
		Serial:    fmt.Sprintf("%x", c.SerialNumber.Bytes()),
		Algorithm: algorithm(c.PublicKey),
		Signature: c.SignatureAlgorithm.String(),
		From:      &from,
		SHA256:    certs.Fingerprint(c),
		CA:        c.BasicConstraintsValid && c.IsCA,
		KeyUsages: keyUsages(c.KeyUsage),
		ExtUsages: extUsages(c),
		KeyID:     certs.Colons(c.SubjectKeyId),
		SignerID:  certs.Colons(c.AuthorityKeyId),
		Names:     append([]string(nil), c.DNSNames...),
		Permitted: append(append([]string(nil), c.PermittedURIDomains...), c.PermittedDNSDomains...),
		Excluded:  append(append([]string(nil), c.ExcludedURIDomains...), c.ExcludedDNSDomains...),
	}
	e.until(c.NotAfter, now)
	if e.Algorithm == "" {
		if e.Algorithm = "other"; c.PublicKeyAlgorithm != x509.UnknownPublicKeyAlgorithm {
			e.Algorithm = c.PublicKeyAlgorithm.String()
		}
	}
	if e.CA && c.MaxPathLen >= 0 {
		e.PathLen = &c.MaxPathLen
	}
	for _, uri := range certs.URIs(c) {
		if strings.HasPrefix(uri, "spiffe:") {
			e.SPIFFEIDs = append(e.SPIFFEIDs, uri)
		} else {
			e.Names = append(e.Names, uri)
		}
	}
	for _, ip := range c.IPAddresses {
		e.Names = append(e.Names, ip.String())
	}
	e.Names = append(e.Names, c.EmailAddresses...)
	if cluster, ok := certs.ClusterOf(c); ok {
		e.Cluster = string(cluster)
	}
	return e
}

func algorithm(pub crypto.PublicKey) string {
	switch key := pub.(type) {
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA %d", key.N.BitLen())
	case *ecdsa.PublicKey:
		return "ECDSA " + key.Curve.Params().Name
	case ed25519.PublicKey:
		return "Ed25519"
	}
	return ""
}

func keyUsages(u x509.KeyUsage) []string {
	names := []string{
		"digitalSignature", "contentCommitment", "keyEncipherment", "dataEncipherment", "keyAgreement",
		"keyCertSign", "cRLSign", "encipherOnly", "decipherOnly",
	}
	var out []string
	for i, name := range names {
		if u&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return out
}

func extUsages(c *x509.Certificate) []string {
	var out []string
	for _, u := range c.ExtKeyUsage {
		out = append(out, u.String())
	}
	for _, oid := range c.UnknownExtKeyUsage {
		out = append(out, oid.String())
	}
	return out
}
