// Package bundle handles trust bundles, the roots that peers trust: as PEM and
// in the JSON of the SPIFFE specification. It does no I/O.
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
	// Roots are all different, and in an order that depends on nothing but
	// them: by subject, then by start, then by fingerprint.
	Roots []*x509.Certificate
	// spiffe is what a SPIFFE bundle has besides the roots; nil for PEM.
	spiffe *spiffebundle.Bundle
}

// Parse reads a bundle: SPIFFE JSON when data starts with a brace, else PEM.
// A certificate that is not a CA is an error, for nothing can be signed by it.
func Parse(data []byte) (*Bundle, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		roots, err := certs.ParseCerts(data)
		if err != nil {
			return nil, err
		}
		return newBundle(roots, nil)
	}
	// The document does not say whose it is; a name is only asked for.
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

// arrange orders roots and removes duplicates.
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

// Join returns a bundle with the roots of all. Of SPIFFE bundles it keeps the
// keys for tokens, too, the highest sequence number and the shortest refresh
// hint. Different keys under one id are an error: there is no telling which of
// them checks a token.
func Join(all ...*Bundle) (*Bundle, error) {
	var roots []*x509.Certificate
	joined := spiffebundle.New(spiffeid.TrustDomain{})
	for _, b := range all {
		roots = append(roots, b.Roots...)
		if b.spiffe == nil {
			continue
		}
		for id, key := range b.spiffe.JWTAuthorities() {
			if known, ok := joined.FindJWTAuthority(id); ok && !certs.SameKey(known, key) {
				return nil, conflictError(jwtKey(id))
			}
			if err := joined.AddJWTAuthority(id, key); err != nil {
				return nil, fmt.Errorf("%s: %w", jwtKey(id), err)
			}
		}
		for id, key := range b.spiffe.WITAuthorities() {
			if known, ok := joined.FindWITAuthority(id); ok && !certs.SameKey(known, key) {
				return nil, conflictError(witKey(id))
			}
			if err := joined.AddWITAuthority(id, key); err != nil {
				return nil, fmt.Errorf("%s: %w", witKey(id), err)
			}
		}
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
	return newBundle(roots, joined)
}

func jwtKey(id string) string { return fmt.Sprintf("JWT key %q", id) }
func witKey(id string) string { return fmt.Sprintf("WIT key %q", id) }

func conflictError(name string) error {
	return fmt.Errorf("%s: two bundles have different keys under this id; leave out the bundle that is out of date", name)
}

// Published returns what a SPIFFE bundle says of itself: its sequence number and
// how often it wants to be asked for, 0 for what it does not say.
func (b *Bundle) Published() (sequence uint64, refresh time.Duration) {
	if b.spiffe == nil {
		return 0, 0
	}
	sequence, _ = b.spiffe.SequenceNumber()
	refresh, _ = b.spiffe.RefreshHint()
	return sequence, refresh
}

// PEM renders the roots.
func (b *Bundle) PEM() []byte { return certs.EncodeCerts(b.Roots...) }

// TokenKeys lists the ids of the keys that check tokens. PEM has no place for
// them.
func (b *Bundle) TokenKeys() []string {
	if b.spiffe == nil {
		return nil
	}
	ids := slices.AppendSeq(slices.Collect(maps.Keys(b.spiffe.JWTAuthorities())), maps.Keys(b.spiffe.WITAuthorities()))
	slices.Sort(ids)
	return ids
}

// SPIFFE renders the bundle as the JSON document that a SPIFFE bundle endpoint
// serves. A sequence of 0 keeps the one that there is, if any.
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

// Diff returns the roots that only one of two bundles has.
func Diff(a, b *Bundle) (onlyA, onlyB []*x509.Certificate) {
	return without(a, b), without(b, a)
}

func without(a, b *Bundle) []*x509.Certificate {
	return slices.DeleteFunc(slices.Clone(a.Roots), func(c *x509.Certificate) bool {
		return slices.ContainsFunc(b.Roots, c.Equal)
	})
}

// DiffTokenKeys returns the keys for tokens that only one of two bundles has;
// one under the id of a different key is in both lists. PEM has no place for
// such keys, so with it there is no difference.
func DiffTokenKeys(a, b *Bundle) (onlyA, onlyB []string) {
	if a.spiffe == nil || b.spiffe == nil {
		return nil, nil
	}
	x, y := a.tokenKeys(), b.tokenKeys()
	return keysWithout(x, y), keysWithout(y, x)
}

// tokenKeys are the keys for tokens by what they are called.
func (b *Bundle) tokenKeys() map[string]crypto.PublicKey {
	keys := map[string]crypto.PublicKey{}
	for id, key := range b.spiffe.JWTAuthorities() {
		keys[jwtKey(id)] = key
	}
	for id, key := range b.spiffe.WITAuthorities() {
		keys[witKey(id)] = key
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
