package certs

import (
	"bytes"
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
	"math"
	"net/url"

	"github.com/meshctl/meshctl/internal/mesh"
)

// maxCSR is the size limit of certificate requests in bytes. A request with an RSA
// key of 4096 bits has about 1,700.
const maxCSR = 16 << 10

const blockCSR = "CERTIFICATE REQUEST"

// ParseCSR parses a certificate request: a single PEM block whose key checkPublicKey
// accepts and whose signature is by that key. It checks the key first, so that an
// expensive key is never used. Callers should use only the public key.
func ParseCSR(data []byte) (*x509.CertificateRequest, error) {
	if len(data) > maxCSR {
		return nil, fmt.Errorf("certificate request has %d bytes, more than the %d allowed", len(data), maxCSR)
	}
	data = bytes.TrimSpace(data)
	if !bytes.HasPrefix(data, []byte("-----BEGIN "+blockCSR+"-----")) {
		return nil, fmt.Errorf("certificate request does not start with a PEM block %q", blockCSR)
	}
	block, rest := pem.Decode(data)
	if block == nil || len(rest) > 0 || len(block.Headers) > 0 || bytes.Count(data, []byte("-----BEGIN")) != 1 {
		return nil, errors.New("certificate request is not one whole PEM block without headers")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	if err := checkPublicKey(csr.PublicKey); err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request: its signature does not verify: %w", err)
	}
	return csr, nil
}

// checkPublicKey accepts strong keys that are cheap to use: RSA of 2048 to 4096 bits
// with an ordinary exponent, P-256, P-384, P-521 and Ed25519.
func checkPublicKey(pub crypto.PublicKey) error {
	switch key := pub.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < 2048 || bits > 4096 {
			return fmt.Errorf("the RSA key has %d bits, want 2048 to 4096", bits)
		}
		if key.E < 1<<16+1 || key.E > math.MaxInt32 || key.E%2 == 0 {
			return fmt.Errorf("the RSA key has the exponent %d, want an odd one from 65537 to %d", key.E, math.MaxInt32)
		}
		return nil
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256(), elliptic.P384(), elliptic.P521():
			return nil
		}
		return fmt.Errorf("the key is on the curve %s, want P-256, P-384 or P-521", key.Curve.Params().Name)
	case ed25519.PublicKey:
		return nil
	}
	return errors.New("the key is of another kind than RSA, ECDSA and Ed25519")
}

// NewCSR makes a certificate request for key in PEM. It names id unless that is zero,
// although issuers use the identity of the authenticated caller.
func NewCSR(key crypto.Signer, id mesh.Identity) ([]byte, error) {
	template := &x509.CertificateRequest{}
	if id != (mesh.Identity{}) {
		uri, err := url.Parse(id.String())
		if err != nil {
			return nil, fmt.Errorf("make certificate request: %w", err)
		}
		template.URIs = []*url.URL{uri}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockCSR, Bytes: der}), nil
}
