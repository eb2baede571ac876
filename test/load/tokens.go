package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/token"
)

const tokenIssuer = "https://kubernetes.default.svc.cluster.local"

// tokenKeys sign service-account tokens like those of an API server for pods: with RSA of 2048
// bits, as API servers do, or with P-256. The algorithm is also the ID of the key.
type tokenKeys map[jose.SignatureAlgorithm]crypto.Signer

func newTokenKeys() (tokenKeys, error) {
	rs256, err := rsa.GenerateKey(rand.Reader, 2048)
	es256, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return tokenKeys{jose.RS256: rs256, jose.ES256: es256}, errors.Join(err, err2)
}

// save writes the files with which a server checks the tokens.
func (k tokenKeys) save(dir string) error {
	var set jose.JSONWebKeySet
	for alg, key := range k {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: string(alg), Algorithm: string(alg), Use: "sig"})
	}
	jwks, err := json.Marshal(set)
	if err != nil {
		return err
	}
	return files.WriteAll(dir, []files.File{
		{Name: token.IssuerFile, Data: []byte(tokenIssuer), Mode: files.Public},
		{Name: token.JWKSFile, Data: jwks, Mode: files.Public},
	})
}

// sign makes a new token.
func (k tokenKeys) sign(alg jose.SignatureAlgorithm, namespace, account string, now time.Time) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: k[alg], KeyID: string(alg)}}, nil)
	if err != nil {
		return "", err
	}
	uid := func(seed string) string {
		sum := sha256.Sum256([]byte(seed))
		return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
	}
	ref := func(name string) map[string]string { return map[string]string{"name": name, "uid": uid(name)} }
	return jwt.Signed(signer).Claims(map[string]any{
		"aud": []string{"istio-ca"}, "exp": now.Add(12 * time.Hour).Unix(), "iat": now.Unix(), "nbf": now.Unix(),
		"iss": tokenIssuer, "jti": uid(rand.Text()), "sub": token.Subject(namespace, account),
		"kubernetes.io": map[string]any{
			"namespace": namespace, "node": ref("worker-1.example.com"), "pod": ref(account + "-5d8f7b6c9d-x2x4x"), "serviceaccount": ref(account),
		},
	}).Serialize()
}
