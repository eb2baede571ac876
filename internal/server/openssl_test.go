package server

import (
	"crypto/rand"
	"crypto/tls"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/agent/workloadcert"
	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/mesh"
)

// TestServeOnOpenSSLCA: a CA made with openssl, in the steps of Istio's users, signs for the
// mesh, and openssl verifies its signatures.
func TestServeOnOpenSSLCA(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("makes RSA keys of 4096 bits")
	}
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("SKIPPED: openssl is not installed, so no CA made with it is served")
	}
	dir := t.TempDir()
	script := filepath.Join("..", "certs", "store", "testdata", "istio-cacerts.sh")
	if out, err := exec.CommandContext(t.Context(), "bash", script, dir, "cluster1", "30").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	caDir := filepath.Join(dir, "cluster1")
	s := start(t, func(c *Config) { c.CADir = caDir })

	// A workload renews its certificate.
	ca, err := store.Load(caDir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	caller := mesh.Caller{Identity: mesh.Identity{TrustDomain: mesh.DefaultTrustDomain, Namespace: "sample", ServiceAccount: "client"}}
	leaf, err := ca.SignLeaf(key.Public(), caller, time.Hour, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := certs.NewCSR(key, mesh.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	client := workloadcert.Client{
		Servers:  []workloadcert.Server{{Addr: s.secure.Addr().String(), Name: "istiod.istio-system.svc"}},
		RootFile: filepath.Join(caDir, "root-cert.pem"), TokenFile: filepath.Join(dir, "none"), Cluster: "cluster1",
	}
	current := &tls.Certificate{Certificate: [][]byte{leaf.Raw, ca.Cert.Raw}, PrivateKey: key, Leaf: leaf}
	response, err := client.Sign(t.Context(), csr, time.Hour, workloadcert.Current{Certificate: current})
	if err != nil {
		t.Fatal(err)
	}
	chain := filepath.Join(dir, "chain.pem")
	if err := os.WriteFile(chain, certs.EncodeCerts(response.Chain...), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "openssl", "verify", "-purpose", "sslclient",
		"-CAfile", filepath.Join(dir, "root-cert.pem"), "-untrusted", chain, chain)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
