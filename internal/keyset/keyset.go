// Package keyset reads sets of keys (JWKS) that verify the tokens of applications, and
// keeps of them what verification needs.
package keyset

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/go-jose/go-jose/v4"
)

// Limits of a key set.
const (
	// MaxSize is the size limit of documents in bytes.
	MaxSize    = 1 << 20
	maxKeys    = 100
	minRSABits = 2048
	maxRSABits = 8192
	minSecret  = 32 // bytes
)

// Origin is the place from which a key set comes.
type Origin bool

// The origins of key sets.
const (
	Fetched Origin = false // from a URL: a secret key in it is public
	Inline  Origin = true
)

// Nobodys is a key set that verifies no token: its key comes from a hash, so that no one
// knows its private key. Envoy refuses an empty key set.
const Nobodys = `{"keys":[{"kty":"EC","kid":"nobody","crv":"P-256","alg":"ES256","x":"aWzp6p5PoS78Ji-ctnqbISCDWLSuNkglyNCYSJpbTPM","y":"ZGFR4UeyRbm14q3iAXyf7klBm45Gl1WZqky8PV6BvKU"}]}`

// Parse returns the usable keys of a document as a JWKS, which has the same text for the
// same keys. Private keys become public. Keys of other kinds, and weak ones, are left out:
// the error of each is in leftOut. A document without a usable key is an error.
func Parse(doc []byte, from Origin) (keys string, leftOut []error, err error) {
	if len(doc) > MaxSize {
		return "", nil, fmt.Errorf("has %d bytes: want at most %d", len(doc), MaxSize)
	}
	var in struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(doc, &in); err != nil {
		return "", nil, errors.New("is not a JSON Web Key Set")
	}
	if len(in.Keys) == 0 || len(in.Keys) > maxKeys {
		return "", nil, fmt.Errorf("has %d keys: want 1 to %d", len(in.Keys), maxKeys)
	}
	var out jose.JSONWebKeySet
	for n, text := range in.Keys {
		key, err := parseKey(text, from)
		if err != nil {
			leftOut = append(leftOut, fmt.Errorf("key %d: %w", n, err))
			continue
		}
		out.Keys = append(out.Keys, key)
	}
	if len(out.Keys) == 0 {
		return "", leftOut, fmt.Errorf("has no usable key: %w", leftOut[0])
	}
	text, err := json.Marshal(out)
	if err != nil {
		return "", leftOut, fmt.Errorf("does not encode: %w", err)
	}
	return string(text), leftOut, nil
}

// HasPrivateKey reports whether a document has the private part of a key with a public one.
func HasPrivateKey(doc []byte) bool {
	var in struct {
		Keys []jose.JSONWebKey `json:"keys"`
	}
	if len(doc) > MaxSize || json.Unmarshal(doc, &in) != nil {
		return false
	}
	return slices.ContainsFunc(in.Keys, func(k jose.JSONWebKey) bool {
		_, isSecret := k.Key.([]byte)
		return !isSecret && !k.IsPublic()
	})
}

// parseKey returns what verification needs of a key.
func parseKey(text []byte, from Origin) (jose.JSONWebKey, error) {
	var in jose.JSONWebKey
	if err := in.UnmarshalJSON(text); err != nil {
		return in, errors.New("is no key of a known kind")
	}
	secret, isSecret := in.Key.([]byte)
	if !isSecret {
		in = in.Public()
	}
	out := jose.JSONWebKey{Key: in.Key, KeyID: in.KeyID, Algorithm: in.Algorithm, Use: in.Use}
	if isSecret && from == Inline {
		if len(secret) < minSecret {
			return out, fmt.Errorf("secret key of %d bytes: want at least %d", len(secret), minSecret)
		}
		return out, checkUse(&out)
	}
	return out, Check(&out)
}

// Check returns an error for a key that does not verify tokens, or is too weak to.
func Check(k *jose.JSONWebKey) error {
	switch key := k.Key.(type) {
	case *ecdsa.PublicKey:
		switch name := key.Curve.Params().Name; name {
		case "P-256", "P-384", "P-521":
		default:
			return fmt.Errorf("curve %s is not supported", name)
		}
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSABits || bits > maxRSABits {
			return fmt.Errorf("RSA key of %d bits: want %d to %d", bits, minRSABits, maxRSABits)
		}
	case ed25519.PublicKey:
		if len(key) != ed25519.PublicKeySize {
			return fmt.Errorf("Ed25519 key of %d bytes", len(key))
		}
	default:
		return errors.New("want a public ECDSA, RSA or Ed25519 key")
	}
	return checkUse(k)
}

func checkUse(k *jose.JSONWebKey) error {
	if k.Use != "" && k.Use != "sig" {
		return fmt.Errorf("use is %.100q: want sig", k.Use)
	}
	return nil
}
