package servecmd

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/server"
)

// TestIdentityFlags: errors in the flags for other trust domains and issuers name the flag.
func TestIdentityFlags(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want string // of the error, "" for none
	}{
		{[]string{"--federate=b.example=https://b/", "--federate-bundle=b.example=f", "--federate-id=spiffe://b.example/ns/a/sa/b"}, ""},
		{[]string{"--federate-bundle=b.example=f"}, ""},
		{[]string{"--federate=b.example"}, "--federate"},
		{[]string{"--federate=b.example=http://b/"}, "want https"},
		{[]string{"--federate=b.example=https://b/", "--federate=b.example=https://c/"}, "twice"},
		{[]string{"--federate-id=spiffe://b.example/ns/a/sa/b"}, "no bundle endpoint"},
		{[]string{"--federate=b.example=https://b/", "--federate-id=spiffe://b.example/ns/a/sa/b"}, "no file"},
		{[]string{"--bundle-refresh-hint=2h"}, "--bundle-refresh-hint"},
		{[]string{"--federate-ca-file=/nowhere/ca.pem"}, "--federate-ca-file"},
		{[]string{`--jwt-rule={"issuer":"https://a","jwks_uri":"https://a/k","audiences":["x"]}`}, ""},
		{[]string{`--jwt-rule={"issuer":"https://a","jwks_file":"f"}`}, ""}, // with the audiences of --token-audience
		{[]string{`--jwt-rule={"issuer":"https://a"}`}, "jwks_uri or jwks_file"},
		{[]string{`--jwt-rule={"issuer":"https://a","jwksUri":"https://a/k"}`}, "--jwt-rule"},
		{[]string{"--trusted-gateway-cidr=10.0.0.0/24,127.0.0.1/32"}, ""},
		{[]string{"--trusted-gateway-cidr=0.0.0.0/0"}, "--trusted-gateway-cidr"},
		{[]string{"--trusted-gateway-cidr=10.0.0.1"}, "--trusted-gateway-cidr"},
		{[]string{"--jwks-refused-cidr=10.0.0.0/8,fd00::/8", "--jwks-refresh-interval=1m"}, ""},
		{[]string{"--jwks-refused-cidr=10.0.0.1/8"}, "--jwks-refused-cidr"},
		{[]string{"--jwks-refresh-interval=1ms"}, "--jwks-refresh-interval"},
	} {
		cfg := server.Config{TokenAudiences: []string{"istio-ca"}}
		var federation federationOptions
		var callers callerOptions
		f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		federation.bind(f, &cfg)
		callers.bind(f, &cfg)
		if err := f.Parse(tc.args); err != nil {
			t.Fatal(err)
		}
		err := federation.apply(&cfg)
		if err == nil {
			err = callers.apply(&cfg)
		}
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want %q", tc.args, err, tc.want)
		}
		for _, r := range cfg.OIDC {
			if len(r.Audiences) == 0 {
				t.Errorf("%q: a rule without audiences", tc.args)
			}
		}
	}
}
