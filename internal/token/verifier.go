package token

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/meshctl/meshctl/internal/keyset"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Limits of a key set.
const (
	// MaxKeySetSize is the size limit of JWKS documents in bytes.
	MaxKeySetSize = keyset.MaxSize
	maxKeys       = 100
	maxKeyID      = 256
)

// ErrUnknownKey is in the error of Verify if the key set lacks the token's key id. The
// issuer may have a newer set.
var ErrUnknownKey = errors.New("unknown key id")

// ErrOtherIssuer is in the error of Verify if a key of the set signed the token, but
// the token has another iss.
var ErrOtherIssuer = errors.New("another issuer")

// Verifier checks the tokens of one issuer. It may be used concurrently.
type Verifier struct {
	Issuer    string             // the exact iss
	Keys      jose.JSONWebKeySet // from ParseKeys
	Audiences []string           // aud must name one of them
}

// ParseKeys parses a JWKS document of at most MaxKeySetSize bytes. Each key must be
// public, asymmetric and of a usable size, with a unique key id.
func ParseKeys(doc []byte) (jose.JSONWebKeySet, error) {
	var set jose.JSONWebKeySet
	if len(doc) > MaxKeySetSize {
		return set, fmt.Errorf("key set has %d bytes: want at most %d", len(doc), MaxKeySetSize)
	}
	if err := json.Unmarshal(doc, &set); err != nil {
		return jose.JSONWebKeySet{}, fmt.Errorf("key set: %w", err)
	}
	if len(set.Keys) == 0 || len(set.Keys) > maxKeys {
		return jose.JSONWebKeySet{}, fmt.Errorf("key set has %d keys: want 1 to %d", len(set.Keys), maxKeys)
	}
	seen := make(map[string]bool, len(set.Keys))
	for n, k := range set.Keys {
		if _, err := algorithm(k); err != nil {
			return jose.JSONWebKeySet{}, fmt.Errorf("key set: key %d (kid %q): %w", n, k.KeyID, err)
		}
		if k.KeyID == "" || len(k.KeyID) > maxKeyID || seen[k.KeyID] {
			return jose.JSONWebKeySet{}, fmt.Errorf("key set: key %d: kid %q is missing, too long or used twice", n, k.KeyID)
		}
		seen[k.KeyID] = true
	}
	return set, nil
}

// algorithm returns the only signature algorithm for tokens of the key. The token does
// not choose it, so a public key can never serve as an HMAC secret.
func algorithm(k jose.JSONWebKey) (jose.SignatureAlgorithm, error) {
	if err := keyset.Check(&k); err != nil {
		return "", err
	}
	alg := jose.EdDSA
	switch key := k.Key.(type) {
	case *ecdsa.PublicKey:
		alg = map[string]jose.SignatureAlgorithm{"P-256": jose.ES256, "P-384": jose.ES384, "P-521": jose.ES512}[key.Curve.Params().Name]
	case *rsa.PublicKey:
		alg = jose.RS256
	}
	if k.Algorithm != "" && k.Algorithm != string(alg) {
		return "", fmt.Errorf("alg is %q: want %s", k.Algorithm, alg)
	}
	return alg, nil
}

// Verify checks the signature and the claims of a token in compact form and returns the
// claims. Errors never contain the token.
func (v *Verifier) Verify(raw string, now time.Time) (Claims, error) {
	p, err := v.open(raw)
	if err != nil {
		return Claims{}, fmt.Errorf("token: %w", err)
	}
	c, err := v.check(p, now)
	if err != nil {
		return Claims{}, fmt.Errorf("token of issuer %q: %w", v.Issuer, err)
	}
	return c, nil
}

// header has the checked fields of a token's header.
type header struct {
	Algorithm string         `json:"alg"`
	KeyID     string         `json:"kid"`
	Critical  jsontext.Value `json:"crit"`
	Unencoded jsontext.Value `json:"b64"`
}

// open checks the form and the signature of a token and returns its claims.
func (v *Verifier) open(raw string) (payload, error) {
	var p payload
	h, err := parseHeader(raw)
	if err != nil {
		return p, err
	}
	keys := v.Keys.Key(h.KeyID)
	switch len(keys) {
	case 0:
		return p, fmt.Errorf("%w %q", ErrUnknownKey, h.KeyID)
	case 1:
	default:
		return p, fmt.Errorf("kid %q names %d keys", h.KeyID, len(keys))
	}
	alg, err := algorithm(keys[0])
	if err != nil {
		return p, fmt.Errorf("key %q: %w", h.KeyID, err)
	}
	if h.Algorithm != string(alg) {
		return p, fmt.Errorf("unexpected signature algorithm %.20q: key %q is for %s", h.Algorithm, h.KeyID, alg)
	}
	claims, err := signedClaims(raw, keys[0], alg)
	if err != nil {
		return p, fmt.Errorf("the signature is not of key %q", h.KeyID)
	}
	// This decoder refuses duplicate names and names in other letter case.
	if err := json.Unmarshal(claims, &p); err != nil {
		return p, fmt.Errorf("claims: %w", err)
	}
	return p, nil
}

func parseHeader(raw string) (header, error) {
	text, _, err := split(raw)
	if err != nil {
		return header{}, err
	}
	var h header
	switch err := json.Unmarshal(text, &h); {
	case err != nil:
		return header{}, errors.New("invalid header: want an object of JSON in base64")
	case h.Critical != nil, h.Unencoded != nil:
		return header{}, errors.New(`the headers "crit" and "b64" are not supported`)
	case len(h.KeyID) > maxKeyID:
		return header{}, fmt.Errorf("kid is longer than %d bytes", maxKeyID)
	}
	return h, nil
}

// split decodes the header and the claims of a token in compact form. It accepts a
// single spelling of each token, while go-jose accepts several.
func split(raw string) (header, claims []byte, err error) {
	if len(raw) > MaxSize {
		return nil, nil, fmt.Errorf("%d bytes long: want at most %d", len(raw), MaxSize)
	}
	parts := strings.SplitN(raw, ".", 4)
	var decoded [3][]byte
	if len(parts) != len(decoded) || strings.ContainsAny(raw, "\r\n") {
		return nil, nil, errNotCompact
	}
	for i, part := range parts {
		if decoded[i], err = base64.RawURLEncoding.Strict().DecodeString(part); err != nil {
			return nil, nil, errNotCompact
		}
	}
	return decoded[0], decoded[1], nil
}

var errNotCompact = errors.New("not a JWT in compact form")

// UnverifiedIssuer returns the iss claim of an unverified token, to choose its verifier.
func UnverifiedIssuer(raw string) (string, error) {
	_, text, err := split(raw)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	if err := json.Unmarshal(text, &claims); err != nil {
		return "", errors.New("token: its claims are not those of a JWT")
	}
	return claims.Issuer, nil
}

// Unverified holds claims of a token whose signature was not checked, to explain why a token is
// refused. A missing time is zero.
type Unverified struct {
	Issuer, Subject              string
	Audiences                    []string
	IssuedAt, NotBefore, Expires time.Time
}

// ParseUnverified returns the claims of a token in compact form. Errors never contain the
// token.
func ParseUnverified(raw string) (Unverified, error) {
	_, text, err := split(raw)
	if err != nil {
		return Unverified{}, fmt.Errorf("token: %w", err)
	}
	var p payload
	if err := json.Unmarshal(text, &p); err != nil {
		return Unverified{}, errors.New("token: its claims are not the claims of a JWT")
	}
	at := func(d *jwt.NumericDate) time.Time {
		if d == nil {
			return time.Time{}
		}
		return d.Time()
	}
	return Unverified{
		Issuer: p.Issuer, Subject: p.Subject, Audiences: p.Audience,
		IssuedAt: at(p.IssuedAt), NotBefore: at(p.NotBefore), Expires: at(p.Expiry),
	}, nil
}

func signedClaims(raw string, key jose.JSONWebKey, alg jose.SignatureAlgorithm) ([]byte, error) {
	signed, err := jose.ParseSignedCompact(raw, []jose.SignatureAlgorithm{alg})
	if err != nil {
		return nil, err
	}
	return signed.Verify(key)
}

func (v *Verifier) check(p payload, now time.Time) (Claims, error) {
	if p.Issuer == "" || p.Issuer != v.Issuer {
		return Claims{}, fmt.Errorf("%w: iss is %q", ErrOtherIssuer, p.Issuer)
	}
	if !slices.ContainsFunc(v.Audiences, func(a string) bool { return a != "" && slices.Contains(p.Audience, a) }) {
		return Claims{}, fmt.Errorf("aud is %q: want one of %q", p.Audience, v.Audiences)
	}
	if err := checkTimes(p, now); err != nil {
		return Claims{}, err
	}
	c := Claims{
		Audiences: p.Audience,
		Issuer:    p.Issuer,
		ID:        p.ID,
		IssuedAt:  p.IssuedAt.Time(),
		TTL:       time.Duration(*p.Expiry-*p.IssuedAt) * time.Second,
	}
	var err error
	if c.Namespace, c.ServiceAccount, err = ParseSubject(p.Subject); err != nil {
		return Claims{}, err
	}
	k := p.Kubernetes
	if k == nil {
		return c, nil
	}
	if k.Namespace != c.Namespace || k.ServiceAccount.Name != c.ServiceAccount {
		return Claims{}, fmt.Errorf("sub is %q but kubernetes.io names %q/%q", p.Subject, k.Namespace, k.ServiceAccount.Name)
	}
	c.ServiceAccountUID = k.ServiceAccount.UID
	if k.Pod != nil {
		if !mesh.IsDNSName(k.Pod.Name) {
			return Claims{}, fmt.Errorf("pod %q is not a DNS name", k.Pod.Name)
		}
		c.Pod, c.PodUID = k.Pod.Name, k.Pod.UID
	}
	return c, nil
}

// maxTime is the end of the year 9999: later times cannot be printed.
const maxTime = 253402300799

func checkTimes(p payload, now time.Time) error {
	if p.Expiry == nil || p.IssuedAt == nil {
		return errors.New("exp and iat are required")
	}
	notBefore := *p.IssuedAt
	if p.NotBefore != nil {
		notBefore = *p.NotBefore
	}
	for _, t := range []jwt.NumericDate{*p.Expiry, *p.IssuedAt, notBefore} {
		if t < 0 || t > maxTime {
			return fmt.Errorf("%d is not a time in seconds", t)
		}
	}
	if *p.Expiry <= *p.IssuedAt || *p.Expiry <= notBefore {
		return errors.New("exp is not after iat and nbf")
	}
	if *p.Expiry-*p.IssuedAt > jwt.NumericDate(MaxTTL/time.Second) {
		return fmt.Errorf("lives longer than %s", MaxTTL)
	}
	if exp := p.Expiry.Time(); !now.Before(exp.Add(Leeway)) {
		return fmt.Errorf("expired at %s", exp.UTC().Format(time.RFC3339))
	}
	for _, t := range []*jwt.NumericDate{&notBefore, p.IssuedAt} {
		if now.Add(Leeway).Before(t.Time()) {
			return fmt.Errorf("not valid before %s", t.Time().UTC().Format(time.RFC3339))
		}
	}
	return nil
}
