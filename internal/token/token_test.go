package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var now = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func newIssuer(t testing.TB, url string) *Issuer {
	t.Helper()
	i, err := GenerateIssuer(url)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func verifierOf(i *Issuer) *Verifier {
	return &Verifier{Issuer: i.URL(), Keys: i.JWKS(), Audiences: []string{"istio-ca"}}
}

func TestCreateThenVerify(t *testing.T) {
	t.Parallel()
	tests := map[string]Claims{
		"service account": {Namespace: "sample", ServiceAccount: "helloworld", Audiences: []string{"istio-ca"}, TTL: time.Hour},
		"pod and uids": {
			Namespace: "sample", ServiceAccount: "hello.world", ServiceAccountUID: "u1",
			Pod: "helloworld-v1-abc", PodUID: "u2", Audiences: []string{"vault", "istio-ca"}, TTL: MaxTTL,
		},
	}
	for name, in := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			issuer := newIssuer(t, "")
			raw, err := issuer.Create(in, now.Add(300*time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			got, err := verifierOf(issuer).Verify(raw, now)
			if err != nil {
				t.Fatal(err)
			}
			want := in
			want.Issuer, want.IssuedAt = issuer.URL(), now
			if want.ServiceAccountUID == "" {
				want.ServiceAccountUID = got.ServiceAccountUID
			}
			if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Claims{}, "ID")); diff != "" {
				t.Errorf("claims (-want +got):\n%s", diff)
			}
			if got.ID == "" || got.ServiceAccountUID == "" {
				t.Errorf("jti %q, uid %q: want both set", got.ID, got.ServiceAccountUID)
			}
			if want := now.Add(in.TTL); !got.Expiry().Equal(want) {
				t.Errorf("expiry %s, want %s", got.Expiry(), want)
			}
		})
	}
}

// TestCreateShape: the payload has exactly the members that Kubernetes writes.
func TestCreateShape(t *testing.T) {
	t.Parallel()
	issuer := newIssuer(t, "https://issuer.example/a")
	raw, err := issuer.Create(Claims{
		Namespace: "sample", ServiceAccount: "helloworld", Pod: "hello-0", PodUID: "pod-uid",
		Audiences: []string{"istio-ca"}, TTL: time.Hour,
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(raw, ".")
	var header, body map[string]any
	decode(t, parts[0], &header)
	decode(t, parts[1], &body)
	if diff := cmp.Diff(map[string]any{"alg": "ES256", "kid": issuer.KeyID()}, header); diff != "" {
		t.Errorf("header (-want +got):\n%s", diff)
	}
	sa := body["kubernetes.io"].(map[string]any)["serviceaccount"].(map[string]any)
	want := map[string]any{
		"iss": "https://issuer.example/a",
		"sub": "system:serviceaccount:sample:helloworld",
		"aud": []any{"istio-ca"},
		"iat": float64(now.Unix()),
		"nbf": float64(now.Unix()),
		"exp": float64(now.Unix() + 3600),
		"jti": body["jti"],
		"kubernetes.io": map[string]any{
			"namespace":      "sample",
			"serviceaccount": map[string]any{"name": "helloworld", "uid": sa["uid"]},
			"pod":            map[string]any{"name": "hello-0", "uid": "pod-uid"},
		},
	}
	if diff := cmp.Diff(want, body); diff != "" {
		t.Errorf("payload (-want +got):\n%s", diff)
	}
	again, err := issuer.Create(Claims{Namespace: "sample", ServiceAccount: "helloworld", Audiences: []string{"istio-ca"}, TTL: time.Hour}, now)
	if err != nil {
		t.Fatal(err)
	}
	var second map[string]any
	decode(t, strings.Split(again, ".")[1], &second)
	if got := second["kubernetes.io"].(map[string]any)["serviceaccount"].(map[string]any)["uid"]; got != sa["uid"] {
		t.Errorf("uid of the same account: %v then %v", sa["uid"], got)
	}
	if second["jti"] == body["jti"] {
		t.Errorf("two tokens have the jti %v", body["jti"])
	}
}

func decode(t *testing.T, part string, into any) {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
}

func TestCreateRefuses(t *testing.T) {
	t.Parallel()
	good := Claims{Namespace: "sample", ServiceAccount: "helloworld", Audiences: []string{"istio-ca"}, TTL: time.Hour}
	tests := map[string]struct {
		change func(*Claims)
		want   string
	}{
		"namespace with dot":     {func(c *Claims) { c.Namespace = "a.b" }, `namespace "a.b" is not a DNS label`},
		"empty service account":  {func(c *Claims) { c.ServiceAccount = "" }, `service account "" is not a DNS name`},
		"colon in account":       {func(c *Claims) { c.ServiceAccount = "a:b" }, `service account "a:b" is not`},
		"pod":                    {func(c *Claims) { c.Pod = "A" }, `pod "A" is not a DNS name`},
		"no audience":            {func(c *Claims) { c.Audiences = nil }, "at least one audience"},
		"empty audience":         {func(c *Claims) { c.Audiences = []string{"a", ""} }, "at least one audience"},
		"too many audiences":     {func(c *Claims) { c.Audiences = []string{strings.Repeat("a", MaxSize)} }, "fewer audiences"},
		"no life":                {func(c *Claims) { c.TTL = 0 }, "life time 0s"},
		"less than a second":     {func(c *Claims) { c.TTL = time.Millisecond }, "life time 1ms"},
		"longer than a year":     {func(c *Claims) { c.TTL = MaxTTL + 1 }, "want between 1s and"},
		"a duration that is min": {func(c *Claims) { c.TTL = -1 << 63 }, "want between 1s and"},
	}
	issuer := newIssuer(t, "")
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := good
			tt.change(&c)
			raw, err := issuer.Create(c, now)
			if raw != "" || err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("token %q, error %v: want %q", raw, err, tt.want)
			}
		})
	}
}

func TestIssuerURL(t *testing.T) {
	t.Parallel()
	a, b := newIssuer(t, ""), newIssuer(t, "")
	if a.URL() == b.URL() || !strings.HasPrefix(a.URL(), "https://meshctl.local/") {
		t.Errorf("default URLs %q and %q: want two of their own", a.URL(), b.URL())
	}
	again, err := NewIssuer("", a.Key())
	if err != nil || again.URL() != a.URL() || again.KeyID() != a.KeyID() {
		t.Errorf("same key gives %q, then %q (%v)", a.URL(), again.URL(), err)
	}
	for _, bad := range []string{"x", "http://a", "https://", "https://u:p@a", "https://a?q", "https://a?", "https://a#f", "https://a\n", "https://%zz"} {
		if _, err := GenerateIssuer(bad); err == nil {
			t.Errorf("issuer URL %q was taken", bad)
		}
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewIssuer("", p384); err == nil || !strings.Contains(err.Error(), "P-384") {
		t.Errorf("P-384 signing key: %v", err)
	}
}

// body returns a valid payload with some members changed; nil removes a member.
func body(change map[string]any) map[string]any {
	b := map[string]any{
		"iss": "https://issuer.example", "sub": "system:serviceaccount:sample:helloworld", "aud": "istio-ca",
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
	maps.Copy(b, change)
	maps.DeleteFunc(b, func(_ string, v any) bool { return v == nil })
	return b
}

// sign signs a token with any header and payload.
func sign(t testing.TB, i *Issuer, header map[jose.HeaderKey]any, payload []byte) string {
	t.Helper()
	opts := (&jose.SignerOptions{}).WithHeader("kid", i.KeyID())
	for k, v := range header {
		opts.WithHeader(k, v)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: i.Key()}, opts)
	if err != nil {
		t.Fatal(err)
	}
	obj, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := obj.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestVerifyClaims checks the claims of correctly signed tokens.
func TestVerifyClaims(t *testing.T) {
	t.Parallel()
	type m = map[string]any
	at := func(d time.Duration) int64 { return now.Add(d).Unix() }
	kube := func(ns, sa string) m {
		return m{"kubernetes.io": m{"namespace": ns, "serviceaccount": m{"name": sa, "uid": "u"}}}
	}
	sub := func(s string) m { return m{"sub": s} }
	tests := map[string]struct {
		change m
		want   string // "" is accepted
	}{
		"good":                          {nil, ""},
		"aud is a list":                 {m{"aud": []string{"x", "istio-ca"}}, ""},
		"no nbf":                        {m{"nbf": nil}, ""},
		"unknown members":               {m{"extra": m{"a": 1}}, ""},
		"exp within leeway":             {m{"iat": at(-time.Hour), "nbf": nil, "exp": at(-Leeway + time.Second)}, ""},
		"nbf within leeway":             {m{"nbf": at(Leeway)}, ""},
		"kubernetes.io agrees":          {kube("sample", "helloworld"), ""},
		"wrong iss":                     {m{"iss": "https://other.example"}, `iss is "https://other.example"`},
		"iss with slash":                {m{"iss": "https://issuer.example/"}, "iss is"},
		"no iss":                        {m{"iss": nil}, `iss is ""`},
		"iss is a number":               {m{"iss": 1}, "json"},
		"wrong aud":                     {m{"aud": "vault"}, "aud is"},
		"no aud":                        {m{"aud": nil}, "aud is"},
		"empty aud":                     {m{"aud": []string{}}, "aud is"},
		"aud of numbers":                {m{"aud": []int{1}}, "string or array"},
		"aud in other case":             {m{"aud": "Istio-CA"}, "aud is"},
		"expired":                       {m{"iat": at(-time.Hour), "nbf": nil, "exp": at(-Leeway)}, "expired at 2026-05-04T11:59:50Z"},
		"no exp":                        {m{"exp": nil}, "exp and iat are required"},
		"no iat":                        {m{"iat": nil}, "exp and iat are required"},
		"exp is text":                   {m{"exp": "9999999999"}, "expected number"},
		"exp beyond all years":          {m{"exp": 1e300}, "expected number"},
		"exp in the year 10000":         {m{"exp": maxTime + 1}, "is not a time"},
		"negative iat":                  {m{"iat": -1}, "is not a time"},
		"lives a year and a second":     {m{"exp": now.Add(MaxTTL).Unix() + 1}, "lives longer"},
		"lives for ages":                {m{"iat": 0, "exp": maxTime}, "lives longer"},
		"future nbf":                    {m{"nbf": at(Leeway + time.Second)}, "not valid before"},
		"future iat":                    {m{"iat": at(Leeway + time.Second)}, "not valid before"},
		"exp before iat":                {m{"iat": at(2), "exp": at(1), "nbf": nil}, "exp is not after"},
		"exp at nbf":                    {m{"nbf": at(time.Hour)}, "exp is not after"},
		"sub without names":             {sub("system:serviceaccount"), "sub"},
		"sub of 3 parts":                {sub("system:serviceaccount:a"), "sub"},
		"sub of 5 parts":                {sub("system:serviceaccount:a:b:c"), "sub"},
		"sub with suffix in prefix":     {sub("system:serviceaccountX:a:b"), "sub"},
		"sub with space":                {sub(" system:serviceaccount:a:b"), "sub"},
		"sub of a node":                 {sub("system:node:a:b"), "sub"},
		"sub with empty namespace":      {sub("system:serviceaccount::b"), "namespace"},
		"sub with empty account":        {sub("system:serviceaccount:a:"), "service account"},
		"sub with slash":                {sub("system:serviceaccount:a/b:c"), "namespace"},
		"sub with dots":                 {sub("system:serviceaccount:a:../b"), "service account"},
		"sub with upper case":           {sub("system:serviceaccount:A:b"), "namespace"},
		"no sub":                        {sub(""), "sub"},
		"kubernetes.io other namespace": {kube("other", "helloworld"), "kubernetes.io names"},
		"kubernetes.io other account":   {kube("sample", "other"), "kubernetes.io names"},
		"kubernetes.io is empty":        {m{"kubernetes.io": m{}}, "kubernetes.io names"},
		"kubernetes.io is text":         {m{"kubernetes.io": "x"}, "json"},
		"pod without name": {m{"kubernetes.io": m{
			"namespace": "sample", "serviceaccount": m{"name": "helloworld"}, "pod": m{},
		}}, `pod "" is not a DNS name`},
	}
	issuer := newIssuer(t, "https://issuer.example")
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw := sign(t, issuer, nil, marshal(t, body(tt.change)))
			c, err := verifierOf(issuer).Verify(raw, now)
			if tt.want == "" {
				if err != nil || c.Namespace != "sample" || c.ServiceAccount != "helloworld" {
					t.Fatalf("claims %+v, error %v", c, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want %q", err, tt.want)
			}
			if diff := cmp.Diff(Claims{}, c); diff != "" {
				t.Errorf("claims with an error: %s", diff)
			}
			if strings.Contains(err.Error(), strings.Split(raw, ".")[2]) {
				t.Errorf("the error holds the token: %v", err)
			}
		})
	}
}

// hs256 signs with a symmetric key, as an attacker would with the public key.
func hs256(header, payload, key []byte) string {
	in := base64.RawURLEncoding.EncodeToString(header) + "." + base64.RawURLEncoding.EncodeToString(payload)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(in))
	return in + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// TestVerifyHostile refuses tokens with a wrong form or signature.
func TestVerifyHostile(t *testing.T) {
	t.Parallel()
	issuer, other := newIssuer(t, "https://issuer.example"), newIssuer(t, "https://issuer.example")
	payload := marshal(t, body(nil))
	good := sign(t, issuer, nil, payload)
	parts := strings.Split(good, ".")
	der, err := x509.MarshalPKIXPublicKey(issuer.Key().Public())
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	hdr := func(s string) string { return strings.ReplaceAll(s, "KID", issuer.KeyID()) }
	bare := func(h string) string { return b64([]byte(hdr(h))) + "." + parts[1] + "." }
	twice := strings.Replace(string(payload), `{`, `{"sub":"system:serviceaccount:istio-system:istiod",`, 1)

	tests := map[string]struct{ raw, want string }{
		"empty":                  {"", "compact form"},
		"one part":               {"abc", "compact form"},
		"two parts":              {parts[0] + "." + parts[1], "compact form"},
		"header is no base64":    {"A." + parts[1] + "." + parts[2], "compact form"},
		"claims are no base64":   {parts[0] + ".A." + parts[2], "compact form"},
		"another spelling":       {good[:len(good)-1] + string(good[len(good)-1]+1), "compact form"},
		"long alg":               {bare(`{"alg":"` + strings.Repeat("a", 9000) + `","kid":"KID"}`), "unexpected signature algorithm"},
		"signature of two keys":  {good + parts[2], "the signature is not of key"},
		"four parts":             {good + ".abc", "compact form"},
		"trailing newline":       {good + "\n", "compact form"},
		"trailing text":          {good + " x", "compact form"},
		"line break inside":      {good[:20] + "\n" + good[20:], "compact form"},
		"padding":                {good + "=", "compact form"},
		"JSON form":              {`{"payload":"","signatures":[]}`, "compact form"},
		"a megabyte":             {strings.Repeat("a", 1<<20), "want at most"},
		"one byte too long":      {good + strings.Repeat("A", MaxSize-len(good)+1), "want at most"},
		"alg none":               {bare(`{"alg":"none","kid":"KID"}`), "unexpected signature algorithm"},
		"alg NONE":               {bare(`{"alg":"NONE","kid":"KID"}`), "unexpected signature algorithm"},
		"no alg":                 {bare(`{"kid":"KID"}`), "unexpected signature algorithm"},
		"no signature":           {parts[0] + "." + parts[1] + ".", "the signature is not of key"},
		"short signature":        {good[:len(good)-2], "the signature is not of key"},
		"HS256 with public key":  {hs256([]byte(hdr(`{"alg":"HS256","kid":"KID"}`)), payload, der), "unexpected signature algorithm"},
		"RS256 on an EC key":     {bare(`{"alg":"RS256","kid":"KID"}`) + "AAAA", "is for ES256"},
		"ES384 on a P-256 key":   {bare(`{"alg":"ES384","kid":"KID"}`) + "AAAA", "is for ES256"},
		"duplicate kid":          {bare(`{"alg":"ES256","kid":"x","kid":"KID"}`) + parts[2], "invalid header"},
		"header is a list":       {bare(`[]`) + parts[2], "invalid header"},
		"data after header":      {bare(`{"alg":"ES256","kid":"KID"}{}`) + parts[2], "invalid header"},
		"huge kid":               {bare(`{"alg":"ES256","kid":"`+strings.Repeat("k", maxKeyID+1)+`"}`) + parts[2], "kid is longer"},
		"no kid":                 {bare(`{"alg":"ES256"}`) + parts[2], "unknown key id"},
		"unknown kid":            {sign(t, other, nil, payload), "unknown key id"},
		"other key, our kid":     {sign(t, other, map[jose.HeaderKey]any{"kid": issuer.KeyID()}, payload), "the signature is not of key"},
		"key in the header":      {embedded(t, other, issuer.KeyID(), payload), "the signature is not of key"},
		"critical header":        {sign(t, issuer, map[jose.HeaderKey]any{"crit": []string{"exp"}}, payload), "crit"},
		"b64 header":             {sign(t, issuer, map[jose.HeaderKey]any{"b64": true}, payload), "b64"},
		"payload of another":     {parts[0] + "." + b64(marshal(t, body(map[string]any{"sub": "system:serviceaccount:a:b"}))) + "." + parts[2], "the signature is not of key"},
		"duplicate claim":        {sign(t, issuer, nil, []byte(twice)), "duplicate object member name"},
		"data after the payload": {sign(t, issuer, nil, append(payload, "{}"...)), "claims: jsontext: invalid character"},
		"payload is no JSON":     {sign(t, issuer, nil, []byte("x")), "claims: jsontext: invalid character"},
		"payload is null":        {sign(t, issuer, nil, []byte("null")), "iss"},
		"deep payload":           {sign(t, issuer, nil, []byte(strings.Repeat(`[`, 8000))), "json"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := verifierOf(issuer).Verify(tt.raw, now)
			if err == nil {
				t.Fatalf("accepted as %+v", c)
			}
			if !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(tt.want)) {
				t.Errorf("error %q, want %q", err, tt.want)
			}
			if got, want := errors.Is(err, ErrUnknownKey), tt.want == "unknown key id"; got != want {
				t.Errorf("is ErrUnknownKey: %t, want %t", got, want)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
	if _, err := verifierOf(issuer).Verify(good, now); err != nil {
		t.Errorf("the token that the others are made of: %v", err)
	}
	double := verifierOf(issuer)
	double.Keys.Keys = append(double.Keys.Keys, double.Keys.Keys[0])
	if _, err := double.Verify(good, now); err == nil || !strings.Contains(err.Error(), "names 2 keys") {
		t.Errorf("key set with a kid twice: %v", err)
	}
	if _, err := (&Verifier{Issuer: issuer.URL(), Keys: issuer.JWKS()}).Verify(good, now); err == nil {
		t.Error("a verifier without audiences accepts a token")
	}
}

// embedded makes a token with its own key in the header.
func embedded(t *testing.T, i *Issuer, kid string, payload []byte) string {
	t.Helper()
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: i.Key()},
		(&jose.SignerOptions{EmbedJWK: true}).WithHeader("kid", kid))
	if err != nil {
		t.Fatal(err)
	}
	obj, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := obj.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestVerifyKeyKinds accepts all supported kinds of keys. Most Kubernetes clusters use
// RSA.
func TestVerifyKeyKinds(t *testing.T) {
	t.Parallel()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[jose.SignatureAlgorithm]crypto.Signer{jose.RS256: rsaKey, jose.ES384: p384, jose.ES512: p521, jose.EdDSA: ed}
	for alg, key := range tests {
		t.Run(string(alg), func(t *testing.T) {
			t.Parallel()
			signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := jwt.Signed(signer).Claims(body(nil)).Serialize()
			if err != nil {
				t.Fatal(err)
			}
			keys, err := ParseKeys(marshal(t, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k"}}}))
			if err != nil {
				t.Fatal(err)
			}
			v := &Verifier{Issuer: "https://issuer.example", Keys: keys, Audiences: []string{"istio-ca"}}
			if _, err := v.Verify(raw, now); err != nil {
				t.Error(err)
			}
			// Any other bit in the signature's first byte makes it another.
			at := strings.LastIndexByte(raw, '.') + 1
			changed := raw[:at] + string(map[bool]byte{true: 'B', false: 'A'}[raw[at] == 'A']) + raw[at+1:]
			if _, err := v.Verify(changed, now); err == nil || !strings.Contains(err.Error(), "the signature is not of key") {
				t.Errorf("changed signature: %v", err)
			}
		})
	}
}

func TestParseKeys(t *testing.T) {
	t.Parallel()
	issuer := newIssuer(t, "")
	public := issuer.JWKS().Keys[0]
	private := jose.JSONWebKey{Key: issuer.Key(), KeyID: "k"}
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*jose.JSONWebKey)) []jose.JSONWebKey {
		k := public
		change(&k)
		return []jose.JSONWebKey{k}
	}
	many := make([]jose.JSONWebKey, maxKeys+1)
	for n := range many {
		many[n] = public
	}
	tests := map[string]struct {
		keys []jose.JSONWebKey
		want string
	}{
		"good":            {[]jose.JSONWebKey{public}, ""},
		"without alg use": {with(func(k *jose.JSONWebKey) { k.Algorithm, k.Use = "", "" }), ""},
		"none":            {nil, "has 0 keys"},
		"too many":        {many, "has 101 keys"},
		"private key":     {[]jose.JSONWebKey{private}, "want a public"},
		"symmetric key":   {[]jose.JSONWebKey{{Key: []byte("secret"), KeyID: "k"}}, "want a public"},
		"small RSA key":   {[]jose.JSONWebKey{{Key: small.Public(), KeyID: "k"}}, "RSA key of 1024 bits"},
		"no kid":          {with(func(k *jose.JSONWebKey) { k.KeyID = "" }), "kid"},
		"long kid":        {with(func(k *jose.JSONWebKey) { k.KeyID = strings.Repeat("k", maxKeyID+1) }), "kid"},
		"kid twice":       {[]jose.JSONWebKey{public, public}, "kid"},
		"for encryption":  {with(func(k *jose.JSONWebKey) { k.Use = "enc" }), `use is "enc"`},
		"other alg":       {with(func(k *jose.JSONWebKey) { k.Algorithm = "HS256" }), `alg is "HS256"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseKeys(marshal(t, jose.JSONWebKeySet{Keys: tt.keys}))
			if tt.want == "" {
				if err != nil || len(got.Keys) != len(tt.keys) {
					t.Errorf("%d keys, error %v", len(got.Keys), err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || len(got.Keys) != 0 {
				t.Errorf("%d keys, error %v: want %q", len(got.Keys), err, tt.want)
			}
		})
	}
	for name, doc := range map[string]string{
		"no JSON": "x", "empty": "", "list": "[]", "unknown kind": `{"keys":[{"kty":"XYZ","kid":"k"}]}`,
		"point not on the curve": `{"keys":[{"kty":"EC","crv":"P-256","kid":"k","x":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","y":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}]}`,
		"too long":               strings.Repeat(" ", MaxKeySetSize+1),
	} {
		if set, err := ParseKeys([]byte(doc)); err == nil {
			t.Errorf("%s: accepted with %d keys", name, len(set.Keys))
		}
	}
}

// BenchmarkVerify checks a new token.
func BenchmarkVerify(b *testing.B) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		b.Fatal(err)
	}
	for alg, key := range map[jose.SignatureAlgorithm]crypto.Signer{jose.RS256: rsaKey, jose.ES256: newIssuer(b, "").Key()} {
		public := jose.JSONWebKey{Key: key.Public(), KeyID: "k"}
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
		if err != nil {
			b.Fatal(err)
		}
		raw, err := jwt.Signed(signer).Claims(body(map[string]any{"kubernetes.io": map[string]any{
			"namespace": "sample", "serviceaccount": map[string]string{"name": "helloworld", "uid": "u"},
			"pod": map[string]string{"name": "p", "uid": "u"}, "node": map[string]string{"name": "n", "uid": "u"},
		}})).Serialize()
		if err != nil {
			b.Fatal(err)
		}
		v := &Verifier{Issuer: "https://issuer.example", Keys: jose.JSONWebKeySet{Keys: []jose.JSONWebKey{public}}, Audiences: []string{"istio-ca"}}
		b.Run(string(alg), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.Verify(raw, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
