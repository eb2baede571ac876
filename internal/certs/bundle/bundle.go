// Package bundle reads, joins, compares and writes trust bundles in PEM and in the JSON
// format of the SPIFFE specification. It does no I/O.
package bundle

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/meshctl/meshctl/internal/certs"
)

// maxRoots bounds the certificates of a bundle.
const maxRoots = 5000

// Bundle is a set of roots. It is immutable.
type Bundle struct {
	// Roots are distinct and sorted by subject, start and fingerprint.
	Roots []*x509.Certificate
	// spiffe has the other content of a SPIFFE bundle; nil for PEM.
	spiffe *spiffebundle.Bundle
}

// Parse parses a bundle: SPIFFE JSON if data starts with a brace, else PEM. A certificate
// that is not a CA is an error.
func Parse(data []byte) (*Bundle, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		roots, err := certs.ParseCerts(data)
		if err != nil {
			return nil, err
		}
		return newBundle(roots, nil)
	}
	// The document does not name its trust domain, but Parse needs one.
	s, err := spiffebundle.Parse(spiffeid.RequireTrustDomainFromString("unnamed"), data)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "spiffebundle: "))
	}
	return newBundle(s.X509Authorities(), s)
}

func newBundle(roots []*x509.Certificate, s *spiffebundle.Bundle) (*Bundle, error) {
	switch {
	case len(roots) == 0:
		return nil, errors.New("holds no root")
	case len(roots) > maxRoots:
		return nil, fmt.Errorf("holds %d certificates, more than the %d allowed", len(roots), maxRoots)
	}
	for i, c := range roots {
		if !c.BasicConstraintsValid || !c.IsCA {
			name := cmp.Or(c.Subject.String(), strings.Join(append(certs.URIs(c), c.DNSNames...), ", "))
			return nil, fmt.Errorf("certificate %d (%q) is not a CA, so it is no root of anything", i+1, name)
		}
	}
	return &Bundle{Roots: arrange(roots), spiffe: s}, nil
}

// arrange sorts roots and removes duplicates.
func arrange(roots []*x509.Certificate) []*x509.Certificate {
	roots = slices.Clone(roots)
	slices.SortFunc(roots, func(a, b *x509.Certificate) int {
		x, y := sha256.Sum256(a.Raw), sha256.Sum256(b.Raw)
		return cmp.Or(
			cmp.Compare(a.Subject.String(), b.Subject.String()),
			a.NotBefore.Compare(b.NotBefore),
			bytes.Compare(x[:], y[:]),
		)
	})
	return slices.CompactFunc(roots, (*x509.Certificate).Equal)
}

// Join returns a bundle with the roots of all bundles and, from SPIFFE bundles, the keys
// for tokens, the highest sequence number and the shortest refresh hint. Different keys
// under one id are an error.
func Join(all ...*Bundle) (*Bundle, error) {
	var roots []*x509.Certificate
	known, jwt, wit := map[string]crypto.PublicKey{}, map[string]crypto.PublicKey{}, map[string]crypto.PublicKey{}
	joined := spiffebundle.New(spiffeid.TrustDomain{})
	for _, b := range all {
		roots = append(roots, b.Roots...)
		if b.spiffe == nil {
			continue
		}
		for name, key := range b.tokenKeys() {
			if other, ok := known[name]; ok && !certs.SameKey(other, key) {
				return nil, fmt.Errorf("%s: two bundles have different keys under this id; leave out the bundle that is out of date", name)
			}
			known[name] = key
		}
		maps.Copy(jwt, b.spiffe.JWTAuthorities())
		maps.Copy(wit, b.spiffe.WITAuthorities())
		if n, ok := b.spiffe.SequenceNumber(); ok {
			m, _ := joined.SequenceNumber()
			joined.SetSequenceNumber(max(n, m))
		}
		if hint, ok := b.spiffe.RefreshHint(); ok {
			if shortest, ok := joined.RefreshHint(); !ok || hint < shortest {
				joined.SetRefreshHint(hint)
			}
		}
	}
	joined.SetJWTAuthorities(jwt)
	joined.SetWITAuthorities(wit)
	return newBundle(roots, joined)
}

// Published returns the sequence number and the refresh hint of a SPIFFE bundle, 0 if
// missing.
func (b *Bundle) Published() (sequence uint64, refresh time.Duration) {
	if b.spiffe == nil {
		return 0, 0
	}
	sequence, _ = b.spiffe.SequenceNumber()
	refresh, _ = b.spiffe.RefreshHint()
	return sequence, refresh
}

// PEM encodes the roots.
func (b *Bundle) PEM() []byte { return certs.EncodeCerts(b.Roots...) }

// TokenKeys returns the ids of the keys for tokens. PEM has none.
func (b *Bundle) TokenKeys() []string {
	if b.spiffe == nil {
		return nil
	}
	ids := slices.AppendSeq(slices.Collect(maps.Keys(b.spiffe.JWTAuthorities())), maps.Keys(b.spiffe.WITAuthorities()))
	slices.Sort(ids)
	return ids
}

// SPIFFE encodes the bundle as the JSON document of a SPIFFE bundle endpoint. A sequence
// of 0 keeps the present one.
func (b *Bundle) SPIFFE(sequence uint64, refresh time.Duration) ([]byte, error) {
	out := spiffebundle.New(spiffeid.TrustDomain{})
	if b.spiffe != nil {
		out = b.spiffe.Clone()
	}
	out.SetX509Authorities(b.Roots)
	if sequence > 0 {
		out.SetSequenceNumber(sequence)
	}
	if refresh > 0 {
		out.SetRefreshHint(refresh)
	}
	data, err := out.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode SPIFFE bundle: %w", err)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, data, "", "  "); err != nil {
		return nil, fmt.Errorf("encode SPIFFE bundle: %w", err)
	}
	indented.WriteByte('\n')
	return indented.Bytes(), nil
}

// Diff returns the roots that are in only one of two bundles.
func Diff(a, b *Bundle) (onlyA, onlyB []*x509.Certificate) {
	return without(a, b), without(b, a)
}

func without(a, b *Bundle) []*x509.Certificate {
	return slices.DeleteFunc(slices.Clone(a.Roots), func(c *x509.Certificate) bool {
		return slices.ContainsFunc(b.Roots, c.Equal)
	})
}

// DiffTokenKeys returns the keys for tokens that are in only one of two bundles. An id
// with different keys is in both results. A bundle in PEM never differs.
func DiffTokenKeys(a, b *Bundle) (onlyA, onlyB []string) {
	if a.spiffe == nil || b.spiffe == nil {
		return nil, nil
	}
	x, y := a.tokenKeys(), b.tokenKeys()
	return keysWithout(x, y), keysWithout(y, x)
}

// tokenKeys returns the keys for tokens by name.
func (b *Bundle) tokenKeys() map[string]crypto.PublicKey {
	keys := map[string]crypto.PublicKey{}
	for id, key := range b.spiffe.JWTAuthorities() {
		keys[fmt.Sprintf("JWT key %q", id)] = key
	}
	for id, key := range b.spiffe.WITAuthorities() {
		keys[fmt.Sprintf("WIT key %q", id)] = key
	}
	return keys
}

func keysWithout(a, b map[string]crypto.PublicKey) (only []string) {
	for name, key := range a {
		if !certs.SameKey(key, b[name]) {
			only = append(only, name)
		}
	}
	slices.Sort(only)
	return only
}
