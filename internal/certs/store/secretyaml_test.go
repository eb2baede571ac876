package store

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSecretFiles(t *testing.T) {
	_, clusters := newCAs(t, "c")
	a := clusters[0].Authority
	var crl []byte
	names := func(layout Layout) (out []string) {
		set, err := SecretFiles(a, crl, layout)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range set {
			out = append(out, f.Name)
		}
		return out
	}
	if diff := cmp.Diff([]string{TLSCertFile, tlsKeyFile, tlsRootsFile}, names(LayoutTLS)); diff != "" {
		t.Error(diff)
	}
	crl = []byte("a list")
	if diff := cmp.Diff([]string{CertFile, KeyFile, RootCertFile, certChainFile, CRLFile}, names(LayoutIstio)); diff != "" {
		t.Error(diff)
	}
	_, err := SecretFiles(a, crl, LayoutTLS)
	wantError(t, err, `there is ca-crl.pem, for which the layout "tls" has no place`)
	_, err = SecretFiles(a, crl, "x")
	wantError(t, err, `unknown layout "x"`)

	set, err := SecretFiles(a, crl, LayoutIstio)
	if err != nil {
		t.Fatal(err)
	}
	data, err := EncodeSecret(SecretMeta{Namespace: "ns", Name: "cacerts", Layout: LayoutIstio}, set[4:])
	if err != nil {
		t.Fatal(err)
	}
	want := strings.TrimPrefix(`
apiVersion: v1
kind: Secret
metadata:
  name: cacerts
  namespace: ns
type: Opaque
data:
  ca-crl.pem: YSBsaXN0
`, "\n")
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Error(diff)
	}
}
