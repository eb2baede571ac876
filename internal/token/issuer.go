package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Issuer signs tokens with one ECDSA P-256 key (ES256).
type Issuer struct {
	url    string
	keyID  string
	key    *ecdsa.PrivateKey
	signer jose.Signer
}

// GenerateIssuer makes an issuer with a new key. The default issuer URL is the unique
// https://meshctl.local/<key id>.
func GenerateIssuer(issuerURL string) (*Issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make signing key: %w", err)
	}
	return NewIssuer(issuerURL, key)
}

// NewIssuer makes an issuer from a P-256 key. The key id is the RFC 7638 thumbprint of
// the key. The URL must be https, without user, query and fragment; its default is as
// in GenerateIssuer.
func NewIssuer(issuerURL string, key *ecdsa.PrivateKey) (*Issuer, error) {
	if key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("signing key is on curve %s: want P-256", key.Curve.Params().Name)
	}
	thumbprint, err := (&jose.JSONWebKey{Key: key.Public()}).Thumbprint(crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("key id of the signing key: %w", err)
	}
	i := &Issuer{url: issuerURL, keyID: base64.RawURLEncoding.EncodeToString(thumbprint), key: key}
	if i.url == "" {
		i.url = "https://meshctl.local/" + i.keyID
	}
	if err := checkIssuerURL(i.url); err != nil {
		return nil, err
	}
	i.signer, err = jose.NewSigner(jose.SigningKey{
		Algorithm: jose.ES256,
		Key:       jose.JSONWebKey{Key: key, KeyID: i.keyID},
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("signer for key %s: %w", i.keyID, err)
	}
	return i, nil
}

func checkIssuerURL(s string) error {
	u, err := url.Parse(s)
	if err != nil {
		return fmt.Errorf("issuer URL: %w", err)
	}
	if u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return fmt.Errorf("issuer URL %q: want https://<host>/<path> without user, query and fragment", s)
	}
	return nil
}

// URL returns the iss claim of the issuer's tokens.
func (i *Issuer) URL() string { return i.url }

// KeyID returns the kid header of the issuer's tokens.
func (i *Issuer) KeyID() string { return i.keyID }

// Key returns the signing key, which is a secret.
func (i *Issuer) Key() *ecdsa.PrivateKey { return i.key }

// JWKS returns the public key set for verifiers.
func (i *Issuer) JWKS() jose.JSONWebKeySet {
	return jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{
		Key: i.key.Public(), KeyID: i.keyID, Algorithm: string(jose.ES256), Use: "sig",
	}}}
}

// Create signs a token with the claims, valid from now.
func (i *Issuer) Create(c Claims, now time.Time) (string, error) {
	if err := c.Check(); err != nil {
		return "", fmt.Errorf("create token: %w", err)
	}
	iat := jwt.NewNumericDate(now)
	exp := *iat + jwt.NumericDate(c.TTL/time.Second)
	p := payload{
		Issuer:    i.url,
		Subject:   Subject(c.Namespace, c.ServiceAccount),
		Audience:  c.Audiences,
		Expiry:    &exp,
		IssuedAt:  iat,
		NotBefore: iat,
		ID:        newID(),
		Kubernetes: &kubernetes{
			Namespace:      c.Namespace,
			ServiceAccount: i.ref("serviceaccount", c.Namespace, c.ServiceAccount, c.ServiceAccountUID),
		},
	}
	if c.Pod != "" {
		pod := i.ref("pod", c.Namespace, c.Pod, c.PodUID)
		p.Kubernetes.Pod = &pod
	}
	raw, err := jwt.Signed(i.signer).Claims(p).Serialize()
	if err != nil {
		return "", fmt.Errorf("sign token for %s: %w", p.Subject, err)
	}
	if len(raw) > MaxSize {
		return "", fmt.Errorf("create token: %d bytes: want at most %d; ask for fewer audiences", len(raw), MaxSize)
	}
	return raw, nil
}

// Check returns an error if the names are no DNS names, an audience is missing or empty,
// or the life time is not within 1 second and MaxTTL.
func (c Claims) Check() error {
	if err := checkNames(c.Namespace, c.ServiceAccount); err != nil {
		return err
	}
	if c.Pod != "" && !mesh.IsDNSName(c.Pod) {
		return fmt.Errorf("pod %q is not a DNS name", c.Pod)
	}
	if len(c.Audiences) == 0 || slices.Contains(c.Audiences, "") {
		return errors.New("want at least one audience, and none empty")
	}
	if c.TTL < time.Second || c.TTL > MaxTTL {
		return fmt.Errorf("life time %s: want between 1s and %s", c.TTL, MaxTTL)
	}
	return nil
}

// ref returns a reference to an object. Without a uid from an API server, it derives
// one from the name, so that all tokens have the same.
func (i *Issuer) ref(kind, namespace, name, uid string) objectRef {
	if uid == "" {
		sum := sha256.Sum256([]byte(i.url + "\x00" + kind + "\x00" + namespace + "\x00" + name))
		uid = formatUUID([16]byte(sum[:16]), 8)
	}
	return objectRef{Name: name, UID: uid}
}

func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return formatUUID(b, 4)
}

// formatUUID formats 16 bytes as a UUID of the given version (RFC 9562).
func formatUUID(b [16]byte, version byte) string {
	b[6] = b[6]&0x0f | version<<4
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
