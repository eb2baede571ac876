package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// tokenIssuer signs service-account tokens like those of an API server for pods, either with
// RSA of 2048 bits, as API servers do, or with P-256.
type tokenIssuer struct {
	url string
	rsa *rsa.PrivateKey
	ec  *ecdsa.PrivateKey
}

// The algorithms of tokens.
const (
	rs256 = "RS256"
	es256 = "ES256"
)

func newTokenIssuer() (*tokenIssuer, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &tokenIssuer{"https://kubernetes.default.svc.cluster.local", key, ec}, nil
}

// save writes the files with which a server checks the tokens.
func (i *tokenIssuer) save(dir string) error {
	point, err := i.ec.PublicKey.Bytes()
	if err != nil {
		return err
	}
	text := base64.RawURLEncoding.EncodeToString
	jwks, err := json.Marshal(map[string]any{"keys": []map[string]string{
		{"kty": "RSA", "alg": rs256, "kid": rs256, "use": "sig", "n": text(i.rsa.N.Bytes()), "e": text(big.NewInt(int64(i.rsa.E)).Bytes())},
		{"kty": "EC", "alg": es256, "kid": es256, "use": "sig", "crv": "P-256", "x": text(point[1:33]), "y": text(point[33:])},
	}})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "issuer"), []byte(i.url+"\n"), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "jwks.json"), jwks, 0o644)
}

// token makes a new token.
func (i *tokenIssuer) token(alg, namespace, account string, now time.Time) (string, error) {
	uid := func(seed string) string {
		sum := sha256.Sum256([]byte(seed))
		return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
	}
	ref := func(name string) map[string]string { return map[string]string{"name": name, "uid": uid(name)} }
	claims, err := json.Marshal(map[string]any{
		"aud": []string{"istio-ca"}, "exp": now.Add(12 * time.Hour).Unix(), "iat": now.Unix(), "nbf": now.Unix(),
		"iss": i.url, "jti": uid(rand.Text()), "sub": "system:serviceaccount:" + namespace + ":" + account,
		"kubernetes.io": map[string]any{
			"namespace": namespace, "node": ref("worker-1.example.com"), "pod": ref(account + "-5d8f7b6c9d-x2x4x"), "serviceaccount": ref(account),
		},
	})
	if err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString
	signed := text([]byte(`{"alg":"`+alg+`","kid":"`+alg+`"}`)) + "." + text(claims)
	signature, err := i.sign(alg, sha256.Sum256([]byte(signed)))
	return signed + "." + text(signature), err
}

func (i *tokenIssuer) sign(alg string, sum [sha256.Size]byte) ([]byte, error) {
	if alg == rs256 {
		return i.rsa.Sign(rand.Reader, sum[:], crypto.SHA256)
	}
	r, s, err := ecdsa.Sign(rand.Reader, i.ec, sum[:])
	if err != nil {
		return nil, err
	}
	return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...), nil
}
