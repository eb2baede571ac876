package store

import (
	"bufio"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

// TestMain is also the writer that TestKilled kills.
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

// replaceAll makes a new root and new CAs of two clusters.
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

// TestKilled: a writer that is killed at any moment leaves every directory consistent. Writers
// of several directories run at a time, as they mostly wait for the disk.
func TestKilled(t *testing.T) {
	kills := 50
	if testing.Short() {
		kills = 2
	}
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			killWriters(t, kills)
		})
	}
}

// killWriters kills a number of writers of one directory, one after the other.
func killWriters(t *testing.T, kills int) {
	t.Helper()
	dir := t.TempDir()
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

// TestFirstStartKilled: a start completes the CA of an earlier start that was killed.
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
