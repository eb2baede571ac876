package certscmd

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/cli"
)

// TestCertsOfServer reads the certificates of a TLS server that requires a client certificate.
func TestCertsOfServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spec := certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "CA", TTL: 90 * cli.Day}
	root, err := certs.NewRoot(spec, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := certs.NewRoot(spec, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := root.SignServer(key.Public(), []string{"istiod.istio-system.svc"}, 48*time.Hour, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, a := range map[string]*certs.Authority{"root.pem": root, "other.pem": other} {
		if err := os.WriteFile(filepath.Join(dir, name), certs.EncodeCerts(a.Cert), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address := certstest.ServeTLS(t, &tls.Config{
		ClientAuth:   tls.RequireAnyClientCert,
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}},
	})
	run := func(args ...string) (code int, stdout, stderr string) {
		var out, errs bytes.Buffer
		env := &cli.Env{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Now: time.Now,
			LookupEnv: func(string) (string, bool) { return "", false },
		}
		code = run(t.Context(), env, append([]string{"certs"}, args...))
		return code, out.String(), errs.String()
	}
	for _, tc := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{[]string{"inspect", address}, 0, "istiod.istio-system.svc   -", ""},
		{[]string{"inspect", address, "--roots", dir + "/root.pem"}, 0, "CN=CA", "the chain leads to a given root"},
		{[]string{"inspect", address, "--roots", dir + "/other.pem"}, 0, "CN=CA", "the chain leads to no given root: "},
		{[]string{"inspect", address, "--roots", dir + "/root.pem", "-o", "json"}, 0, `"chain": "ok"`, ""},
		{[]string{"verify", address, "--roots", dir + "/root.pem"}, 0, "", "nothing found in 1 place"},
		{[]string{"verify", address, "--roots", dir + "/other.pem"}, 3, " no-path-to-root   " + address + " (certificate 1) ", "1 error, 0 warnings"},
		{[]string{"expiry", address, "--fail-within", "7d"}, 3, "istiod.istio-system.svc", "1 of 1 expired, expire within 7d"},
	} {
		code, stdout, stderr := run(tc.args...)
		if code != tc.code || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) {
			t.Errorf("%s: exit code %d\n%s%s", tc.args, code, stdout, stderr)
		}
	}
}
