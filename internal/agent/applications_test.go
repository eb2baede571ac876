package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/meshctl/meshctl/internal/agent/config"
)

// TestApplicationFiles: only changed files are written, and the bootstrap last.
func TestApplicationFiles(t *testing.T) {
	dir := t.TempDir()
	f, err := newApplicationFiles(&config.Config{CertDir: filepath.Join(dir, "certs"), GRPCBootstrap: filepath.Join(dir, "b", "bootstrap.json")})
	check(t, err)
	stat := func(path string) os.FileInfo {
		info, err := os.Stat(path)
		check(t, err)
		if info.Mode() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return info
	}
	check(t, f.write([]byte("chain"), []byte("key"), []byte("roots")))
	roots, bootstrap := stat(filepath.Join(f.certDir, "root-cert.pem")), stat(f.bootstrap)
	check(t, f.write([]byte("chain 2"), []byte("key 2"), []byte("roots")))
	for name, want := range map[string]string{"cert-chain.pem": "chain 2", "key.pem": "key 2", "root-cert.pem": "roots"} {
		stat(filepath.Join(f.certDir, name))
		if got, err := os.ReadFile(filepath.Join(f.certDir, name)); string(got) != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
	if !os.SameFile(roots, stat(filepath.Join(f.certDir, "root-cert.pem"))) || !os.SameFile(bootstrap, stat(f.bootstrap)) {
		t.Error("unchanged files were written again")
	}
	t.Run("in a pod", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "volume")
		f, err := newApplicationFiles(&config.Config{CertDir: dir, GRPCBootstrap: filepath.Join(dir, "bootstrap.json"), InPod: true})
		check(t, err)
		check(t, f.write(nil, nil, nil))
		for path, want := range map[string]os.FileMode{dir: 0o755 | os.ModeDir, filepath.Join(dir, "key.pem"): 0o644, f.bootstrap: 0o644} {
			if info, err := os.Stat(path); err != nil || info.Mode() != want {
				t.Errorf("%s: mode %v, %v; want %v", path, info.Mode(), err, want)
			}
		}
	})
	// The bootstrap shows applications that the other files are complete.
	blocked, err := newApplicationFiles(&config.Config{CertDir: filepath.Join(dir, "file"), GRPCBootstrap: filepath.Join(dir, "early.json")})
	check(t, err)
	check(t, os.WriteFile(blocked.certDir, nil, 0o600))
	if err := blocked.write(nil, nil, nil); err == nil {
		t.Error("a file in place of the certificate directory: no error")
	}
	if _, err := os.Stat(blocked.bootstrap); err == nil {
		t.Error("the bootstrap is there without certificate files")
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
