package store

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

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
		wantError(t, err, key, "its mode 0644 gives other users access; run chmod 600")
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

// mount arranges the files of dir like a mounted Secret.
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
