package store

import (
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
)

// openssl runs openssl and returns its output.
func openssl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "openssl", args...).CombinedOutput()
	if err != nil {
		t.Errorf("openssl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func needOpenSSL(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("SKIPPED: openssl is not installed, so nothing is said about what it accepts")
	}
}

func wantAll(t *testing.T, what, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%s: openssl does not say %q:\n%s", what, want, text)
		}
	}
}

// TestOpenSSLAccepts: openssl in its strictest mode accepts certificates with every
// kind of key, and shows the intended content.
func TestOpenSSLAccepts(t *testing.T) {
	needOpenSSL(t)
	for _, algorithm := range certs.Algorithms() {
		if testing.Short() && (algorithm == certs.RSA3072 || algorithm == certs.RSA4096) {
			continue // such keys take long to make
		}
		t.Run(string(algorithm), func(t *testing.T) {
			t.Parallel()
			now, one := time.Now(), 1
			spec := certs.CASpec{
				Algorithm: algorithm, Organization: "example", CommonName: "CA", TTL: time.Hour, PathLen: &one,
				PermittedURIDomains: []string{"cluster.local"}, PermittedDNSDomains: []string{"svc", "example.com"},
			}
			root, err := certs.NewRoot(spec, now, rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			ca, err := root.NewIntermediate("cluster1", spec, now, rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			key, err := certs.GenerateKey(algorithm)
			if err != nil {
				t.Fatal(err)
			}
			leaf, err := ca.SignNames(key.Public(), certs.LeafSpec{
				SPIFFEID: "spiffe://cluster.local/ns/a/sa/b", DNSNames: []string{"*.example.com"}, TTL: time.Hour,
			}, now, rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			_, err1 := SaveRoot(filepath.Join(dir, "root"), root, false)
			_, err2 := SaveIntermediates(dir, []Intermediate{{"cluster1", ca}}, false)
			_, err3 := SaveLeaf(filepath.Join(dir, "leaf"), leaf, key, ca, false)
			if err1 != nil || err2 != nil || err3 != nil {
				t.Fatal(err1, err2, err3)
			}
			roots := filepath.Join(dir, "root", RootCertFile)
			cluster := filepath.Join(dir, "cluster1", CertFile)
			chain := filepath.Join(dir, "leaf", certChainFile)
			openssl(t, "verify", "-x509_strict", "-check_ss_sig", "-CAfile", roots, roots)
			openssl(t, "verify", "-x509_strict", "-CAfile", roots, cluster)
			for _, purpose := range []string{"sslserver", "sslclient"} {
				openssl(t, "verify", "-x509_strict", "-purpose", purpose, "-CAfile", roots, "-untrusted", chain, chain)
			}
			usages := "Digital Signature, Non Repudiation, Key Encipherment, Certificate Sign, CRL Sign"
			wantAll(t, "root", openssl(t, "x509", "-noout", "-text", "-in", roots),
				"X509v3 Key Usage: critical", usages, "X509v3 Basic Constraints: critical", "CA:TRUE, pathlen:1",
				"X509v3 Subject Key Identifier", "X509v3 Name Constraints: critical", "URI:cluster.local", "DNS:example.com")
			wantAll(t, "intermediate", openssl(t, "x509", "-noout", "-text", "-in", cluster),
				"X509v3 Key Usage: critical", usages, "X509v3 Basic Constraints: critical", "CA:TRUE, pathlen:0",
				"X509v3 Subject Key Identifier", "X509v3 Authority Key Identifier", "DNS:istiod.istio-system.svc")
			wantAll(t, "leaf", openssl(t, "x509", "-noout", "-text", "-in", chain),
				"CA:FALSE", "TLS Web Server Authentication, TLS Web Client Authentication",
				"X509v3 Subject Alternative Name: critical", "DNS:*.example.com, URI:spiffe://cluster.local/ns/a/sa/b")
			for cert, private := range map[string]string{
				roots: filepath.Join(dir, "root", RootKeyFile), cluster: filepath.Join(dir, "cluster1", KeyFile), chain: filepath.Join(dir, "leaf", leafKeyFile),
			} {
				if openssl(t, "pkey", "-pubout", "-in", private) != openssl(t, "x509", "-noout", "-pubkey", "-in", cert) {
					t.Errorf("openssl does not see %s as the key of %s", private, cert)
				}
			}
		})
	}
}

// TestOpenSSLMakes: a CA that openssl made as in Istio's instructions can be loaded.
func TestOpenSSLMakes(t *testing.T) {
	if testing.Short() {
		t.Skip("makes RSA keys of 4096 bits")
	}
	needOpenSSL(t)
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "bash", "testdata/istio-cacerts.sh", dir, "cluster1", "30").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	now := time.Now()
	ca, err := Load(filepath.Join(dir, "cluster1"), now)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.SignNames(ca.Cert.PublicKey, certs.LeafSpec{SPIFFEID: "spiffe://cluster.local/ns/a/sa/b", TTL: time.Hour}, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := SaveLeaf(filepath.Join(dir, "leaf"), leaf, nil, ca, false); err != nil {
		t.Fatal(err)
	}
	chain := filepath.Join(dir, "leaf", certChainFile)
	openssl(t, "verify", "-CAfile", filepath.Join(dir, RootCertFile), "-untrusted", chain, chain)

	// What we would write is, certificate by certificate, what openssl wrote.
	set, err := Files(ca)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range set {
		data, err := os.ReadFile(filepath.Join(dir, "cluster1", f.Name))
		if err != nil {
			t.Fatal(err)
		}
		if f.Name != KeyFile && string(data) != string(f.Data) {
			t.Errorf("%s is another than that of openssl", f.Name)
		}
	}

	// And the root makes the CA of another cluster.
	root, err := LoadRoot(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := root.NewIntermediate("cluster2", certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "CA", TTL: time.Hour}, now, rand.Reader); err != nil {
		t.Error(err)
	}
}
