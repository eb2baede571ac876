package crl

import (
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

// testMesh is a directory with a root and the CAs of two clusters.
type testMesh struct {
	dir      string
	root     *certs.Authority
	clusters []store.Intermediate
	now      time.Time
}

func newWorld(t *testing.T) *testMesh {
	t.Helper()
	w := &testMesh{dir: t.TempDir(), root: certstest.NewRoot(t), now: time.Now()}
	for _, name := range []mesh.ClusterID{"c1", "c2"} {
		spec := certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "CA", TTL: time.Hour}
		a, err := w.root.NewIntermediate(name, spec, w.now, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		w.clusters = append(w.clusters, store.Intermediate{Cluster: name, Authority: a})
	}
	_, err1 := store.SaveRoot(w.dir, w.root, false)
	_, err2 := store.SaveIntermediates(w.dir, w.clusters, false)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return w
}

func (w *testMesh) leaf(t *testing.T, cluster int) *x509.Certificate {
	t.Helper()
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := w.clusters[cluster].Authority.SignNames(key.Public(), certs.LeafSpec{SPIFFEID: "spiffe://cluster.local/ns/a/sa/b", TTL: time.Minute}, w.now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

func (w *testMesh) options(revoke ...*x509.Certificate) Options {
	o := Options{Life: time.Hour, Now: w.now, Rand: rand.Reader}
	for _, c := range revoke {
		o.Revoke = append(o.Revoke, Target{Name: "leaf", Cert: c})
	}
	return o
}

func update(t *testing.T, dir string, o Options) *Result {
	t.Helper()
	r, err := Update(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// onDisk returns the number of revoked certificates of each list in a directory, by
// issuer.
func onDisk(t *testing.T, dir string) map[string]int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, store.CRLFile))
	if err != nil {
		t.Fatal(err)
	}
	lists, err := certs.ParseCRLs(data)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, l := range lists {
		if _, twice := out[l.Issuer.String()]; twice {
			t.Errorf("%s: two lists of %s", dir, l.Issuer)
		}
		out[l.Issuer.String()] = len(l.RevokedCertificateEntries)
	}
	return out
}

func (w *testMesh) want(t *testing.T, root, c1, c2 int) {
	t.Helper()
	for _, dir := range []string{w.dir, filepath.Join(w.dir, "c1"), filepath.Join(w.dir, "c2")} {
		got := onDisk(t, dir)
		if len(got) != 3 || got["CN=Root CA"] != root || got["CN=CA,L=c1"] != c1 || got["CN=CA,L=c2"] != c2 {
			t.Errorf("%s: revoked are %v, want %d, %d, %d", dir, got, root, c1, c2)
		}
	}
}

// TestNothingIsForgotten: a revoked certificate stays revoked, whether in one directory
// or in all.
func TestNothingIsForgotten(t *testing.T) {
	w := newWorld(t)
	update(t, w.dir, w.options())
	w.want(t, 0, 0, 0)
	update(t, w.dir, w.options(w.leaf(t, 0)))
	update(t, w.dir, w.options(w.leaf(t, 1), w.leaf(t, 1)))
	w.want(t, 0, 1, 2)
	one := w.options()
	one.Revoke = []Target{{Name: "a serial number", Serial: big.NewInt(4711)}}
	if r := update(t, filepath.Join(w.dir, "c1"), one); len(r.Made) != 1 || len(r.Kept) != 2 {
		t.Errorf("made %d, kept %d", len(r.Made), len(r.Kept))
	}
	update(t, w.dir, w.options(w.clusters[1].Authority.Cert))
	w.want(t, 1, 2, 2)
	// The revoked CA's own list goes on.
	update(t, w.dir, w.options(w.leaf(t, 1)))
	w.want(t, 1, 2, 3)
}

// TestOpenSSLReadsThem: openssl, which checks as Envoy does, refuses exactly the
// revoked certificates.
func TestOpenSSLReadsThem(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("SKIPPED: openssl is not installed, so nothing is said about what it reads")
	}
	w := newWorld(t)
	bad, good := w.leaf(t, 0), w.leaf(t, 0)
	o := w.options(bad)
	o.Reason = certs.Superseded
	update(t, w.dir, o)
	for name, leaf := range map[string]*x509.Certificate{"bad": bad, "good": good} {
		path := filepath.Join(w.dir, name+".pem")
		if err := os.WriteFile(path, certs.EncodeCerts(leaf), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "openssl", "verify", "-x509_strict", "-crl_check_all",
			"-CAfile", filepath.Join(w.dir, store.RootCertFile), "-CRLfile", filepath.Join(w.dir, store.CRLFile),
			"-untrusted", filepath.Join(w.dir, "c1", "cert-chain.pem"), path).CombinedOutput()
		if revoked := strings.Contains(string(out), "certificate revoked"); revoked != (name == "bad") || (err == nil) != (name == "good") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestLastListCounts: the list of a CA with the greatest number counts, in any file.
// Lists of unknown CAs are kept until they end.
func TestLastListCounts(t *testing.T) {
	w := newWorld(t)
	update(t, w.dir, w.options())
	stranger := certstest.NewRoot(t)
	sign := func(a *certs.Authority, last *x509.RevocationList, life time.Duration, serial int64) *x509.RevocationList {
		l, err := a.SignCRL(last, []certs.Revocation{{Serial: big.NewInt(serial), At: w.now}}, life, w.now, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	older := sign(w.clusters[0].Authority, nil, time.Hour, 1)
	newer := sign(w.clusters[0].Authority, older, time.Hour, 2)
	theirs := sign(stranger, nil, time.Minute, 3)
	o := w.options()
	o.Add = []*x509.RevocationList{newer, older, theirs, sign(stranger, theirs, time.Minute, 4)}
	r := update(t, w.dir, o)
	if len(r.Kept) != 1 || len(r.Kept[0].RevokedCertificateEntries) != 2 || len(r.Notes) > 0 {
		t.Errorf("kept %d, notes %q", len(r.Kept), r.Notes)
	}
	if n := len(r.Made[1].RevokedCertificateEntries); n != 2 {
		t.Errorf("%d entries of what came from elsewhere", n)
	}
	w.now = w.now.Add(2 * time.Minute)
	if r := update(t, w.dir, w.options()); len(r.Kept) != 0 || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "which ended at") {
		t.Errorf("kept %d, notes %q", len(r.Kept), r.Notes)
	}
}

// TestOneAtATime: concurrent processes do not lose revocations of each other.
func TestOneAtATime(t *testing.T) {
	w := newWorld(t)
	unlock, err := files.Lock(filepath.Join(w.dir, ".c2.crl.lock"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Update(w.dir, w.options()); err == nil || !strings.Contains(err.Error(), "another process of meshctl is at work") {
		t.Errorf("error %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	update(t, w.dir, w.options())
	left, err := filepath.Glob(filepath.Join(w.dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// TestNothingIsWritten: nothing is written if one CA could not use the lists.
func TestNothingIsWritten(t *testing.T) {
	w := newWorld(t)
	other := newWorld(t)
	if err := os.Rename(filepath.Join(other.dir, "c1"), filepath.Join(w.dir, "c3")); err != nil {
		t.Fatal(err)
	}
	_, err := Update(w.dir, w.options()) // there is no list of the other root
	if err == nil || !strings.Contains(err.Error(), "c3") || !strings.Contains(err.Error(), "crl-missing") {
		t.Errorf("error %v", err)
	}
	for _, dir := range []string{"", "c1", "c3"} {
		if _, err := os.Stat(filepath.Join(w.dir, dir, store.CRLFile)); err == nil {
			t.Errorf("%q has lists", dir)
		}
	}
	update(t, other.dir, other.options())
	list, err := os.ReadFile(filepath.Join(other.dir, store.CRLFile))
	if err != nil {
		t.Fatal(err)
	}
	lists, err := certs.ParseCRLs(list)
	if err != nil {
		t.Fatal(err)
	}
	o := w.options()
	o.Add = lists
	update(t, w.dir, o)
}
