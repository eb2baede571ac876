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

// Kinds of entries.
const (
	KindCertificate = "certificate"
	KindKey         = "private key"
	KindRequest     = "certificate request"
	KindCRL         = "revocation list"
	KindToken       = "token"
	KindUnreadable  = "unreadable"
)

// Item is one thing that was found.
type Item struct {
	Kind  string `json:"kind"`
	Place string `json:"place"` // file or key of a Secret, and line
	// Subject is also that of the certificate which a key belongs to, and of a
	// token.
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
	// Chain is whether the chain that begins here leads to a given root: "ok",
	// or why not. It is empty when no roots were given.
	Chain string `json:"chain,omitzero"`
	// Problem is why the thing could not be read, empty when it could.
	Problem string `json:"problem,omitzero"`
}

// List lists everything that was found, in order. roots, if any, are what
// the chains that servers show are held against.
func List(m *Contents, roots []*x509.Certificate, now time.Time) []Item {
	entries := []Item{}
	for _, s := range m.Sets {
		start := len(entries)
		for _, f := range s.Files {
			if f.Unreadable != "" {
				entries = append(entries, Item{Kind: KindUnreadable, Place: f.Place, Problem: f.Unreadable})
			}
			for i, b := range f.Blocks {
				if e := itemOf(b, s, now); e.Kind != "" {
					e.Place = f.At(i)
					entries = append(entries, e)
				}
			}
		}
		if len(roots) > 0 && len(entries) > start && IsHost(s.Place) {
			entries[start].Chain = chainTo(s, roots, now)
		}
	}
	for _, t := range m.Tokens {
		e := Item{Kind: KindToken, Place: t.Place, Subject: t.Name, Problem: t.Fault}
		if !t.Expires.IsZero() {
			e.until(t.Expires, now)
		}
		entries = append(entries, e)
	}
	return entries
}

// chainTo verifies the chain of a server, for any use and any name.
func chainTo(s verify.Set, roots []*x509.Certificate, now time.Time) string {
	others := x509.NewCertPool()
	var first *x509.Certificate
	for _, f := range s.Files {
		for _, b := range f.Blocks {
			if first == nil {
				first = b.Cert
			}
			others.AddCert(b.Cert)
		}
	}
	_, err := first.Verify(x509.VerifyOptions{
		Roots: certs.Pool(roots), Intermediates: others, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return err.Error()
	}
	return "ok"
}

func (e *Item) until(t, now time.Time) {
	u, days := t.UTC(), int(math.Floor(t.Sub(now).Hours()/24))
	e.Until, e.DaysLeft = &u, &days
}

// itemOf is the entry of a block without its place; its kind is empty for
// text behind the last block.
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
			From: &from, Revoked: &revoked,
		}
		if !b.CRL.NextUpdate.IsZero() {
			e.until(b.CRL.NextUpdate, now)
		}
		return e
	}
}

// ownerOf names the certificate of the set that a private key belongs to.
func ownerOf(pub crypto.PublicKey, s verify.Set) string {
	for _, f := range s.Files {
		for _, b := range f.Blocks {
			if b.Cert != nil && certs.SameKey(pub, b.Cert.PublicKey) {
				return verify.Name(b.Cert)
			}
		}
	}
	return ""
}

func certificateItem(c *x509.Certificate, now time.Time) Item {
	from := c.NotBefore.UTC()
	e := Item{
		Kind:      KindCertificate,
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
		KeyID:     colons(c.SubjectKeyId),
		SignerID:  colons(c.AuthorityKeyId),
		Names:     append([]string(nil), c.DNSNames...),
		Permitted: append(append([]string(nil), c.PermittedURIDomains...), c.PermittedDNSDomains...),
		Excluded:  append(append([]string(nil), c.ExcludedURIDomains...), c.ExcludedDNSDomains...),
	}
	e.until(c.NotAfter, now)
	if e.Algorithm == "" {
		e.Algorithm = c.PublicKeyAlgorithm.String()
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

func colons(id []byte) string {
	return strings.ReplaceAll(fmt.Sprintf("% X", id), " ", ":")
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
