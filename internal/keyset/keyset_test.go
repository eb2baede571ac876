package keyset

import (
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"
)

// TestNobodys: the key of Nobodys comes from a hash, so that no one knows its private key.
func TestNobodys(t *testing.T) {
	t.Parallel()
	p := elliptic.P256().Params()
	for n := 0; ; n++ {
		sum := sha256.Sum256(fmt.Appendf(nil, "meshctl: a key of nobody %d", n))
		x := new(big.Int).SetBytes(sum[:])
		// y² = x³ - 3x + b
		square := new(big.Int).Exp(x, big.NewInt(3), p.P)
		square.Sub(square, new(big.Int).Mul(big.NewInt(3), x))
		square.Add(square, p.B).Mod(square, p.P)
		y := new(big.Int).ModSqrt(square, p.P)
		if y == nil || x.Cmp(p.P) >= 0 {
			continue
		}
		if _, err := ecdh.P256().NewPublicKey(append([]byte{4}, append(x.FillBytes(make([]byte, 32)), y.FillBytes(make([]byte, 32))...)...)); err != nil {
			t.Fatal(err)
		}
		text := func(i *big.Int) string { return base64.RawURLEncoding.EncodeToString(i.FillBytes(make([]byte, 32))) }
		want := fmt.Sprintf(`{"keys":[{"kty":"EC","kid":"nobody","crv":"P-256","alg":"ES256","x":"%s","y":"%s"}]}`, text(x), text(y))
		if Nobodys != want {
			t.Errorf("Nobodys is\n%s\nwant\n%s", Nobodys, want)
		}
		break
	}
	if _, leftOut, err := Parse([]byte(Nobodys), Fetched); err != nil || len(leftOut) > 0 {
		t.Errorf("%v, %v", leftOut, err)
	}
}

func encode(t *testing.T, keys ...any) string {
	t.Helper()
	var set struct {
		Keys []any `json:"keys"`
	}
	set.Keys = keys
	out, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestParse(t *testing.T) {
	t.Parallel()
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	edPublic, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	private := jose.JSONWebKey{Key: ec, KeyID: "a", Algorithm: "ES256", Use: "sig"}
	public := jose.JSONWebKey{Key: &ec.PublicKey, KeyID: "a", Algorithm: "ES256", Use: "sig"}
	secret := jose.JSONWebKey{Key: []byte(strings.Repeat("s", 32)), KeyID: "s"}
	other := map[string]any{"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"}
	for name, tc := range map[string]struct {
		doc  string
		from Origin
		want string // or the start of the error
		left string // the first reason
	}{
		"public":          {encode(t, public), Fetched, encode(t, public), ""},
		"private":         {encode(t, private), Inline, encode(t, public), ""},
		"Ed25519":         {encode(t, jose.JSONWebKey{Key: ed}), Fetched, encode(t, jose.JSONWebKey{Key: edPublic}), ""},
		"secret":          {encode(t, secret), Inline, encode(t, secret), ""},
		"fetched secret":  {encode(t, public, secret), Fetched, encode(t, public), "key 1: want a public"},
		"short secret":    {encode(t, jose.JSONWebKey{Key: []byte("s")}), Inline, "has no usable key: key 0: secret key of 1 bytes", "key 0"},
		"weak":            {encode(t, jose.JSONWebKey{Key: &weak.PublicKey}, public), Fetched, encode(t, public), "key 0: RSA key of 1024 bits: want 2048 to 8192"},
		"for encryption":  {encode(t, jose.JSONWebKey{Key: &ec.PublicKey, Use: "enc"}, public), Fetched, encode(t, public), `key 0: use is "enc": want sig`},
		"unknown kind":    {encode(t, other, public), Fetched, encode(t, public), "key 0: is no key of a known kind"},
		"only unknown":    {encode(t, other), Fetched, "has no usable key: key 0", "key 0"},
		"other fields":    {`{"x":1,"keys":` + strings.TrimPrefix(encode(t, public), `{"keys":`), Fetched, encode(t, public), ""},
		"no keys":         {`{"keys":[]}`, Fetched, "has 0 keys: want 1 to 100", ""},
		"too many":        {`{"keys":[` + strings.Repeat("1,", 100) + `1]}`, Fetched, "has 101 keys", ""},
		"not a set":       {`{"a": "-----BEGIN CERTIFICATE-----"}`, Fetched, "has 0 keys", ""},
		"not JSON":        {"<html>", Fetched, "is not a JSON Web Key Set", ""},
		"large":           {strings.Repeat(" ", MaxSize+1), Fetched, "has 1048577 bytes", ""},
		"keys of numbers": {`{"keys":[1]}`, Fetched, "has no usable key", "key 0"},
	} {
		got, leftOut, err := Parse([]byte(tc.doc), tc.from)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
		if (tc.left == "") != (len(leftOut) == 0) || tc.left != "" && !strings.HasPrefix(leftOut[0].Error(), tc.left) {
			t.Errorf("%s: left out %v, want %q", name, leftOut, tc.left)
		}
	}
}

// FuzzParse: the keys of any document are public, and parse again to the same text.
func FuzzParse(f *testing.F) {
	f.Add(Nobodys, false)
	f.Add(`{"keys":[{"kty":"oct","k":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}]}`, true)
	f.Add(`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo","d":"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"}]}`, false)
	f.Add(`{"keys":[{"kty":"RSA","n":"AQ","e":"AQAB"}]}`, false)
	f.Fuzz(func(t *testing.T, doc string, inline bool) {
		keys, _, err := Parse([]byte(doc), Origin(inline))
		if err != nil {
			return
		}
		if strings.Contains(keys, `"d":`) || !inline && strings.Contains(keys, `"oct"`) {
			t.Errorf("secret keys in %s", keys)
		}
		again, leftOut, err := Parse([]byte(keys), Origin(inline))
		if err != nil || len(leftOut) > 0 || again != keys {
			t.Errorf("%s\nbecomes %s, %v, %v", keys, again, leftOut, err)
		}
	})
}
