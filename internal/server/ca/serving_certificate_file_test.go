package ca

import (
	"crypto/rand"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
)

// TestFileCertificate: changed files take effect; invalid or partial files leave the
// last good certificate in use.
func TestFileCertificate(t *testing.T) {
	root, other := certstest.NewRoot(t), certstest.NewRoot(t)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	put := func(name string, data []byte) {
		if err := os.WriteFile(path(name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pair := func(by *certs.Authority, ttl time.Duration) (cert, key []byte, sum string) {
		k, err := certs.GenerateKey(certs.ECDSAP256)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := by.SignServer(k.Public(), []string{"istiod.istio-system.svc"}, ttl, time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if key, err = certs.EncodeKey(k); err != nil {
			t.Fatal(err)
		}
		return certs.EncodeCerts(leaf), key, certs.Fingerprint(leaf)
	}
	var ahead atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	cfg := FileConfig{Cert: path("tls.crt"), Key: path("tls.key"), CA: path("ca.crt"), Now: now, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	if _, err := LoadFileCertificate(cfg); err == nil {
		t.Error("no files, and no error")
	}
	cert, key, first := pair(root, 2*time.Hour)
	put("tls.crt", cert)
	put("tls.key", key)
	put("ca.crt", certs.EncodeCerts(other.Cert))
	if _, err := LoadFileCertificate(cfg); err == nil || !strings.Contains(err.Error(), "does not lead to") {
		t.Errorf("another root: %v", err)
	}
	put("ca.crt", certs.EncodeCerts(root.Cert))
	c, err := LoadFileCertificate(cfg)
	if err != nil {
		t.Fatal(err)
	}
	shows := func(want, problem string) {
		t.Helper()
		ahead.Add(int64(fileInterval))
		got, err := c.GetCertificate(nil)
		if err != nil || certs.Fingerprint(got.Leaf) != want {
			t.Errorf("%v, shows another certificate", err)
		}
		if err := c.Problem(); (err == nil) != (problem == "") || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("problem is %v, want %q", err, problem)
		}
	}
	shows(first, "")
	next, nextKey, second := pair(root, 4*time.Hour)
	put("tls.crt", next)
	shows(first, "do not belong together")
	put("tls.key", nextKey)
	shows(second, "")
	stranger, strangerKey, _ := pair(other, time.Hour)
	put("tls.crt", stranger)
	put("tls.key", strangerKey)
	shows(second, "does not lead to")
	put("tls.crt", []byte("junk"))
	shows(second, "no PEM")
	if err := os.Remove(path("tls.key")); err != nil {
		t.Fatal(err)
	}
	shows(second, "tls.key")
	put("tls.crt", next)
	put("tls.key", nextKey)
	shows(second, "")
	ahead.Add(int64(5 * time.Hour))
	shows(second, "not now")
}
