package remotesecret

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestToken(t *testing.T) {
	t.Parallel()
	jwt := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	}
	for raw, want := range map[string]TokenClaims{
		jwt(`{"sub":"a","iss":"b","exp":1000000000,"iat":900000000}`): {Subject: "a", Issuer: "b", Expiry: time.Unix(1e9, 0), IssuedAt: time.Unix(9e8, 0)},
		jwt(`{"iss":"kubernetes/serviceaccount"}`):                    {Issuer: "kubernetes/serviceaccount"},
		jwt(`{"exp":1000000000.9}`):                                   {Expiry: time.Unix(1e9, 0)},

		jwt(`{"kubernetes.io/serviceaccount/secret.name":"s"}`):          {Secret: "s"},
		jwt(`{"kubernetes.io":{"namespace":"n","secret":{"name":"s"}}}`): {Secret: "s"},
		jwt(`{"kubernetes.io":{"namespace":"n","pod":{"name":"p"}}}`):    {},
	} {
		got, err := ReadToken(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", raw, diff)
		}
	}
	for raw, want := range map[string]string{
		"opaque":                                 "not a JWT in compact form",
		"a.b.c.d":                                "not a JWT in compact form",
		"a.b\n.c":                                "not a JWT in compact form",
		"a.A.c":                                  "its claims are not base64",
		jwt(`[]`):                                "its claims are not those of a JWT",
		jwt(`{"exp":-1}`):                        "exp -1 is not a time",
		jwt(`{"exp":1e18}`):                      "is not a time",
		strings.Repeat("a", maxTokenSize) + "ab": "bytes long",
	} {
		if _, err := ReadToken(raw); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%.60s: got %v, want %s", raw, err, want)
		}
	}
}
