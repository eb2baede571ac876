package workloadcert

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/mesh"
)

// writeCertificate writes a certificate with a life to files.
func writeCertificate(t *testing.T, ca *certstest.IstioCA, f *Files, life time.Duration) {
	t.Helper()
	key, err := certs.GenerateKey(certs.ECDSAP256)
	noError(t, err)
	leaf, err := ca.Authority.SignLeaf(key.Public(), mesh.Caller{Identity: certstest.Identity(), Cluster: "cluster1"}, life, time.Now(), rand.Reader)
	noError(t, err)
	keyPEM, err := certs.EncodeKey(key)
	noError(t, err)
	for path, data := range map[string][]byte{
		f.Chain: certs.EncodeCerts(leaf, ca.Authority.Cert, ca.Root.Cert), f.Key: keyPEM, f.Roots: certs.EncodeCerts(ca.Root.Cert),
	} {
		noError(t, os.WriteFile(path, data, 0o600))
	}
}

func inFiles(t *testing.T) *Files {
	t.Helper()
	dir := t.TempDir()
	return &Files{Chain: filepath.Join(dir, "cert-chain.pem"), Key: filepath.Join(dir, "key.pem"), Roots: filepath.Join(dir, "root-cert.pem")}
}

// TestFiles: the manager publishes what the files hold and each replacement, requests nothing,
// and keeps the last certificate while the files are wrong.
func TestFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := &signer{ca: certstest.NewIstioCA(t)}, inFiles(t)
		go func() {
			time.Sleep(10 * time.Second)
			writeCertificate(t, s.ca, f, time.Hour)
			time.Sleep(10 * time.Second)
			noError(t, os.WriteFile(f.Key, []byte("junk"), 0o600))
			time.Sleep(10 * time.Second)
			writeCertificate(t, s.ca, f, time.Hour)
		}()
		m, published, log := runManager(t, s, time.Minute, func(c *Config) { c.Files = f })
		if len(published) != 2 || len(s.times) != 0 {
			t.Errorf("%d published, %d requests; want 2 and 0", len(published), len(s.times))
		}
		if st := m.Status(); st.Requests != 0 || st.Failures != 0 || st.FileFailures != 2 {
			t.Errorf("status %+v, want 2 failures of files and no request", st)
		}
		if st := m.Status(); st.Err != nil || st.Certificate != published[1] || m.Current().Certificate == nil {
			t.Errorf("status %+v", st)
		}
		if strings.Count(log, "level=ERROR") != 2 || !strings.Contains(log, "no such file") || strings.Contains(log, "junk") {
			t.Errorf("log: %s", log)
		}
	})
}

func TestFilesRefuse(t *testing.T) {
	ca := certstest.NewIstioCA(t)
	stranger := certstest.NewIstioCA(t)
	for name, tc := range map[string]struct {
		spoil func(*Files)
		later time.Duration
		want  string
	}{
		"good":              {func(*Files) {}, 0, ""},
		"expired":           {func(*Files) {}, 2 * time.Hour, "expired at"},
		"no chain":          {func(f *Files) { noError(t, os.Remove(f.Chain)) }, 0, "certificate chain: "},
		"empty":             {func(f *Files) { noError(t, os.WriteFile(f.Chain, nil, 0o600)) }, 0, "certificate chain "},
		"no roots":          {func(f *Files) { noError(t, os.Remove(f.Roots)) }, 0, "roots: "},
		"junk roots":        {func(f *Files) { noError(t, os.WriteFile(f.Roots, []byte("x"), 0o600)) }, 0, "roots "},
		"no key":            {func(f *Files) { noError(t, os.Remove(f.Key)) }, 0, "key of the certificate: "},
		"open key":          {func(f *Files) { noError(t, os.Chmod(f.Key, 0o644)) }, 0, "key of the certificate: "},
		"open key in a pod": {func(f *Files) { noError(t, os.Chmod(f.Key, 0o644)); f.Mounted = true }, 0, ""},
		"another key": {func(f *Files) {
			other := inFiles(t)
			writeCertificate(t, ca, other, time.Hour)
			f.Key = other.Key
		}, 0, "for another key"},
		"another root": {func(f *Files) { f.Roots = stranger.RootFile }, 0, "does not lead to a root"},
		"only roots":   {func(f *Files) { f.Chain = f.Roots }, 0, "holds only roots"},
	} {
		t.Run(name, func(t *testing.T) {
			f := inFiles(t)
			writeCertificate(t, ca, f, time.Hour)
			tc.spoil(f)
			cert, err := f.Load(time.Now().Add(tc.later))
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) || (cert == nil) != (tc.want != "") {
				t.Errorf("got %v, %v, want %q", cert, err, tc.want)
			}
			if got := f.Client(time.Now().Add(tc.later)); (got == nil) != (tc.want != "") {
				t.Errorf("for connections: %v", got)
			}
		})
	}
}

// TestProvisioned: a provisioned certificate proves the identity until there is another one,
// and every second attempt after a failure uses the token alone.
func TestProvisioned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := &signer{ca: certstest.NewIstioCA(t), fail: 2}, inFiles(t)
		writeCertificate(t, s.ca, f, time.Hour)
		_, published, _ := runManager(t, s, time.Minute, func(c *Config) { c.Provisioned = f })
		if len(published) != 1 || len(s.shown) != 3 || !s.shown[0] || s.shown[1] || !s.shown[2] {
			t.Errorf("%d certificates, certificate shown %v", len(published), s.shown)
		}
	})
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
