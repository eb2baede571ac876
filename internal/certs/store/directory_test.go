package store

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/mesh"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func newCAs(t *testing.T, names ...mesh.ClusterID) (root *certs.Authority, clusters []Intermediate) {
	t.Helper()
	spec := certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "CA", TTL: time.Hour}
	root, err := certs.NewRoot(spec, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		a, err := root.NewIntermediate(name, spec, now, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		clusters = append(clusters, Intermediate{Cluster: name, Authority: a})
	}
	return root, clusters
}

func modes(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		got[name] = info.Mode().String()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func same(a, b *certs.Authority) bool {
	return a.Cert.Equal(b.Cert) &&
		bytes.Equal(certs.EncodeCerts(a.Chain...), certs.EncodeCerts(b.Chain...)) &&
		bytes.Equal(certs.EncodeCerts(a.Roots...), certs.EncodeCerts(b.Roots...))
}

func wantError(t *testing.T, err error, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one with %q", err, want)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	root, clusters := newCAs(t, "cluster1", "cluster2")
	if _, err := SaveRoot(dir, root, false); err != nil {
		t.Fatal(err)
	}
	paths, err := SaveIntermediates(dir, clusters, false)
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) != 8 || paths[1] != filepath.Join(dir, "cluster1", "ca-key.pem") {
		t.Errorf("paths are %q", paths)
	}

	want := map[string]string{
		".":             "drwx------",
		"root-cert.pem": "-rw-r--r--",
		"root-key.pem":  "-rw-------",
	}
	for _, c := range []string{"cluster1", "cluster2"} {
		want[c] = "drwx------"
		want[c+"/ca-cert.pem"] = "-rw-r--r--"
		want[c+"/ca-key.pem"] = "-rw-------"
		want[c+"/root-cert.pem"] = "-rw-r--r--"
		want[c+"/cert-chain.pem"] = "-rw-r--r--"
	}
	if diff := cmp.Diff(want, modes(t, dir)); diff != "" {
		t.Error(diff)
	}

	chain, err := os.ReadFile(filepath.Join(dir, "cluster1", "cert-chain.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if want := certs.EncodeCerts(clusters[0].Authority.Cert, root.Cert); !bytes.Equal(chain, want) {
		t.Error("cert-chain.pem is not ca-cert.pem and root-cert.pem")
	}

	back, err := LoadRoot(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	if !same(back, root) {
		t.Error("another root came back")
	}
	for _, c := range clusters {
		back, err := Load(filepath.Join(dir, string(c.Cluster)), now)
		if err != nil {
			t.Fatal(err)
		}
		if !same(back, c.Authority) {
			t.Errorf("another authority came back for %s", c.Cluster)
		}
	}
}

// TestSaveIntermediatesAllOrNone: existing files of one cluster prevent writing the
// files of all.
func TestSaveIntermediatesAllOrNone(t *testing.T) {
	dir := t.TempDir()
	_, clusters := newCAs(t, "cluster1", "cluster2")
	if _, err := SaveIntermediates(dir, clusters[1:], false); err != nil {
		t.Fatal(err)
	}
	_, err := SaveIntermediates(dir, clusters, false)
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("error is %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "cluster1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("cluster1 was begun: %v", err)
	}
	if _, err := SaveIntermediates(dir, clusters, true); err != nil {
		t.Error(err)
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(t *testing.T, dir string) error
		wants []string
	}{
		"empty directory": {func(_ *testing.T, dir string) error {
			for _, name := range []string{"ca-cert.pem", "ca-key.pem", "root-cert.pem", "cert-chain.pem"} {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					return err
				}
			}
			return nil
		}, []string{"incomplete: ca-cert.pem, ca-key.pem, cert-chain.pem and root-cert.pem"}},
		"key open to others": {func(_ *testing.T, dir string) error {
			return os.Chmod(filepath.Join(dir, "ca-key.pem"), 0o644)
		}, []string{"exposed-key", "ca-key.pem", "its mode 0644", "chmod 600"}},
		"key behind a link": {func(_ *testing.T, dir string) error {
			key := filepath.Join(dir, "ca-key.pem")
			return errors.Join(os.Rename(key, key+".real"), os.Symlink("ca-key.pem.real", key))
		}, []string{"exposed-key", "is a symbolic link"}},
		"huge certificate": {func(_ *testing.T, dir string) error {
			return os.Truncate(filepath.Join(dir, "root-cert.pem"), 2<<20)
		}, []string{"root-cert.pem", "more than the 1048576 bytes"}},
		"key of another": {func(t *testing.T, dir string) error {
			t.Helper()
			_, others := newCAs(t, "x")
			key, err := certs.EncodeKey(others[0].Authority.Key)
			return errors.Join(err, os.WriteFile(filepath.Join(dir, "ca-key.pem"), key, 0o600))
		}, []string{"ca-key.pem:1: key-mismatch: "}},
	} {
		t.Run(name, func(t *testing.T) {
			_, clusters := newCAs(t, "c")
			base := t.TempDir()
			if _, err := SaveIntermediates(base, clusters, false); err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(base, "c")
			if err := test.spoil(t, dir); err != nil {
				t.Fatal(err)
			}
			_, err := Load(dir, now)
			wantError(t, err, append(test.wants, "load CA: "+dir)...)
		})
	}
}

func TestLoadOrCreate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state", "ca")
	first, created, err := LoadOrCreate(dir, "example.org", now, rand.Reader)
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	if got := first.Cert.Subject.String(); got != "CN=meshctl self-signed CA,O=example.org" {
		t.Errorf("subject is %s", got)
	}
	second, created, err := LoadOrCreate(dir, "example.org", now.Add(time.Hour), rand.Reader)
	if err != nil || created {
		t.Fatalf("created %v, %v", created, err)
	}
	if !same(first, second) {
		t.Error("the second start has another CA")
	}

	// A damaged CA is not replaced by a new one, which nobody would trust.
	if err := os.Remove(filepath.Join(dir, "ca-key.pem")); err != nil {
		t.Fatal(err)
	}
	before := modes(t, dir)
	_, _, err = LoadOrCreate(dir, "example.org", now, rand.Reader)
	wantError(t, err, "incomplete: missing: ca-key.pem")
	if diff := cmp.Diff(before, modes(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// TestLoadRootRefusesWeakKey: a root with a key that peers refuse is refused.
func TestLoadRootRefusesWeakKey(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Weak"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	der, err1 := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	private, err2 := x509.MarshalPKCS8PrivateKey(key)
	dir := t.TempDir()
	err3 := os.WriteFile(filepath.Join(dir, RootCertFile), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)
	err4 := os.WriteFile(filepath.Join(dir, RootKeyFile), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadRoot(dir, now); err == nil || !strings.Contains(err.Error(), "root-cert.pem:1: weak-key") {
		t.Errorf("error is %v", err)
	}
}

// TestFromSecret: a Secret is read like a directory. The chain of a self-signed CA may
// be empty, as in Istio.
func TestFromSecret(t *testing.T) {
	root, clusters := newCAs(t, "c")
	data := func(a *certs.Authority, layout Layout) map[string][]byte {
		set, err := SecretFiles(a, nil, layout)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string][]byte{"other": []byte("x")}
		for _, f := range set {
			out[f.Name] = f.Data
		}
		return out
	}
	selfSigned := data(root, LayoutIstio)
	selfSigned[certChainFile] = nil
	big := data(clusters[0].Authority, LayoutIstio)
	big[KeyFile] = make([]byte, maxKey+1)
	for name, tc := range map[string]struct {
		data    map[string][]byte
		want    *certs.Authority
		refused string
	}{
		"istio":       {data(clusters[0].Authority, LayoutIstio), clusters[0].Authority, ""},
		"tls":         {data(clusters[0].Authority, LayoutTLS), clusters[0].Authority, ""},
		"self-signed": {selfSigned, root, ""},
		"too big":     {big, nil, "Secret ns/x, ca-key.pem: unreadable"},
		"nothing":     {nil, nil, "incomplete"},
	} {
		m := FromSecret("Secret ns/x", "7", tc.data)
		a, _, err := m.Authority(verify.Options{Now: now})
		if tc.refused != "" {
			wantError(t, err, tc.refused)
		} else if err != nil || !same(a, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
		if m.Stamp.Version != "7" || m.Empty() != (tc.data == nil) {
			t.Errorf("%s: stamp %+v, empty %v", name, m.Stamp, m.Empty())
		}
	}
}

// TestLoadOrCreateAtOnce: of many concurrent starts without a CA, one makes it and all
// use it.
func TestLoadOrCreateAtOnce(t *testing.T) {
	t.Parallel()
	const starts, rounds = 8, 20
	for name, prepare := range map[string]func(dir string) error{
		"no directory":           func(string) error { return nil },
		"an empty directory":     func(dir string) error { return os.Mkdir(dir, 0o700) },
		"a directory of folders": func(dir string) error { return os.MkdirAll(filepath.Join(dir, "bundles"), 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range rounds {
				dir := filepath.Join(t.TempDir(), "state")
				if err := prepare(dir); err != nil {
					t.Fatal(err)
				}
				var made atomic.Int64
				var all sync.WaitGroup
				got := make([]*certs.Authority, starts)
				begin := make(chan struct{})
				for i := range starts {
					all.Go(func() {
						<-begin
						a, created, err := LoadOrCreate(dir, "td", time.Now(), rand.Reader)
						if err != nil {
							t.Error(err)
							return
						}
						if got[i] = a; created {
							made.Add(1)
						}
					})
				}
				close(begin)
				all.Wait()
				for _, a := range got {
					if a != nil && got[0] != nil && !a.Cert.Equal(got[0].Cert) {
						t.Error("two starts have two CAs")
					}
				}
				if n := made.Load(); n != 1 {
					t.Errorf("%d made a CA", n)
				}
			}
		})
	}
}
