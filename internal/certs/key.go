package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

// Algorithm names a kind and size of private key.
type Algorithm string

// The algorithms of new keys.
const (
	ECDSAP256 Algorithm = "ecdsa-p256"
	ECDSAP384 Algorithm = "ecdsa-p384"
	RSA2048   Algorithm = "rsa-2048"
	RSA3072   Algorithm = "rsa-3072"
	RSA4096   Algorithm = "rsa-4096"
	Ed25519   Algorithm = "ed25519"
)

// Algorithms returns all algorithms, the default first.
func Algorithms() []Algorithm {
	return []Algorithm{ECDSAP256, ECDSAP384, RSA2048, RSA3072, RSA4096, Ed25519}
}

// AlgorithmOf returns the algorithm of a public key, or false for a key that
// GenerateKey does not make.
func AlgorithmOf(pub crypto.PublicKey) (Algorithm, bool) {
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return ECDSAP256, true
		case elliptic.P384():
			return ECDSAP384, true
		}
	case *rsa.PublicKey:
		a := Algorithm(fmt.Sprintf("rsa-%d", k.N.BitLen()))
		return a, slices.Contains(Algorithms(), a)
	case ed25519.PublicKey:
		return Ed25519, true
	}
	return "", false
}

// GenerateKey makes a private key from the system's randomness; since Go 1.26 the
// standard library ignores other sources for most algorithms.
func GenerateKey(a Algorithm) (crypto.Signer, error) {
	switch a {
	case ECDSAP256:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case ECDSAP384:
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case RSA2048:
		return rsa.GenerateKey(rand.Reader, 2048)
	case RSA3072:
		return rsa.GenerateKey(rand.Reader, 3072)
	case RSA4096:
		return rsa.GenerateKey(rand.Reader, 4096)
	case Ed25519:
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}
	return nil, fmt.Errorf("unknown key algorithm %q: want one of %q", a, Algorithms())
}

// EncodeKey encodes a private key as PKCS #8 in PEM.
func EncodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// ParseKey parses one private key in PEM: PKCS #8, PKCS #1 or SEC 1. Errors contain
// no part of the data.
func ParseKey(data []byte) (crypto.Signer, error) {
	blocks, err := decodePEM(data)
	if err != nil {
		return nil, err
	}
	// openssl ecparam -genkey writes the curve before the key.
	blocks = slices.DeleteFunc(blocks, func(b *pem.Block) bool { return b.Type == blockECParameters })
	if len(blocks) != 1 {
		return nil, fmt.Errorf("holds %d PEM blocks, want one private key", len(blocks))
	}
	return parseKeyBlock(blocks[0])
}

func isEncrypted(block *pem.Block) bool {
	return block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != ""
}

func parseKeyBlock(block *pem.Block) (crypto.Signer, error) {
	if isEncrypted(block) {
		return nil, errEncrypted
	}
	var (
		key any
		err error
	)
	switch block.Type {
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	default:
		return nil, fmt.Errorf("holds a PEM block %q, want a private key", block.Type)
	}
	if err != nil {
		return nil, errors.New("the private key is damaged or of an unknown kind")
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the private key (%T) cannot sign", key)
	}
	return signer, nil
}

// SameKey reports whether two public keys are equal.
func SameKey(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}
