package store

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

// TestMain is the writer that TestKilled kills, too.
func TestMain(m *testing.M) {
	dir := os.Getenv("STORE_TEST_DIR")
	if dir == "" {
		os.Exit(m.Run())
	}
	for i := 0; ; i++ {
		if err := replaceAll(dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if i == 0 {
			fmt.Println("ready")
		}
	}
}

// replaceAll makes a root and the CAs of two clusters anew.
func replaceAll(dir string) error {
	spec := certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "CA", TTL: time.Hour}
	root, err := certs.NewRoot(spec, now, rand.Reader)
	if err != nil {
		return err
	}
	if _, err := SaveRoot(filepath.Join(dir, "root"), root, true); err != nil {
		return err
	}
	var made []Intermediate
	for _, c := range []mesh.ClusterID{"c1", "c2"} {
		a, err := root.NewIntermediate(c, spec, now, rand.Reader)
		if err != nil {
			return err
		}
		made = append(made, Intermediate{Cluster: c, Authority: a})
	}
	_, err = SaveIntermediates(dir, made, true)
	return err
}

// A run that is killed at any moment leaves each directory whole: the key is
// that of the certificate, the chain leads to the root that lies beside it.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	kills := 200
	if testing.Short() {
		kills = 6
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{".": "drwx------", "root": "drwx------", "root/root-cert.pem": "-rw-r--r--", "root/root-key.pem": "-rw-------"}
	for _, c := range []string{"c1", "c2"} {
		want[c] = "drwx------"
		for _, name := range []string{CertFile, RootCertFile, certChainFile} {
			want[c+"/"+name] = "-rw-r--r--"
		}
		want[c+"/"+KeyFile] = "-rw-------"
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for range kills {
		cmd := exec.CommandContext(t.Context(), exe)
		cmd.Env = append(os.Environ(), "STORE_TEST_DIR="+dir)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
			t.Fatalf("the writer says %q, %v", line, err)
		}
		time.Sleep(mathrand.N(30 * time.Millisecond)) // any moment of a write
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // says that it was killed
		if _, err := LoadRoot(filepath.Join(dir, "root"), now); err != nil {
			t.Fatal(err)
		}
		for _, c := range []string{"c1", "c2"} {
			if _, err := Load(filepath.Join(dir, c), now); err != nil {
				t.Fatal(err)
			}
		}
		if err := replaceAll(dir); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, modes(t, dir)); diff != "" {
			t.Fatal("after the next run: ", diff)
		}
	}
}

// The key of a CA is never replaced unless that was asked for.
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

func TestWhoseKeyItIs(t *testing.T) {
	_, clusters := newCAs(t, "c")
	make := func(t *testing.T) (dir, key string) {
		t.Helper()
		base := t.TempDir()
		if _, err := SaveIntermediates(base, clusters, false); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(base, "c"), filepath.Join(base, "c", KeyFile)
	}
	t.Run("0644", func(t *testing.T) {
		dir, key := make(t)
		if err := os.Chmod(key, 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := Load(dir, now)
		wantError(t, err, key, "its mode 0644 lets others at it; run chmod 600")
	})
	t.Run("symlink", func(t *testing.T) {
		dir, key := make(t)
		if err := os.Rename(key, filepath.Join(dir, "elsewhere")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("elsewhere", key); err != nil {
			t.Fatal(err)
		}
		_, err := Load(dir, now)
		wantError(t, err, key, "is a symbolic link")
	})
	if os.Geteuid() != 0 {
		t.Log("SKIPPED: only root can give a file to another, as the kubelet does")
		return
	}
	t.Run("of another", func(t *testing.T) {
		dir, key := make(t)
		if err := os.Chown(key, 4242, 4242); err != nil {
			t.Fatal(err)
		}
		_, err := Load(dir, now)
		wantError(t, err, key, "belongs to user 4242")
	})
	for _, mode := range []fs.FileMode{0o644, 0o440, 0o777} {
		t.Run("mounted "+mode.String(), func(t *testing.T) {
			dir, _ := make(t)
			mount(t, dir, "..2026_11_21_12_00_00.1", mode)
			if back, err := Load(dir, now); err != nil || !same(back, clusters[0].Authority) {
				t.Error(err)
			}
		})
	}
}

// mount gives the files of dir the layout of a mounted Secret.
func mount(t *testing.T, dir, version string, mode fs.FileMode) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(version, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{CertFile, KeyFile, certChainFile, RootCertFile} {
		real, link := filepath.Join(dir, version, name), filepath.Join(dir, name)
		if err := os.Rename(link, real); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(real, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join("..data", name), link); err != nil {
			t.Fatal(err)
		}
	}
}

// With two roots trusted, as in a rotation, the chain leads to one of them.
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

// A first start that was killed before its CA was whole is made up for by the
// next one.
func TestFirstStartKilled(t *testing.T) {
	dir := t.TempDir()
	version := "..meshctl-0123456789abcdef"
	if err := os.MkdirAll(filepath.Join(dir, version), 0o700); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{
		"..data": version, CertFile: "..data/" + CertFile, KeyFile: "..data/" + KeyFile,
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	first, created, err := LoadOrCreate(dir, "example.org", now, rand.Reader)
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	second, created, err := LoadOrCreate(dir, "example.org", now, rand.Reader)
	if err != nil || created || !same(first, second) {
		t.Errorf("created %v, %v", created, err)
	}
}
