package store

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/meshctl/meshctl/internal/certs"
)

// TestKeyIsKept: the key of a CA is replaced only with force.
func TestKeyIsKept(t *testing.T) {
	dir := t.TempDir()
	root, clusters := newCAs(t, "c1")
	_, err1 := SaveRoot(filepath.Join(dir, "root"), root, false)
	_, err2 := SaveIntermediates(dir, clusters, false)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	other, others := newCAs(t, "c1")
	// Also where the key is all that is left.
	if err := os.Remove(filepath.Join(dir, "root", RootCertFile)); err != nil {
		t.Fatal(err)
	}
	_, err := SaveRoot(filepath.Join(dir, "root"), other, false)
	wantError(t, err, "root/root-key.pem: file already exists; use --force")
	_, err = SaveIntermediates(dir, others, false)
	wantError(t, err, "c1/ca-cert.pem: file already exists; use --force")
	if back, err := Load(filepath.Join(dir, "c1"), now); err != nil || !same(back, clusters[0].Authority) {
		t.Errorf("the CA changed: %v", err)
	}
}

// TestChainOfOneRoot: with two trusted roots, as in a rotation, the chain has the root
// that signed it.
func TestChainOfOneRoot(t *testing.T) {
	root, clusters := newCAs(t, "c")
	other, _ := newCAs(t)
	a := *clusters[0].Authority
	a.Roots = append(append(a.Roots[:0:0], other.Cert), root.Cert)
	dir := t.TempDir()
	if _, err := SaveIntermediates(dir, []Intermediate{{"c", &a}}, false); err != nil {
		t.Fatal(err)
	}
	back, err := Load(filepath.Join(dir, "c"), now)
	if err != nil {
		t.Fatal(err)
	}
	if !same(back, &a) {
		t.Error("another authority came back")
	}
	chain, err := os.ReadFile(filepath.Join(dir, "c", certChainFile))
	if err != nil {
		t.Fatal(err)
	}
	if want := string(certs.EncodeCerts(a.Cert, root.Cert)); string(chain) != want {
		t.Error("cert-chain.pem is not the CA and the root that signed it")
	}
}
